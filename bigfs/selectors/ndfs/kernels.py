"""Kernels of NDFS on one row block: pure functions on arrays; imports no scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.blocks.kernels import tile_rows

# Entries below this are taken for zero: their products would underflow.
_FLUSH = 1e-30
# The printed denominator can be negative; clamped, an entry grows at most this much at once.
_GROWTH = 10.0


@dataclass(frozen=True)
class Update:
    """One of the multiplicative updates with its parameters."""

    kind: str  # one of "safe", "printed"
    alpha: float
    gamma: float

    def apply(self, F: np.ndarray, SF: np.ndarray, HF: np.ndarray, ftf: np.ndarray) -> np.ndarray:
        """Return the next F of some rows, not normalized.

        Parameters
        ----------
        F, SF, HF : ndarray of shape (rows, n_clusters), float64
            The rows of F, of ``D^-1/2 W D^-1/2 F`` and of ``X (X'X + beta Delta)^-1 X'F``.
        ftf : ndarray of shape (n_clusters, n_clusters)
            ``F'F`` of all rows.
        """
        above = self.gamma * F
        below = self.gamma * (F @ ftf)
        if self.kind == "printed":  # eq. (15), MF = F - SF + alpha (F - HF)
            below += (1 + self.alpha) * F - SF - self.alpha * HF
            np.maximum(below, above / _GROWTH, out=below)
        else:
            positive = np.maximum(HF, 0)
            above += SF + self.alpha * positive
            below += (1 + self.alpha) * F + self.alpha * (positive - HF)
        ratio = np.divide(above, below, out=np.zeros_like(F), where=below > 0)
        if self.kind == "safe":
            np.sqrt(np.sqrt(ratio, out=ratio), out=ratio)
        ratio *= F
        ratio[ratio < _FLUSH] = 0
        return ratio


@dataclass
class FactorSums:
    """Sums of one pass; two of them add up."""

    # Of shape (n_features + 1, n_clusters), float64: ``X'F`` of the new F; the last row has the
    # sums of its columns.
    xtf: np.ndarray
    ftf: np.ndarray  # of shape (n_clusters, n_clusters), float64: ``F'F`` of the new F
    overlap: np.ndarray  # of shape (n_clusters,), float64: products of the new and the old columns
    smoothness: float  # ``tr(F'LF)`` of the old F


def merge_sums(a: FactorSums, b: FactorSums) -> FactorSums:
    """Add the second to the first, in its memory."""
    a.xtf += b.xtf
    a.ftf += b.ftf
    a.overlap += b.overlap
    a.smoothness += b.smoothness
    return a


def block_step(
    X: np.ndarray, F: np.ndarray, SF: np.ndarray, coef: np.ndarray, ftf: np.ndarray, update: Update
) -> tuple[np.ndarray, FactorSums]:
    """Return the next F of a row block and its share of the sums, reading X once.

    Parameters
    ----------
    X : ndarray or csr_array of shape (rows, n_features), float32 or float64
    F, SF : ndarray of shape (rows, n_clusters), float64
    coef : ndarray of shape (n_features + 1, n_clusters), float64
        ``(X'X + beta Delta)^-1 X'F``; the last row is the intercept.
    ftf : ndarray of shape (n_clusters, n_clusters), float64
    update : Update
    """
    if hasattr(X, "indptr"):
        return _sparse_step(X.astype(np.float64), F, SF, coef, ftf, update)
    after = np.empty_like(F)
    xtf = np.zeros(coef.shape)
    coef, intercept = coef[:-1], coef[-1]
    step = tile_rows(X.shape[1])
    for begin in range(0, len(X), step):
        part = slice(begin, begin + step)
        tile = X[part].astype(np.float64, copy=False)
        after[part] = update.apply(F[part], SF[part], tile @ coef + intercept, ftf)
        xtf[:-1] += tile.T @ after[part]
    xtf[-1] = after.sum(axis=0)
    return after, FactorSums(
        xtf, after.T @ after, np.einsum("ij,ij->j", after, F), smoothness(F, SF)
    )


def _sparse_step(
    X: Any, F: np.ndarray, SF: np.ndarray, coef: np.ndarray, ftf: np.ndarray, update: Update
) -> tuple[np.ndarray, FactorSums]:
    """Do the step on a CSR block of float64."""
    after = update.apply(F, SF, X @ coef[:-1] + coef[-1], ftf)
    xtf = with_sums(X.T @ after, after.sum(axis=0))
    overlap = np.einsum("ij,ij->j", after, F)
    return after, FactorSums(xtf, after.T @ after, overlap, smoothness(F, SF))


def with_sums(xtf: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Return ``X'F`` with the sums of F's columns as its last row."""
    return np.vstack([xtf, sums])


def smoothness(F: np.ndarray, SF: np.ndarray) -> float:
    """Return the rows' share of ``tr(F'LF)``, with ``L = I - D^-1/2 W D^-1/2``."""
    return float(np.einsum("ij,ij->", F, F - SF))


def inverse_norms(squares: np.ndarray) -> np.ndarray:
    """Return ``1 / sqrt(squares)``, and 1 for an emptied cluster."""
    return 1 / np.sqrt(np.where(squares > 0, squares, 1.0))


def indicators(labels: np.ndarray, n_clusters: int) -> np.ndarray:
    """Return the start made of labels: indicators plus 0.2, shape (n_samples, n_clusters)."""
    F = np.full((len(labels), n_clusters), 0.2)
    F[np.arange(len(labels)), labels] += 1.0
    return F
