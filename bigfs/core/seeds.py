"""Random seeds, one per (run seed, stage, block), so that no draw depends on execution order."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, is_int


def check_seed(random_state: Any) -> None:
    """Raise InputError unless a seed is a non-negative integer."""
    if not is_int(random_state) or random_state < 0:
        draw = {"integers": "rng.integers(2**31)", "randint": "rng.randint(2**31 - 1)"}
        cure = next(
            (f" Draw one: int({call})." for n, call in draw.items() if hasattr(random_state, n)), ""
        )
        raise InputError(
            "random_state must be an int of at least 0; selectors also accept None. "
            f"Got {random_state!r}.{cure}"
        )


def derive_seed(random_state: int, stage: str, block: int = 0) -> int:
    """Return the 32-bit seed of one block of one stage of a run."""
    check_seed(random_state)
    words = [int(random_state), zlib.crc32(stage.encode()), int(block)]
    return int(np.random.SeedSequence(words).generate_state(1)[0])


def rng(random_state: int, stage: str, block: int = 0) -> np.random.Generator:
    """Return the random generator of one block of one stage of a run."""
    return np.random.default_rng(derive_seed(random_state, stage, block))
