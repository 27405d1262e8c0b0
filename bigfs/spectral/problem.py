"""The eigenproblem L y = lambda D y that every solver starts from and the result all of them give.

Smallest eigenpairs of L are the largest of ``S = D^-1/2 W D^-1/2``. The null space of L is known
from the connected components: a canonical basis of it comes first, without the trivial vector,
and the rest is solved with it projected out, so that no solver meets the multiple eigenvalue.
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

# Vectors computed beyond those asked for, to see whether the cut falls inside a group.
GUARDS = 2
# Eigenvalues that are closer than this share of their residuals, or than rounding, are one group.
GROUP, ROUNDING = 0.1, 1e-13
# What is known of an eigenvalue, at best, and the angle up to which a vector counts as found.
_EXACT, CLEAR_ANGLE = 4e-15, 0.03
# A pair belongs to the bulk of the spectrum where its eigenvalue is at least this share of the
# largest one that was looked at: no gap sets it apart from those beyond, and no method needs it
# more exactly than to this share of its eigenvalue.
BULK_SHARE = 0.5
BULK_RESIDUAL = 0.05
# Entries this close to the largest one count as equal to it.
SIGN_TIE = 1e-6
# The same for rows that fix a basis: symmetric graphs have many, known to a few digits only.
PIVOT_TIE = 1e-3
# Rows of n-row arrays handled at a time where a copy in float64 is needed.
TILE_ROWS = 4096


@dataclass(frozen=True)
class Eigenpairs:
    """Solution of the generalized problem without its trivial pair."""

    eigenvalues: np.ndarray  # of shape (n_components,), float64: ascending
    # Of shape (n_samples, n_components), float64: with unit D-norm, ``y'Dy = 1``; the entry of
    # largest magnitude is positive.
    vectors: np.ndarray
    # Of shape (n_components,), float64: ``|S u - (1 - lambda) u|`` with ``u = D^1/2 y``; above what
    # is accepted for pairs of the bulk that were left as they are.
    residuals: np.ndarray
    # Of shape (n_components,), bool: vectors that may have parts of those of the next eigenvalues.
    mixed: np.ndarray
    edge: float  # the largest eigenvalue that was looked at, beyond those asked for
    n_connected_components: int
    n_products: int  # products of W with one vector; a block of b vectors counts b times
    n_iterations: int  # rounds of the solver; 0 where a dense one, or none, was needed


@dataclass
class Goal:
    """An eigenproblem, without the graph itself."""

    n_samples: int  # rows of the graph
    n_connected: int  # its connected components
    n_components: int  # pairs to return
    tol: float  # see `accepted`
    # The largest eigenvalue of L that the solver has looked at.
    edge: float = field(default=0.0, kw_only=True)
    # Counted by the solver.
    n_products: int = field(default=0, kw_only=True)
    n_iterations: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if self.n_connected - 1 > self.n_components:
            logger.warning(
                "The graph has %d connected components, more than the %d eigenvectors asked for: "
                "they separate only its largest components. Ask for %d, or use more neighbors.",
                self.n_connected, self.n_components, self.n_connected - 1,
            )  # fmt: skip

    @property
    def n_known(self) -> int:
        """Pairs that the null space gives."""
        return min(self.n_components, self.n_connected - 1)

    @property
    def n_missing(self) -> int:
        """Pairs that a solver must find."""
        return self.n_components - self.n_known

    @property
    def n_wanted(self) -> int:
        """Pairs that a solver must find, and a few more to see where groups end."""
        return min(self.n_missing + GUARDS, self.n_samples - self.n_connected)

    def summary(self, eigenvalues: np.ndarray, residuals: np.ndarray) -> dict[str, Any]:
        """Return what `Eigenpairs` say beside vectors, from what is beyond the null space."""
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
        """Return the residuals that are small enough.

        Parameters
        ----------
        eigenvalues : ndarray of shape (n_found,)
            Eigenvalues of L beyond the null space, ascending, `n_missing` of them or more.

        Returns
        -------
        accepted : ndarray of shape (n_found,)
            ``tol`` times the eigenvalue, or what leaves an angle of ``tol`` to the true vector, if
            that is more: few groups have tiny eigenvalues far below all others.
        """
        gaps = np.minimum(_gaps(eigenvalues), 2.0)  # L has none larger; a single one has no gap
        far = self._far(eigenvalues)
        return np.maximum(
            self.tol * eigenvalues, np.minimum(self.tol * far, np.sqrt(self.tol * far * gaps))
        )

    def mixed(self, eigenvalues: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """Return which vectors may not be told apart from those of the nearest eigenvalues.

        The part of a vector beyond all that were computed is at most its residual by the distance
        to them (Davis and Kahan). Within their span it is of second order.
        """
        far = np.maximum(self._far(eigenvalues), _EXACT)
        inside = (residuals**2 / far + _EXACT) / np.maximum(_gaps(eigenvalues), _EXACT)
        by_gap = residuals / np.maximum(_gaps(eigenvalues), _EXACT)
        angles = np.maximum(np.minimum(by_gap, residuals / far), inside)
        return np.asarray(angles > CLEAR_ANGLE)

    def group_widths(self, eigenvalues: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """Return the distances within which eigenvalues are taken for equal ones."""
        return GROUP * np.minimum(residuals, self.tol * eigenvalues) + ROUNDING

    def _far(self, eigenvalues: np.ndarray) -> np.ndarray:
        """Return the distance to the first eigenvalue that is not asked for."""
        beyond = eigenvalues[self.n_missing] if len(eigenvalues) > self.n_missing else self.edge
        return np.abs(beyond - eigenvalues)

    def in_bulk(self, values: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """Return which pairs belong to the bulk and have a residual small enough for it."""
        return np.asarray(
            (values >= BULK_SHARE * self.edge) & (residuals <= BULK_RESIDUAL * values)
        )

    def check(self, eigenvalues: np.ndarray, residuals: np.ndarray) -> None:
        """Raise ConvergenceError if a pair that is not of the bulk has not converged.

        Of those beyond the pairs that were asked for nothing is checked.
        """
        count = self.n_missing
        residuals = residuals[:count]
        accepted = np.maximum(self.accepted(eigenvalues)[:count], ROUNDING)
        done = (residuals <= accepted) | self.in_bulk(eigenvalues[:count], residuals)
        if not done.all():
            shown = ", ".join(f"{value:.1e}" for value in residuals)
            raise ConvergenceError(
                f"spectral: residuals must be at most {accepted.min():.1g} ({self.tol:g} of the "
                f"eigenvalue or its gap). Got {shown}. Raise spectral.tol, or ask for fewer "
                "eigenvectors."
            )


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

    def project(self, x: np.ndarray) -> np.ndarray:
        """Return the part of x in the null space, shape (n_samples,)."""
        shares = np.bincount(self.labels, self.unit * x, len(self.volumes))
        return self.unit * shares[self.labels]

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
        # A sum of float32 weights in their own type would be too coarse.
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
        """Return the solution, its residuals checked, from the smallest eigenpairs of I - S.

        Parameters
        ----------
        eigenvalues : ndarray of shape (n_found,)
            Eigenvalues beyond the null space's, ascending, at least `n_missing`.
        ritz_vectors : ndarray of shape (n_samples, n_found)
            Their orthonormal vectors; overwritten.

        Raises
        ------
        ConvergenceError
            If the residual of a pair that is not of the bulk stays above what is accepted.
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
        Number of the first row, for the message.
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
            f"data whose dot products are not negative. {FROM_0}"
        )


def say_that_a_group_is_cut(value: float, count: int) -> None:
    """Warn that an eigenvalue has more vectors than were looked at."""
    logger.warning(
        "Eigenvalue %.6g of the graph has more than %d vectors: those returned depend on the "
        "solver's start. Ask for fewer eigenvectors, or look for copies in the data.", value, count,
    )  # fmt: skip


def _gaps(eigenvalues: np.ndarray) -> np.ndarray:
    """Return the distance of each of the ascending values to the nearest other one."""
    steps = np.concatenate([[np.inf], np.diff(eigenvalues), [np.inf]])
    return np.minimum(steps[:-1], steps[1:])


def canonical_basis(values: np.ndarray, vectors: np.ndarray, widths: np.ndarray) -> None:
    """Give each group of equal eigenvalues a basis that depends on its span only, in place.

    Parameters
    ----------
    values, widths : ndarray of shape (k,)
        As in `groups`.
    vectors : ndarray of shape (n_samples, k)
        Orthonormal columns; overwritten.

    Notes
    -----
    In this basis rows chosen by pivoting are triangular. The pivot is the row of largest norm
    beyond the earlier ones, the first of several: equal parts of a graph have equal rows.
    """
    for begin, end in groups(values, widths):
        part, turn = vectors[:, begin:end], np.zeros((end - begin, end - begin))
        left = np.einsum("ij,ij->i", part, part)
        for j in range(end - begin):
            add_pivot(turn, j, part[(left >= (1.0 - PIVOT_TIE) * left.max()).argmax()])
            left -= (part @ turn[:, j]) ** 2
        part[:] = part @ turn


def groups(values: np.ndarray, widths: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the bounds of groups of more than one of the ascending values.

    Neighbors belong to one group if they are no farther apart than the larger of their widths.
    """
    apart = np.diff(values) > np.maximum(widths[:-1], widths[1:])
    begins = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(values)]])
    for begin, end in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True):
        if end - begin > 1:
            yield begin, end


def add_pivot(turn: np.ndarray, j: int, row: np.ndarray) -> None:
    """Make column j of a rotation what a row has beyond the columns before it, in place."""
    row = row - turn[:, :j] @ (turn[:, :j].T @ row)
    turn[:, j] = row / np.linalg.norm(row)


def fix_signs(vectors: np.ndarray) -> None:
    """Make the entry of largest magnitude of each column positive, in place.

    Of several such entries the first one counts.
    """
    sizes = np.abs(vectors)
    first = (sizes >= (1.0 - SIGN_TIE) * sizes.max(axis=0)).argmax(axis=0)
    vectors *= np.where(vectors[first, np.arange(len(first))] < 0, -1.0, 1.0)
