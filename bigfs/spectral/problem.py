"""The eigenproblem L y = lambda D y that every solver starts from, and its common result.

The smallest eigenpairs of L are the largest of ``S = D^-1/2 W D^-1/2``. The null space of L follows
from the connected components: a canonical basis of it comes first, without the trivial vector, and
the other pairs are computed with the null space projected out, so that no solver meets the multiple
eigenvalue 0.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigfs.core.errors import ConvergenceError, RowError, check_count
from bigfs.core.text import FROM_0
from bigfs.runtime.progress import say_where
from bigfs.spectral.thin import inverse
from bigfs.store.scratch import block_bounds

logger = logging.getLogger("bigfs")

# Vectors computed beyond the requested ones, to see if the cut falls inside a group.
GUARDS = 2
# Eigenvalues closer than this share of their residuals, or than rounding, form one group.
GROUP, ROUNDING = 0.1, 1e-13
# Best possible accuracy of an eigenvalue, and the angle up to which a vector counts as resolved.
_EXACT, CLEAR_ANGLE = 4e-15, 0.03
# A pair belongs to the bulk of the spectrum if its eigenvalue is at least this share of the largest
# computed one: no gap separates it from those beyond, and no method needs it more accurately than
# to the following share of its eigenvalue.
BULK_SHARE = 0.5
BULK_RESIDUAL = 0.05
# Entries within this relative distance of the largest one count as equal to it.
SIGN_TIE = 1e-6
# The same for rows that fix a basis: symmetric graphs have many ties, known to a few digits only.
PIVOT_TIE = 1e-3
# Rows of large arrays handled at a time if a float64 copy is needed.
TILE_ROWS = 4096


@dataclass(frozen=True)
class Eigenpairs:
    """Solution of the generalized problem without its trivial pair."""

    eigenvalues: np.ndarray  # of shape (n_components,), float64: ascending
    # Of shape (n_samples, n_components), float64: with unit D-norm, ``y'Dy = 1``; the entry of
    # largest magnitude is positive.
    vectors: np.ndarray
    # Of shape (n_components,), float64: ``|S u - (1 - lambda) u|`` with ``u = D^1/2 y``; may exceed
    # the accepted residual for pairs of the bulk that were given up.
    residuals: np.ndarray
    # Of shape (n_components,), bool: vectors that may be mixed with those of adjacent eigenvalues.
    mixed: np.ndarray
    edge: float  # the largest computed eigenvalue, including those beyond the requested ones
    n_connected_components: int
    n_products: int  # products of W with one vector; a block of b vectors counts b times
    n_iterations: int  # iterations of the solver; 0 if a dense solver, or none, was needed


@dataclass
class Goal:
    """An eigenproblem, without the graph itself."""

    n_samples: int  # rows of the graph
    n_connected: int  # number of its connected components
    n_components: int  # number of pairs to return
    tol: float  # see `accepted`
    # The largest eigenvalue of L that the solver has computed.
    edge: float = field(default=0.0, kw_only=True)
    # Counted by the solver.
    n_products: int = field(default=0, kw_only=True)
    n_iterations: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if self.n_connected - 1 > self.n_components:
            logger.warning(
                "The graph has %d connected components, more than the %d requested eigenvectors, "
                "which separate only the largest. Request %d, or use more neighbors.",
                self.n_connected, self.n_components, self.n_connected - 1,
            )  # fmt: skip

    @property
    def n_known(self) -> int:
        """Number of pairs that the null space provides."""
        return min(self.n_components, self.n_connected - 1)

    @property
    def n_missing(self) -> int:
        """Number of pairs that a solver must find."""
        return self.n_components - self.n_known

    @property
    def n_wanted(self) -> int:
        """Number of pairs that a solver computes: those missing, and guards to see group ends."""
        return min(self.n_missing + GUARDS, self.n_samples - self.n_connected)

    def summary(self, eigenvalues: np.ndarray, residuals: np.ndarray) -> dict[str, Any]:
        """Return the fields of `Eigenpairs` except vectors and residuals, from computed pairs."""
        known, values = self.n_known, np.maximum(eigenvalues[: self.n_missing], 0.0)
        mixed = self.mixed(eigenvalues, residuals)[: self.n_missing]
        return {
            "eigenvalues": np.concatenate([np.zeros(known), values]),
            "mixed": np.concatenate([np.zeros(known, bool), mixed]),
            "edge": float(self.edge),
            "n_connected_components": self.n_connected,
            "n_products": self.n_products,
            "n_iterations": self.n_iterations,
        }

    def accepted(self, eigenvalues: np.ndarray) -> np.ndarray:
        """Return the largest residuals that are accepted.

        Parameters
        ----------
        eigenvalues : ndarray of shape (n_found,)
            Eigenvalues of L beyond the null space, ascending, at least `n_missing`.

        Returns
        -------
        accepted : ndarray of shape (n_found,)
            ``tol`` times the eigenvalue, or the residual that leaves an angle of ``tol`` to the
            true vector, if that is larger: well-separated groups have tiny eigenvalues far below
            all others.
        """
        gaps = np.minimum(_gaps(eigenvalues), 2.0)  # eigenvalues of L are at most 2
        far = self._far(eigenvalues)
        return np.maximum(
            self.tol * eigenvalues, np.minimum(self.tol * far, np.sqrt(self.tol * far * gaps))
        )

    def mixed(self, eigenvalues: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """Return a mask of vectors that may not be distinguished from those of near eigenvalues.

        The component of a vector outside the span of the computed ones is at most its residual
        divided by the distance to the other eigenvalues (Davis and Kahan). Within the span the
        error is of second order.
        """
        far = np.maximum(self._far(eigenvalues), _EXACT)
        inside = (residuals**2 / far + _EXACT) / np.maximum(_gaps(eigenvalues), _EXACT)
        by_gap = residuals / np.maximum(_gaps(eigenvalues), _EXACT)
        angles = np.maximum(np.minimum(by_gap, residuals / far), inside)
        return np.asarray(angles > CLEAR_ANGLE)

    def group_widths(self, eigenvalues: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """Return the distances within which eigenvalues are considered equal."""
        return GROUP * np.minimum(residuals, self.tol * eigenvalues) + ROUNDING

    def _far(self, eigenvalues: np.ndarray) -> np.ndarray:
        """Return the distance to the first eigenvalue beyond the requested ones."""
        beyond = eigenvalues[self.n_missing] if len(eigenvalues) > self.n_missing else self.edge
        return np.abs(beyond - eigenvalues)

    def in_bulk(self, values: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """Return a mask of the pairs in the bulk whose residual is small enough for the bulk."""
        return np.asarray(
            (values >= BULK_SHARE * self.edge) & (residuals <= BULK_RESIDUAL * values)
        )

    def check(self, eigenvalues: np.ndarray, residuals: np.ndarray) -> None:
        """Raise ConvergenceError if a requested pair outside the bulk has not converged.

        Pairs beyond the requested ones are not checked.
        """
        count = self.n_missing
        residuals = residuals[:count]
        accepted = np.maximum(self.accepted(eigenvalues)[:count], ROUNDING)
        done = (residuals <= accepted) | self.in_bulk(eigenvalues[:count], residuals)
        if not done.all():
            shown = ", ".join(f"{value:.1e}" for value in residuals)
            raise ConvergenceError(
                f"spectral: residuals must be at most {accepted.min():.1g} ({self.tol:g} of the "
                f"eigenvalue or its gap). Got {shown}. Raise spectral.tol, or request fewer "
                "eigenvectors."
            )


@dataclass(frozen=True)
class NullSpace:
    """The null space of the normalized Laplacian, from the connected components."""

    # Of shape (n_samples,), int: component of each row; components are numbered by decreasing
    # volume (sum of degrees), ties by their first row.
    labels: np.ndarray
    volumes: np.ndarray  # of shape (n_components,), float64
    # Of shape (n_samples,), float64: ``sqrt(d_i / volume)``, the row's entry in the unit vector of
    # its component.
    unit: np.ndarray

    def project(self, x: np.ndarray) -> np.ndarray:
        """Return the projection of x on the null space, shape (n_samples,)."""
        shares = np.bincount(self.labels, self.unit * x, len(self.volumes))
        return self.unit * shares[self.labels]

    def contrasts(self, k: int) -> np.ndarray:
        """Return the first k vectors of the canonical basis without the trivial vector.

        Vector j contrasts component j with all smaller ones together: Gram-Schmidt applied to the
        trivial vector and the components' indicators, the largest first.

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

    # W is symmetric, so strongly connected components are its components; this avoids W'.
    count, component_of_row = connected_components(W, directed=True, connection="strong")
    volumes = np.bincount(component_of_row, degrees, count)
    _, first = np.unique(component_of_row, return_index=True)
    order = np.lexsort((first, -volumes))
    labels, volumes = inverse(order).astype(np.int32)[component_of_row], volumes[order]
    return NullSpace(labels, volumes, np.sqrt(degrees / volumes[labels]))


@dataclass
class Problem(Goal):
    """A checked graph with its degrees and null space."""

    W: Any  # scipy sparse matrix of shape (n_samples, n_samples): symmetric affinity, CSR
    root: np.ndarray  # of shape (n_samples,), float64: square roots of the degrees
    null: NullSpace

    @classmethod
    def of(cls, W: Any, n_components: int, tol: float) -> Problem:
        """Check the graph and the number of pairs.

        Raises
        ------
        InputError
            If a degree is not positive, a weight negative, or ``n_components`` out of range.
        """
        from scipy.sparse import issparse

        n_samples = W.shape[0]
        reason = f"since the graph has {n_samples} rows"
        check_count("n_components", n_components, n_samples - 1, reason)
        W = W.tocsr() if issparse(W) else W
        # Summing float32 weights in float32 would be too inaccurate.
        degrees = np.asarray(W @ np.ones(n_samples))
        check_rows(W.indptr, W.data, degrees)
        null = null_space(W, degrees)
        n_connected, root = len(null.volumes), np.sqrt(degrees)
        return cls(n_samples, n_connected, n_components, tol, W=W, root=root, null=null)

    def scaled(self) -> Any:
        """Return S as scipy CSR, float64."""
        from scipy.sparse import csr_matrix

        scaled = csr_matrix(self.W, dtype=np.float64, copy=True)
        scaled.data /= np.repeat(self.root, np.diff(scaled.indptr))
        scaled.data /= self.root[scaled.indices]
        return scaled

    def finish(self, eigenvalues: np.ndarray, ritz_vectors: np.ndarray) -> Eigenpairs:
        """Return the solution, with checked residuals, from the smallest eigenpairs of I - S.

        Parameters
        ----------
        eigenvalues : ndarray of shape (n_found,)
            Eigenvalues beyond the null space's, ascending, at least `n_missing`.
        ritz_vectors : ndarray of shape (n_samples, n_found)
            Their orthonormal eigenvectors; overwritten.

        Raises
        ------
        ConvergenceError
            If the residual of a pair outside the bulk exceeds the accepted one.
        """
        known, missing = self.n_known, self.n_missing
        self.edge = max(self.edge, eigenvalues.max(initial=0.0))
        ritz_vectors /= self.root[:, None]
        residuals = self.residuals(eigenvalues, ritz_vectors)
        say_where(f"largest residual {residuals[:missing].max(initial=0.0):.1e}")
        self.check(eigenvalues, residuals)
        summary = self.summary(eigenvalues, residuals)
        ritz_vectors *= self.root[:, None]
        canonical_basis(eigenvalues, ritz_vectors, self.group_widths(eigenvalues, residuals))
        vectors = ritz_vectors[:, :missing]
        if known:
            vectors = np.hstack([self.null.contrasts(known), vectors])
        vectors /= self.root[:, None]
        fix_signs(vectors)
        residuals = self.residuals(summary["eigenvalues"], vectors)
        return Eigenpairs(**summary, vectors=vectors, residuals=residuals)

    def residuals(self, values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Return ``|D^-1/2 W y - (1 - lambda) D^1/2 y|`` of each vector."""
        squares = np.zeros(len(values))
        for start, stop in block_bounds(self.n_samples, TILE_ROWS):
            root = self.root[start:stop, None]
            part = (self.W[start:stop] @ vectors) / root
            part -= (1.0 - values) * root * vectors[start:stop]
            squares += np.einsum("ij,ij->j", part, part)
        return np.sqrt(squares)


def check_rows(
    indptr: np.ndarray, weights: np.ndarray, degrees: np.ndarray, first: int = 0
) -> None:
    """Raise InputError if a weight is negative or a degree is not positive.

    Parameters
    ----------
    indptr : ndarray of shape (n_rows + 1,)
    weights : ndarray of shape (n_entries,)
    degrees : ndarray of shape (n_rows,)
    first : int, default=0
        Number of the first row, for error messages.
    """
    if not (degrees > 0).all():
        bad = int((degrees > 0).argmin())
        raise RowError(
            f"row {first + bad} of the graph has degree {degrees[bad]:g}; degrees must be "
            f"positive. Use binary weights or a wider heat kernel. {FROM_0}"
        )
    if len(weights) and weights.min() < 0:
        place = int((weights < 0).argmax())
        bad = int(np.searchsorted(indptr, place, side="right")) - 1
        raise RowError(
            f"row {first + bad} of the graph has a negative weight, {weights[place]:g}: the "
            "eigenvalues of its Laplacian could be negative. Use weight 'binary' or 'heat', or "
            f"data with non-negative dot products. {FROM_0}"
        )


def warn_of_cut_group(value: float, count: int) -> None:
    """Warn that an eigenvalue has more eigenvectors than were computed."""
    logger.warning(
        "Eigenvalue %.6g of the graph has more than %d eigenvectors: those returned depend on the "
        "solver's start. Request fewer eigenvectors, or look for duplicate rows.", value, count,
    )  # fmt: skip


def _gaps(eigenvalues: np.ndarray) -> np.ndarray:
    """Return the distance of each of the ascending values to its nearest neighbor."""
    steps = np.concatenate([[np.inf], np.diff(eigenvalues), [np.inf]])
    return np.minimum(steps[:-1], steps[1:])


def canonical_basis(values: np.ndarray, vectors: np.ndarray, widths: np.ndarray) -> None:
    """Give each group of equal eigenvalues a basis that depends only on its span, in place.

    Parameters
    ----------
    values, widths : ndarray of shape (k,)
        As in `groups`.
    vectors : ndarray of shape (n_samples, k)
        Orthonormal columns; overwritten.

    Notes
    -----
    In this basis the rows chosen by pivoting are triangular. The pivot is the row of largest norm
    after projecting out the earlier pivots, the first in case of ties: symmetric parts of a graph
    have equal rows.
    """
    for begin, end in groups(values, widths):
        part, turn = vectors[:, begin:end], np.zeros((end - begin, end - begin))
        left = np.einsum("ij,ij->i", part, part)
        for j in range(end - begin):
            add_pivot(turn, j, part[(left >= (1.0 - PIVOT_TIE) * left.max()).argmax()])
            left -= (part @ turn[:, j]) ** 2
        part[:] = part @ turn


def groups(values: np.ndarray, widths: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the bounds of groups of at least two of the ascending values.

    Adjacent values belong to one group if their distance is at most the larger of their widths.
    """
    apart = np.diff(values) > np.maximum(widths[:-1], widths[1:])
    begins = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(values)]])
    for begin, end in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True):
        if end - begin > 1:
            yield begin, end


def add_pivot(turn: np.ndarray, j: int, row: np.ndarray) -> None:
    """Set column j of a rotation to the unit vector of a row orthogonal to the earlier columns."""
    row = row - turn[:, :j] @ (turn[:, :j].T @ row)
    turn[:, j] = row / np.linalg.norm(row)


def fix_signs(vectors: np.ndarray) -> None:
    """Make the entry of largest magnitude of each column positive, in place.

    The first one counts if several tie.
    """
    sizes = np.abs(vectors)
    first = (sizes >= (1.0 - SIGN_TIE) * sizes.max(axis=0)).argmax(axis=0)
    vectors *= np.where(vectors[first, np.arange(len(first))] < 0, -1.0, 1.0)
