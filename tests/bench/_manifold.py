"""The synthetic manifold of the neighbor-graph figures, written block by block."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bigfs.store.source import Source


class Manifold:
    """A random two-layer map of a 12-d mixture of 50 Gaussians plus noise."""

    def __init__(self, n_features: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._seed = seed
        self._centers = rng.normal(scale=2.0, size=(50, 12))
        self._first = rng.normal(size=(12, 64)) / np.sqrt(12)
        self._second = rng.normal(size=(64, n_features)) / np.sqrt(64)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows as float64; the draw follows from the seed and the first row."""
        draw = np.random.default_rng([self._seed, start])
        clusters = draw.integers(50, size=stop - start)
        Z = self._centers[clusters] + draw.normal(size=(stop - start, 12))
        X = np.tanh(Z @ self._first) @ self._second
        X += 0.02 * draw.normal(size=X.shape)
        return X


class PlantedManifold(Source):
    """A manifold on every fourth feature and noise on the others, made as it is read."""

    def __init__(self, n_samples: int, n_features: int, seed: int = 0, noise: float = 0.1) -> None:
        self.uri = "planted manifold"
        self.n_samples, self.n_features = n_samples, n_features
        self.dtype = np.dtype(np.float32)
        self.planted = np.arange(0, n_features, 4)
        self._seed, self._noise = seed, np.float32(noise)
        self._manifold = Manifold(len(self.planted), seed)

    def iter_rows(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        for start in range(0, self.n_samples, rows):
            yield self.rows(start, min(start + rows, self.n_samples))

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows; the draw follows from the seed and the first row."""
        draw = np.random.default_rng([self._seed, start, 1])
        X = draw.standard_normal((stop - start, self.n_features), dtype=np.float32)
        X *= self._noise
        X[:, self.planted] = self._manifold.rows(start, stop)
        return X


def write_manifold(path: Path, n_samples: int, n_features: int = 128, seed: int = 0) -> None:
    """Write a manifold as an uncompressed float32 zarr array."""
    import zarr

    manifold = Manifold(n_features, seed)
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
        out[start:stop] = manifold.rows(start, stop).astype(np.float32)
