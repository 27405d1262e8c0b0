"""Connected components, the null space they span, and bases that do not depend on a solver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

# Entries this close to the largest one count as equal to it.
SIGN_TIE = 1e-6
# The same for rows that fix a basis: symmetric graphs have many, known to a few digits only.
PIVOT_TIE = 1e-3


@dataclass(frozen=True)
class NullSpace:
    """The null space of the normalized Laplacian, from the connected components."""

    # Of shape (n_samples,), int: component of each row; components are numbered by falling volume
    # (sum of degrees), equal ones by their first row.
    labels: np.ndarray
    volumes: np.ndarray  # of shape (n_components,), float64
    # Of shape (n_samples,), float64: ``sqrt(d_i / volume)``: the unit vector of each row's
    # component.
    unit: np.ndarray

    @property
    def n_components(self) -> int:
        """Number of connected components."""
        return len(self.volumes)

    def project(self, x: np.ndarray) -> np.ndarray:
        """Return the part of x in the null space, shape (n_samples,)."""
        shares = np.bincount(self.labels, self.unit * x, self.n_components)
        return self.unit * shares[self.labels]

    def projector(self) -> np.ndarray:
        """Return the projection as a dense matrix; for small graphs."""
        same = self.labels[:, None] == self.labels[None, :]
        return np.where(same, np.multiply.outer(self.unit, self.unit), 0.0)

    def contrasts(self, k: int) -> np.ndarray:
        """Return the first k vectors of the canonical basis without the trivial vector.

        Vector j sets component j against all smaller ones together: what Gram-Schmidt makes of
        the trivial vector and the components' indicators, the largest first.

        Returns
        -------
        basis : ndarray of shape (n_samples, min(k, n_components - 1)), float64
            Orthonormal, and orthogonal to ``D^1/2 1``.
        """
        root = self.unit * np.sqrt(self.volumes)[self.labels]
        return root[:, None] * contrast_levels(self.volumes, k)[self.labels]


def contrast_levels(volumes: np.ndarray, k: int) -> np.ndarray:
    """Return `NullSpace.contrasts` divided by ``D^1/2``: one row per component.

    Parameters
    ----------
    volumes : ndarray of shape (n_components,)
        Descending.
    k : int

    Returns
    -------
    levels : ndarray of shape (n_components, min(k, n_components - 1)), float64
    """
    rest = volumes[::-1].cumsum()[::-1]
    levels = np.zeros((len(volumes), min(k, len(volumes) - 1)))
    for j in range(levels.shape[1]):
        own, others = 1.0 / volumes[j], 1.0 / rest[j + 1]
        levels[j, j], levels[j + 1 :, j] = own, -others
        levels[:, j] /= np.sqrt(own + others)
    return levels


def null_space(W: Any, degrees: np.ndarray) -> NullSpace:
    """Return the null space of the normalized Laplacian of an affinity matrix."""
    from scipy.sparse.csgraph import connected_components

    # W is symmetric: strongly connected parts are the components, found without W'.
    count, component_of_row = connected_components(W, directed=True, connection="strong")
    volumes = np.bincount(component_of_row, degrees, count)
    first = np.full(count, len(component_of_row))
    np.minimum.at(first, component_of_row, np.arange(len(component_of_row)))
    order = np.lexsort((first, -volumes))
    rank = np.empty(count, dtype=np.int32)
    rank[order] = np.arange(count)
    labels, volumes = rank[component_of_row], volumes[order]
    return NullSpace(labels, volumes, np.sqrt(degrees / volumes[labels]))


def canonical_basis(values: np.ndarray, vectors: np.ndarray, width: float) -> None:
    """Give each group of equal eigenvalues a basis that depends on its span only, in place.

    Parameters
    ----------
    values : ndarray of shape (k,)
        Sorted eigenvalues; those within ``width`` of a group's first belong to it.
    vectors : ndarray of shape (n_samples, k)
        Orthonormal columns; overwritten.
    width : float
    """
    for begin, end in groups(values, width):
        vectors[:, begin:end] = vectors[:, begin:end] @ _rotation(vectors[:, begin:end])


def groups(values: np.ndarray, width: float) -> Iterator[tuple[int, int]]:
    """Yield the bounds of groups of more than one of the sorted values."""
    begin = 0
    while begin < len(values):
        end = begin + int((np.abs(values[begin:] - values[begin]) <= width).sum())
        if end - begin > 1:
            yield begin, end
        begin = end


def _rotation(vectors: np.ndarray) -> np.ndarray:
    """Return the rotation in which rows chosen by pivoting are triangular.

    The pivot is the row of largest norm beyond the earlier ones, the first of several: equal
    parts of a graph have equal rows.
    """
    width = vectors.shape[1]
    turn = np.zeros((width, width))
    left = np.einsum("ij,ij->i", vectors, vectors)
    for j in range(width):
        row = vectors[(left >= (1.0 - PIVOT_TIE) * left.max()).argmax()]
        add_pivot(turn, j, row)
        left -= (vectors @ turn[:, j]) ** 2
    return turn


def add_pivot(turn: np.ndarray, j: int, row: np.ndarray) -> None:
    """Make column j of a rotation what a row has beyond the columns before it, in place."""
    row = row - turn[:, :j] @ (turn[:, :j].T @ row)
    turn[:, j] = row / np.linalg.norm(row)


def fix_signs(vectors: np.ndarray) -> None:
    """Make the entry of largest magnitude of each column positive, in place.

    Of several such entries the first one counts.
    """
    signs = np.ones(vectors.shape[1])
    for j, column in enumerate(vectors.T):
        size = np.abs(column)
        if column[(size >= (1.0 - SIGN_TIE) * size.max()).argmax()] < 0:
            signs[j] = -1.0
    vectors *= signs
