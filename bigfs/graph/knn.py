"""The neighbor graph in storage: the nearest rows of every row, and their distances."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, check_fits
from bigfs.core.paths import plain_name
from bigfs.core.units import parse_bytes
from bigfs.graph.recall import RecallEstimate
from bigfs.store.location import Location, as_location
from bigfs.store.scratch import ArrayRef, Kept, Scratch, block_bounds

# Fields in the record of a graph besides its recall, arrays and details.
_ABOUT = ("metric", "algorithm", "n_neighbors", "n_partitions")


def check_mode(mode: str) -> None:
    """Raise InputError if ``mode`` is not a supported kind of matrix."""
    if mode not in ("distance", "connectivity"):
        raise InputError(f"mode must be 'distance' or 'connectivity'. Got {mode!r}.")


@dataclass(frozen=True)
class KNNGraph(Kept):
    """The k nearest neighbors of every row.

    Attributes
    ----------
    indices_ref : ArrayRef of shape (n_samples, n_neighbors), int32
        Neighbors of each row: never the row itself, and no neighbor twice.
    distances_ref : ArrayRef of shape (n_samples, n_neighbors), float32
        True distances, ascending; ties by ascending index.
    partitions_ref : ArrayRef of shape (n_samples,), int32
        Part of the data that each row belongs to: most of its neighbors are in the same part.
    metric : str
    algorithm : str
        "exact" or "pynndescent".
    n_partitions : int
        Number of parts that were searched on their own.
    recall_ : RecallEstimate
        Share of the true neighbors that were found.
    scratch : Scratch
        Keeps the stored arrays alive.
    details : dict
        Rows copied, bytes through scratch, passes over X, seconds by step.
    """

    indices_ref: ArrayRef
    distances_ref: ArrayRef
    partitions_ref: ArrayRef
    metric: str
    algorithm: str
    n_partitions: int
    recall_: RecallEstimate
    scratch: Scratch
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def n_samples(self) -> int:
        """Number of rows of the data."""
        return self.indices_ref.shape[0]

    @property
    def n_neighbors(self) -> int:
        """Number of neighbors of each row."""
        return self.indices_ref.shape[1]

    @property
    def indices(self) -> Any:
        """Neighbors of every row as a zarr array, read lazily."""
        return self.indices_ref.open(self.scratch)

    @property
    def distances(self) -> Any:
        """Distances to the neighbors as a zarr array, read lazily."""
        return self.distances_ref.open(self.scratch)

    @property
    def row_bounds(self) -> list[tuple[int, int]]:
        """First row and one past the last row of every stored block."""
        return block_bounds(self.n_samples, self.indices_ref.chunk_rows)

    def check_fits(self, memory_limit: int | str) -> None:
        """Raise MemoryLimitError if the graph as CSR does not fit a process."""
        n, k = self.indices_ref.shape
        check_fits("graph", n * k * 12 + 8 * n, parse_bytes(memory_limit), "the graph as CSR")

    def to_csr(
        self, mode: str = "distance", *, memory_limit: int | str = DEFAULT_MEMORY_LIMIT
    ) -> Any:
        """Return the directed graph as scipy CSR.

        Parameters
        ----------
        mode : {"distance", "connectivity"}, default="distance"
        memory_limit : int or str, default="4 GiB"
            Raise if the matrix does not fit a process of this size.

        Returns
        -------
        graph : csr_array of shape (n_samples, n_samples), float32
            ``n_neighbors`` entries per row, by ascending distance; distances of zero are stored.

        Raises
        ------
        MemoryLimitError
            If it does not fit.
        """
        from scipy.sparse import csr_array

        check_mode(mode)
        self.check_fits(memory_limit)
        n, k = self.indices_ref.shape
        data = self.distances_ref.load() if mode == "distance" else np.ones((n, k), np.float32)
        indptr = np.arange(n + 1, dtype=np.int64 if n * k >= 2**31 else np.int32) * k
        return csr_array((data.ravel(), self.indices_ref.load().ravel(), indptr), shape=(n, n))

    def describe(self) -> dict[str, Any]:
        """Return the metadata that `open` needs in addition to the arrays, as JSON values."""
        about = {name: getattr(self, name) for name in _ABOUT}
        arrays = [ref.path.rsplit("/", 1)[1] for ref in (self.indices_ref, self.distances_ref)]
        return {**about, "recall": self.recall_.as_dict(), "arrays": arrays, **self.details}

    @classmethod
    def open(cls, path: str | Location, stored: dict[str, Any]) -> KNNGraph:
        """Return the graph that was stored in a folder."""
        details = dict(stored)
        names = [*(plain_name(name, path) for name in details.pop("arrays")), "partitions"]
        indices, distances, partitions = (ArrayRef.at(as_location(path) / name) for name in names)
        about = {name: details.pop(name) for name in _ABOUT}
        del about["n_neighbors"]  # known from the arrays
        recall, scratch = RecallEstimate(**details.pop("recall")), Scratch(path)
        return cls(
            indices,
            distances,
            partitions,
            **about,
            recall_=recall,
            scratch=scratch,
            details=details,
        )
