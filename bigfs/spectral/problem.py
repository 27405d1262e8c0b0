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

from bigfs.core.checks import check_count
from bigfs.core.errors import ConvergenceError, InputError
from bigfs.core.text import FROM_0
from bigfs.runtime.progress import say_where
from bigfs.spectral.components import NullSpace, canonical_basis, fix_signs, null_space

logger = logging.getLogger("bigfs")

# Vectors computed beyond those asked for, to see whether the cut falls inside a group.
GUARDS = 2
# Eigenvalues within this share of the tolerance are one group: turning it costs a residual of
# half of that, for which the solvers leave room.
GROUP = 0.1
# A pair belongs to the bulk of the spectrum where its eigenvalue is at least this share of the
# largest one that was looked at: no gap sets it apart from those beyond, and no method needs it
# more exactly than to this share of its eigenvalue.
BULK_SHARE = 0.5
BULK_RESIDUAL = 0.05
# Rows of n-row arrays handled at a time where a copy in float64 is needed.
TILE_ROWS = 4096


@dataclass(frozen=True)
class Eigenpairs:
    """Solution of the generalized problem without its trivial pair."""

    eigenvalues: np.ndarray  # of shape (n_components,), float64: ascending
    # Of shape (n_samples, n_components), float64: with unit D-norm, ``y'Dy = 1``; the entry of
    # largest magnitude is positive.
    vectors: np.ndarray
    # Of shape (n_components,), float64: ``|S u - (1 - lambda) u|`` with ``u = D^1/2 y``; above the
    # tolerance for pairs of the bulk that were left as they are.
    residuals: np.ndarray
    edge: float  # the largest eigenvalue that was looked at, beyond those asked for
    n_connected_components: int
    n_products: int  # products of W with one vector; a block of b vectors counts b times
    n_iterations: int  # rounds of the solver; 0 where a dense one, or none, was needed
    # Of shape (n_samples, n_guards), float32, or None: vectors that follow, less exact, to begin
    # with when rows are added.
    guards: np.ndarray | None = None


@dataclass
class Goal:
    """An eigenproblem, without the graph itself."""

    n_samples: int  # rows of the graph
    n_connected: int  # its connected components
    n_components: int  # pairs to return
    tol: float  # largest residual accepted
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

    def eigenvalues(self, mu: np.ndarray) -> np.ndarray:
        """Return the eigenvalues of Ln, ascending, from those of S beyond the null space's."""
        values = np.concatenate([np.zeros(self.n_known), 1.0 - mu[: self.n_missing]])
        return np.maximum(values, 0.0)

    def in_bulk(self, values: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """Return which pairs belong to the bulk and have a residual small enough for it."""
        return np.asarray(
            (values >= BULK_SHARE * self.edge) & (residuals <= BULK_RESIDUAL * values)
        )

    def check(self, values: np.ndarray, residuals: np.ndarray) -> None:
        """Raise ConvergenceError if a pair that is not of the bulk has not converged."""
        done = (residuals <= self.tol) | self.in_bulk(values, residuals)
        if not done.all():
            raise not_converged(residuals, self.tol)


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
        check_n_components(n_components, n_samples)
        W = W.tocsr() if issparse(W) else W
        # A sum of float32 weights in their own type would be too coarse.
        degrees = np.asarray(W @ np.ones(n_samples))
        check_rows(W.indptr, W.data, degrees, np.arange(n_samples))
        null = null_space(W, degrees)
        return cls(
            n_samples, null.n_components, n_components, tol, W=W, root=np.sqrt(degrees), null=null
        )

    def scaled(self) -> Any:
        """Return S as scipy CSR, float64."""
        from scipy.sparse import csr_matrix

        scaled = csr_matrix(self.W, dtype=np.float64, copy=True)
        scaled.data /= np.repeat(self.root, np.diff(scaled.indptr))
        scaled.data /= self.root[scaled.indices]
        return scaled

    def finish(self, mu: np.ndarray, ritz_vectors: np.ndarray) -> Eigenpairs:
        """Return the solution, its residuals checked, from the largest eigenpairs of S.

        Parameters
        ----------
        mu : ndarray of shape (n_found,)
            Eigenvalues of S beyond the null space's ones, descending, at least `n_missing`.
        ritz_vectors : ndarray of shape (n_samples, n_found)
            Their orthonormal vectors; overwritten.

        Raises
        ------
        ConvergenceError
            If the residual of a pair that is not of the bulk stays above ``tol``.
        """
        known, missing = self.n_known, self.n_missing
        canonical_basis(mu, ritz_vectors, GROUP * self.tol)
        values, vectors = self.eigenvalues(mu), ritz_vectors[:, :missing]
        if known:
            vectors = np.hstack([self.null.contrasts(known), vectors])
        vectors /= self.root[:, None]
        fix_signs(vectors)
        residuals = self._residuals(values, vectors)
        self.edge = max(self.edge, values.max(), 1.0 - mu.min(initial=1.0))
        say_where(f"largest residual {residuals.max(initial=0.0):.1e}")
        self.check(values, residuals)
        return Eigenpairs(
            eigenvalues=values,
            vectors=vectors,
            residuals=residuals,
            edge=float(self.edge),
            n_connected_components=self.null.n_components,
            n_products=self.n_products,
            n_iterations=self.n_iterations,
        )

    def _residuals(self, values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Return ``|D^-1/2 W y - (1 - lambda) D^1/2 y|`` of each vector."""
        squares = np.zeros(len(values))
        for start, stop in tiles(self.n_samples):
            root = self.root[start:stop, None]
            part = (self.W[start:stop] @ vectors) / root
            part -= (1.0 - values) * root * vectors[start:stop]
            squares += np.einsum("ij,ij->j", part, part)
        return np.sqrt(squares)


def tiles(n_rows: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of consecutive groups of TILE_ROWS rows."""
    for start in range(0, n_rows, TILE_ROWS):
        yield start, min(start + TILE_ROWS, n_rows)


def check_n_components(n_components: int, n_samples: int) -> None:
    """Raise InputError if a graph has not so many pairs."""
    reason = f"since the graph has {n_samples} rows"
    check_count("n_components", n_components, n_samples - 1, reason)


def check_rows(
    indptr: np.ndarray, weights: np.ndarray, degrees: np.ndarray, rows: np.ndarray
) -> None:
    """Raise InputError if a weight is negative or a degree is not positive.

    Parameters
    ----------
    indptr : ndarray of shape (n_rows + 1,)
    weights : ndarray of shape (n_entries,)
    degrees : ndarray of shape (n_rows,)
    rows : ndarray of shape (n_rows,)
        Their numbers, for the message.
    """
    if not (degrees > 0).all():
        bad = int((~(degrees > 0)).argmax())
        raise InputError(
            f"row {rows[bad]} of the graph has degree {degrees[bad]:g}; degrees must be positive. "
            f"Use binary weights or a wider heat kernel. {FROM_0}"
        )
    if len(weights) and weights.min() < 0:
        place = int((weights < 0).argmax())
        bad = int(np.searchsorted(indptr, place, side="right")) - 1
        raise InputError(
            f"row {rows[bad]} of the graph has a negative weight, {weights[place]:g}: the "
            "eigenvalues of its Laplacian could be negative. Use weight 'binary' or 'heat', or "
            f"data whose dot products are not negative. {FROM_0}"
        )


def not_converged(residuals: np.ndarray, tol: float) -> ConvergenceError:
    """Return the error that names the residuals."""
    shown = ", ".join(f"{value:.1e}" for value in residuals)
    return ConvergenceError(
        f"spectral: residuals must be at most {tol:g}. Got {shown}. Raise spectral.tol, or ask "
        "for fewer eigenvectors."
    )
