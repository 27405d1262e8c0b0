"""Counts of cells: negative binomial, in types with marker genes of their own, and batches."""

from __future__ import annotations

from typing import Any

import numpy as np


def counts(n: int = 300, d: int = 200, seed: int = 0) -> tuple[Any, np.ndarray]:
    """Return a CSR matrix of float32 counts, and the batch of each row: "a", "b" or "c"."""
    from scipy.sparse import csr_array

    rng = np.random.default_rng(seed)
    batches = rng.choice(list("abc"), n, p=[0.5, 0.3, 0.2])
    means = np.exp(rng.normal(-1, 1.3, d))
    depth = np.where(batches == "b", 2.0, 1.0) * np.exp(rng.normal(0, 0.3, n))
    fold = np.ones((4, d))
    for cell_type in range(4):
        fold[cell_type, cell_type * 5 : cell_type * 5 + 5] = 6
    expected = depth[:, None] * means * fold[rng.integers(4, size=n)]
    return csr_array(rng.poisson(rng.gamma(2, expected / 2)).astype(np.float32)), batches
