"""Columns picked one by one: each pick is projected out of all columns before the next one.

With ``G = X'X`` and ``E`` what is left of X after some picks, the pick ``l`` changes nothing but::

    delta = E'E_l = G_l - sum_r w_r[l] w_r,    w = delta / sqrt(delta_l),    E'E <- E'E - w w'

so that the squared norms of the columns fall by ``w * w``. The paths differ in what they pick.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np

# A column whose squared norm is below this share of its own start is explained by the picks.
_EXPLAINED = 1e-12
# Values this close, as a share of the largest, are equal: the lower index is picked.
_TIE = 1e-9
# Pivots below this share of the first have lost their digits to rounding.
_UNCERTAIN = 1e-13
# The squares of ``E'E`` are computed anew once one has fallen to this share.
_FALLEN = 1e-6
# Rows or columns worked on at a time.
_STRIP = 256


class ColumnProducts(Protocol):
    """Products of the columns of a matrix X of shape (n_rows, n_features), one by one."""

    def norms(self) -> np.ndarray:
        """Return the squared norms of the columns, shape (n_features,)."""

    def column(self, feature: int, worth: np.ndarray) -> np.ndarray:
        """Return the products of all columns with one, shape (n_features,).

        ``worth`` says of every column how likely it is to be asked for soon.
        """


class Products(ColumnProducts, Protocol):
    """All products of the columns."""

    def times(self, w: np.ndarray) -> np.ndarray:
        """Return ``X'X w``."""

    def squares(self) -> np.ndarray:
        """Return the squared norms of the columns of ``X'X``."""

    def deflate(self, W: np.ndarray, picks: list[int]) -> None:
        """Project picks out of X, whose vectors w are the rows of W."""

    def components(self, count: int) -> np.ndarray:
        """Return the leading eigenvectors of ``X'X`` as rows, as many as rounding leaves."""


class GramProducts:
    """Products in memory: ``gram`` of shape (n_features, n_features), modified in place."""

    def __init__(self, gram: np.ndarray) -> None:
        # Rows are read: of a symmetric matrix, take the view where they are contiguous.
        self._gram = gram.T if gram.flags.f_contiguous else gram

    def norms(self) -> np.ndarray:
        """Return the diagonal."""
        return self._gram.diagonal().copy()

    def column(self, feature: int, worth: np.ndarray) -> np.ndarray:
        """Return a row."""
        return self._gram[feature]

    def times(self, w: np.ndarray) -> np.ndarray:
        """Return the product with a vector."""
        return self._gram @ w

    def squares(self) -> np.ndarray:
        """Return the squared norms of the rows."""
        return np.einsum("ij,ij->i", self._gram, self._gram)

    def deflate(self, W: np.ndarray, picks: list[int]) -> None:
        """Subtract ``W'W``."""
        for begin in range(0, len(self._gram), _STRIP):
            self._gram[begin : begin + _STRIP] -= W[:, begin : begin + _STRIP].T @ W

    def components(self, count: int) -> np.ndarray:
        """Return the leading eigenvectors as rows."""
        values, vectors = _leading(self._gram, count)
        return vectors[:, values > _EXPLAINED * values.max(initial=0.0)].T.copy()


class RowProducts:
    """Products of the columns of few rows, ``rows`` of shape (n_rows, n_features)."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows

    def norms(self) -> np.ndarray:
        """Return the squared norms of the columns."""
        return np.einsum("ij,ij->j", self._rows, self._rows)

    def column(self, feature: int, worth: np.ndarray) -> np.ndarray:
        """Return the products with one column."""
        return self._rows[:, feature] @ self._rows

    def times(self, w: np.ndarray) -> np.ndarray:
        """Return the product with a vector."""
        return (self._rows @ w) @ self._rows

    def squares(self) -> np.ndarray:
        """Return ``x_j' (X X') x_j`` of every column."""
        outer = self._rows @ self._rows.T
        norms = np.empty(self._rows.shape[1])
        for begin in range(0, len(norms), _STRIP):
            strip = self._rows[:, begin : begin + _STRIP]
            norms[begin : begin + _STRIP] = np.einsum("ij,ij->j", strip, outer @ strip)
        return norms

    def deflate(self, W: np.ndarray, picks: list[int]) -> None:
        """Subtract the projections on the picked columns."""
        Q = np.linalg.qr(self._rows[:, picks])[0]
        for begin in range(0, self._rows.shape[1], _STRIP):
            strip = self._rows[:, begin : begin + _STRIP]
            strip -= Q @ (Q.T @ strip)

    def components(self, count: int) -> np.ndarray:
        """Return the leading right singular vectors as rows."""
        values, vectors = _leading(self._rows @ self._rows.T, min(count, len(self._rows)))
        kept = values > _EXPLAINED * values.max(initial=0.0)
        return (vectors[:, kept] / np.sqrt(values[kept])).T @ self._rows


def _leading(matrix: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest eigenvalues, descending, and their vectors as columns."""
    from scipy.linalg import eigh

    size = len(matrix)
    values, vectors = eigh(matrix, subset_by_index=[size - count, size - 1])
    return values[::-1], vectors[:, ::-1]


class GreedyPath(ABC):
    """A path to ``n_picks`` columns, or to the last one that the others do not explain.

    Parameters
    ----------
    products : ColumnProducts
        May be changed on the way.
    n_picks : int

    Attributes
    ----------
    start : ndarray of shape (n_features,), float64
        Squared norms of the columns.
    order : list of int
        Picks, best first.
    gains : list of float
        What each added: the value it was picked by.
    left : ndarray of shape (n_features,), float64
        What each column would add to them; 0 for picks and for what they explain.

    Notes
    -----
    The path is nested: one to fewer columns is its beginning. A column is left out once its
    squared norm is 1e-12 of its own start; values within 1e-9 of the largest are ties, which go
    to the lower index. Cost: O(n_features n_picks) a pick, and the products.
    """

    # A pivot below this share of the first ends the path.
    least_pivot = 0.0

    def __init__(self, products: ColumnProducts, n_picks: int) -> None:
        self.products = products
        self.norms = products.norms()
        self.start = self.norms.copy()
        self.live = self.norms > 0
        self._W = np.empty((min(n_picks, len(self.norms)), len(self.norms)))
        # Picks whose vectors are in W, from the last deflation on.
        self._recent: list[int] = []
        self.order: list[int] = []
        self.gains: list[float] = []
        self._prepare()
        first = 0.0
        while len(self.order) < n_picks and self.live.any():
            values = self._worth()
            feature = int((values >= (1 - _TIE) * values.max()).argmax())
            if not values[feature] > 0:
                break
            column = self.products.column(feature, values)
            delta = column - self.W[:, feature] @ self.W
            pivot = float(delta[feature])
            first = first or pivot
            if pivot <= self.least_pivot * first:
                self.live[:] = False
            elif pivot <= _EXPLAINED * self.start[feature]:
                self.live[feature] = False
            else:
                self._pick(feature, delta / np.sqrt(pivot))
        self.left = np.where(self.live, self._worth(), 0.0)

    @property
    def W(self) -> np.ndarray:
        """The vectors w of the recent picks."""
        return self._W[: len(self._recent)]

    def _worth(self) -> np.ndarray:
        """Return the gain of each column, 0 for those that are left out."""
        return np.where(self.live, self._values(np.where(self.live, self.norms, 1.0)), 0.0)

    def _pick(self, feature: int, w: np.ndarray) -> None:
        self.order.append(feature)
        self.gains.append(self._update(feature, w))
        self._W[len(self._recent)] = w
        self._recent.append(feature)
        self.norms -= w * w
        self.live[feature] = False
        self.live &= self.norms > _EXPLAINED * self.start
        self._refresh()

    def _prepare(self) -> None:  # noqa: B027  # most paths have nothing to prepare
        """Initialize the terms of the values."""

    @abstractmethod
    def _values(self, norms: np.ndarray) -> np.ndarray:
        """Return the gain of each column, given squared norms that are not 0."""

    @abstractmethod
    def _update(self, feature: int, w: np.ndarray) -> float:
        """Take a pick into account, before w joins W, and return what it adds."""

    def _refresh(self) -> None:  # noqa: B027  # most paths have nothing to refresh
        """Recompute values that rounding has made inaccurate."""


class VariancePath(GreedyPath):
    """Picks the column that leaves the least of X: largest ``f_j / g_j``.

    ``f_j = |E'E_j|^2``, ``g_j = |E_j|^2``; a gain is the fall of ``|E|_F^2``, which is ``|w|^2``.
    ``f`` follows by recursion. It is quadratic in what is left, so its rounding is computed away
    whenever one value has fallen by 1e-6.
    """

    products: Products

    def _prepare(self) -> None:
        self._f = self.products.squares()
        self._f_start = self._f.copy()

    def _values(self, norms: np.ndarray) -> np.ndarray:
        return np.maximum(self._f, 0.0) / norms

    def _update(self, feature: int, w: np.ndarray) -> float:
        gain = float(w @ w)
        projected = self.products.times(w) - (self.W @ w) @ self.W
        self._f += w * (gain * w - 2.0 * projected)
        return gain

    def _refresh(self) -> None:
        if (self._f < _FALLEN * self._f_start)[self.live].any():
            self.products.deflate(self.W, self._recent)
            self._recent = []
            self._prepare()


class NormPath(GreedyPath):
    """Picks the column of largest residual norm: QR with column pivoting.

    A gain is the squared norm, the square of R's diagonal entry. The path ends at pivots of 1e-13
    of the first, where the order is that of rounding.
    """

    least_pivot = _UNCERTAIN

    def _values(self, norms: np.ndarray) -> np.ndarray:
        return norms

    def _update(self, feature: int, w: np.ndarray) -> float:
        return float(w[feature] ** 2)


class TargetPath(GreedyPath):
    """Picks the column that explains most of all targets: largest ``|E_j'R|^2 / g_j``.

    R are the residuals of the targets Y on the picks, and ``cross`` is ``X'Y``, shape (n_features,
    n_targets), which is changed. A gain is the fall of ``|R|_F^2``.
    """

    def __init__(self, products: ColumnProducts, n_picks: int, cross: np.ndarray) -> None:
        self._cross = cross
        super().__init__(products, n_picks)

    def _values(self, norms: np.ndarray) -> np.ndarray:
        return np.einsum("jk,jk->j", self._cross, self._cross) / norms

    def _update(self, feature: int, w: np.ndarray) -> float:
        share = self._cross[feature] / w[feature]
        self._cross -= np.multiply.outer(w, share)
        return float(share @ share)

    def coefficients(self, cross: np.ndarray) -> np.ndarray:
        """Return the least squares coefficients of all targets on the picks.

        Parameters
        ----------
        cross : ndarray of shape (n_features, n_targets)
            ``X'Y`` as it was before the path.

        Returns
        -------
        coef : ndarray of shape (n_picks, n_targets)
        """
        from scipy.linalg import solve_triangular

        if not self.order:
            return np.empty((0, cross.shape[1]))
        # The vectors w at the picks are the Cholesky factor of their Gram matrix, transposed.
        factor = self.W[:, self.order]
        return solve_triangular(factor, solve_triangular(factor, cross[self.order], trans=1))


def explained_by(columns: np.ndarray, order: list[int]) -> np.ndarray:
    """Return the variance of all columns that each of some explains beyond those before it.

    Parameters
    ----------
    columns : ndarray of shape (n_features, n_picks), float64
        ``X'X_S``.
    order : list of n_picks ints
        S.

    Returns
    -------
    gains : ndarray of shape (n_picks,)
        Falls of ``|X - P X|_F^2``.
    """
    W = np.zeros((len(order), len(columns)))
    for i, feature in enumerate(order):
        delta = columns[:, i] - W[:i, feature] @ W[:i]
        if delta[feature] > 0:
            W[i] = delta / np.sqrt(delta[feature])
    return np.einsum("ij,ij->i", W, W)
