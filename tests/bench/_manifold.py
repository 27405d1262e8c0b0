"""The synthetic manifold of the neighbor-graph figures, written block by block."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_manifold(path: Path, n_samples: int, n_features: int = 128, seed: int = 0) -> None:
    """Write a random two-layer map of a 12-d mixture of 50 Gaussians plus noise, float32 zarr."""
    import zarr

    rng = np.random.default_rng(seed)
    centers = rng.normal(scale=2.0, size=(50, 12))
    first = rng.normal(size=(12, 64)) / np.sqrt(12)
    second = rng.normal(size=(64, n_features)) / np.sqrt(64)
    rows = max(1, 16_000_000 // (4 * n_features))
    out = zarr.create_array(
        store=str(path),
        shape=(n_samples, n_features),
        dtype="float32",
        chunks=(min(rows, n_samples), n_features),
        compressors=None,
        overwrite=True,
    )
    for start in range(0, n_samples, rows):
        stop = min(start + rows, n_samples)
        draw = np.random.default_rng([seed, start])
        Z = centers[draw.integers(50, size=stop - start)] + draw.normal(size=(stop - start, 12))
        X = np.tanh(Z @ first) @ second
        X += 0.02 * draw.normal(size=X.shape)
        out[start:stop] = X.astype(np.float32)
