"""Random seeds: one per (run seed, stage, block), so that no draw depends on who drew first."""

from __future__ import annotations

import zlib

import numpy as np


def derive_seed(random_state: int, stage: str, block: int = 0) -> int:
    """Return the 32-bit seed of one block of one stage of a run."""
    words = [int(random_state), zlib.crc32(stage.encode()), int(block)]
    return int(np.random.SeedSequence(words).generate_state(1)[0])


def rng(random_state: int, stage: str, block: int = 0) -> np.random.Generator:
    """Return the generator of one block of one stage of a run."""
    return np.random.default_rng(derive_seed(random_state, stage, block))
