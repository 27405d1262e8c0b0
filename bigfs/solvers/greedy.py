"""Greedy selection of columns: each pick is projected out of all columns before the next one.

With ``G = X'X`` and ``E`` the residual of X after some picks, the update for a pick ``l`` is::

    delta = E'E_l = G_l - sum_r w_r[l] w_r,    w = delta / sqrt(delta_l),    E'E <- E'E - w w'

so that the squared norms of the columns decrease by ``w * w``. The paths differ in their criterion.
``delta`` is computed by one matrix product for many candidates at a time, those with the highest
values. For a pick among the candidates, it is updated for the picks made since. A pick that is not
a candidate triggers the next batch. Apart from rounding, no path depends on the number of
candidates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from bigfs.solvers.sparserows import SparseRows

# A column whose squared norm is below this share of its initial value is explained by the picks.
_EXPLAINED = 1e-12
# Values within this share of the largest are ties: the lower index is picked. All norms may be
# equal, as for standardized columns; in float32 they then differ only by rounding.
_TIE, _NORM_TIE = 1e-9, 2.0**-21
# Squared pivots below this share of the first are dominated by rounding errors.
_UNCERTAIN = 1e-13
# The squared norm of a column of ``E'E`` is recomputed once it has fallen to this share.
_FALLEN = 1e-6
# Number of candidates that are fetched together, and of those that are held.
FETCHED, HELD = 32, 128
# Upper bound of the number of picks made among the candidates before all columns are checked.
_GROUP = 32
# Rows or columns processed at a time.
_STRIP = 256


class Picked(NamedTuple):
    """Picks and their vectors w, which are the first rows of ``room``."""

    order: list[int]
    room: np.ndarray  # of shape (n_picks, n_features): space for the vectors of all picks to come

    @property
    def W(self) -> np.ndarray:
        """The vectors w of the picks so far."""
        return self.room[: len(self.order)]


class ColumnProducts(Protocol):
    """Products of the columns of a matrix X of shape (n_rows, n_features), some at a time."""

    @property
    def fetched(self) -> int:
        """Number of candidates that are fetched together: many if that is a pass over the data."""

    @property
    def held(self) -> int:
        """Number of candidates that are held; at least twice ``fetched`` are held in any case."""

    def norms(self) -> np.ndarray:
        """Return the squared norms of the columns, shape (n_features,)."""

    def left(self, features: np.ndarray, picked: Picked) -> np.ndarray:
        """Return the given rows of ``E'E`` after the picks, shape (len(features), n_features)."""


class GramProducts:
    """Products from a Gram matrix in memory, of shape (n_features, n_features)."""

    fetched, held = FETCHED, HELD

    def __init__(self, gram: np.ndarray) -> None:
        # Rows are read, and the matrix is symmetric: use the view in which rows are contiguous.
        self._gram = gram.T if gram.flags.f_contiguous else gram

    def norms(self) -> np.ndarray:
        """Return the squared norms of the columns, the diagonal."""
        return self._gram.diagonal().copy()

    def left(self, features: np.ndarray, picked: Picked) -> np.ndarray:
        """Return the given rows of ``X'X - W'W``."""
        return less_picks(self._gram[features], features, picked)

    def left_times(self, V: np.ndarray, picked: Picked) -> np.ndarray:
        """Return ``V E'E`` after the picks, for V of shape (any, n_features)."""
        products = V @ self._gram
        products -= (V @ picked.W.T) @ picked.W
        return products

    def squares(self) -> np.ndarray:
        """Return the squared norms of the columns of ``X'X``."""
        return np.einsum("ij,ij->i", self._gram, self._gram)

    def components(self, count: int) -> np.ndarray:
        """Return the leading eigenvectors of ``X'X`` as rows, only those above rounding errors."""
        values, vectors = _leading(self._gram, count)
        return vectors[:, values > _EXPLAINED * values.max(initial=0.0)].T.copy()


def less_picks(columns: np.ndarray, features: np.ndarray, picked: Picked) -> np.ndarray:
    """Return rows of ``X'X - W'W``, given those of ``X'X``, which are overwritten."""
    columns -= picked.W[:, features].T @ picked.W
    return columns


class RowProducts:
    """Products of the columns of few rows, ``rows`` of shape (n_rows, n_features).

    If a column is shorter than its products with all columns, the picks are projected out of the
    column itself: ``E = X - Q'W``, with an orthonormal row of Q for each pick. Since Q is stored,
    an instance can be used for one path only.
    """

    fetched, held = FETCHED, HELD

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self._Q, self._n_known = np.empty((0, rows.shape[0])), 0

    def norms(self) -> np.ndarray:
        """Return the squared norms of the columns."""
        return np.einsum("ij,ij->j", self._rows, self._rows)

    def left(self, features: np.ndarray, picked: Picked) -> np.ndarray:
        """Return ``E_S'X`` after the picks, where S are the given features."""
        if self._is_tall(picked):
            return less_picks(self._times(self._columns(features)), features, picked)
        return self._times(self._left_columns(features, picked))

    def left_times(self, V: np.ndarray, picked: Picked) -> np.ndarray:
        """Return ``V X'(I - Q'Q) X``."""
        inner = self._transposed_times(V)
        if self._is_tall(picked):
            return self._times(inner) - (V @ picked.W.T) @ picked.W
        self._left_columns(np.empty(0, dtype=np.int64), picked)
        Q = self._Q[: len(picked.order)]
        inner -= (inner @ Q.T) @ Q
        return self._times(inner)

    def _is_tall(self, picked: Picked) -> bool:
        """Return True if a column is at least as long as its products with all columns."""
        return self._Q.shape[1] >= picked.room.shape[1]

    def _left_columns(self, features: np.ndarray, picked: Picked) -> np.ndarray:
        """Return the given columns of E as rows, after adding the new picks to Q."""
        W, known, n_picks = picked.W, self._n_known, len(picked.order)
        if not known:
            self._Q = np.empty((len(picked.room), self._Q.shape[1]))
        fresh = np.array(picked.order[known:], dtype=np.int64)
        both = np.concatenate([fresh, features])
        left = self._columns(both)
        left -= W[:known, both].T @ self._Q[:known]
        if len(fresh):  # the columns of W at its own picks form a triangular matrix
            self._Q[known:n_picks] = np.linalg.inv(W[known:, fresh]).T @ left[: len(fresh)]
            left = left[len(fresh) :]
            left -= W[known:, features].T @ self._Q[known:n_picks]
            self._n_known = n_picks
        return left

    def _columns(self, features: np.ndarray) -> np.ndarray:
        """Return the given columns of X as rows."""
        return np.asarray(self._rows[:, features].T)

    def _times(self, V: np.ndarray) -> np.ndarray:
        """Return ``V X``."""
        return np.asarray(V @ self._rows)

    def _transposed_times(self, V: np.ndarray) -> np.ndarray:
        """Return ``V X'``."""
        return np.asarray(V @ self._rows.T)

    def squares(self) -> np.ndarray:
        """Return ``x_j' (X X') x_j`` of every column."""
        outer = self._outer()
        norms = np.empty(self._rows.shape[1])
        for begin in range(0, len(norms), _STRIP):
            strip = self._rows[:, begin : begin + _STRIP]
            norms[begin : begin + _STRIP] = np.einsum("ij,ij->j", strip, outer @ strip)
        return norms

    def components(self, count: int) -> np.ndarray:
        """Return the leading right singular vectors as rows."""
        values, vectors = _leading(self._outer(), min(count, self._rows.shape[0]))
        kept = values > _EXPLAINED * values.max(initial=0.0)
        return np.ascontiguousarray(self._times((vectors[:, kept] / np.sqrt(values[kept])).T))

    def _outer(self) -> np.ndarray:
        """Return the products of all pairs of rows."""
        return np.asarray(self._rows @ self._rows.T)


class SparseRowProducts(RowProducts):
    """Products of the columns of few rows that are mostly zeros."""

    def __init__(self, rows: SparseRows, norms: np.ndarray | None = None) -> None:
        super().__init__(rows)
        self._norms = norms  # 0 for columns to be left out

    def norms(self) -> np.ndarray:
        """Return the squared norms of the columns."""
        return self._rows.squares() if self._norms is None else self._norms.copy()

    def _columns(self, features: np.ndarray) -> np.ndarray:
        return self._rows.columns(features).T

    def _times(self, V: np.ndarray) -> np.ndarray:
        return self._rows.transposed_times(V.T).T

    def _transposed_times(self, V: np.ndarray) -> np.ndarray:
        return self._rows.times(V.T).T

    def squares(self) -> np.ndarray:
        """Return ``x_j' (X X') x_j`` of every column."""
        return self._rows.product_squares()

    def _outer(self) -> np.ndarray:
        return self._rows.products(np.ones(self._rows.shape[1]))


# Products that also provide `left_times`, `squares` and `components`.
Products: TypeAlias = GramProducts | RowProducts


def _leading(matrix: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``count`` largest eigenvalues, descending, and their eigenvectors as columns."""
    from scipy.linalg import eigh

    size = len(matrix)
    values, vectors = eigh(matrix, subset_by_index=[size - count, size - 1])
    return values[::-1], vectors[:, ::-1]


def candidates_bytes(n_features: int, fetched: int = FETCHED) -> int:
    """Return the bytes of the candidates' columns, of those fetched, and of a group's picks."""
    held = min(max(HELD, 2 * fetched), n_features)
    return 8 * n_features * (2 * held + 3 * min(fetched, n_features) + 2 * _GROUP)


class GreedyPath(ABC):
    """A path of at most ``n_picks`` columns, which ends when the picks explain all others.

    Parameters
    ----------
    products : ColumnProducts
    n_picks : int

    Attributes
    ----------
    start : ndarray of shape (n_features,), float64
        Squared norms of the columns.
    order : list of int
        Picks, best first.
    gains : list of float
        Gain of each pick: the value by which it was picked.
    left : ndarray of shape (n_features,), float64
        Gain that each column would add to the picks; 0 for picks and for columns they explain.

    Notes
    -----
    The path is nested: a path with fewer columns is its beginning. A column is left out once its
    squared norm is at most 1e-12 of its initial value; values within `tie` of the largest are
    ties, which go to the lower index. Cost: about ``n_features n_picks^2`` multiplications in
    matrix products, ``n_features`` operations per pick otherwise, and the products of the
    candidates.
    """

    # A pivot below this share of the first ends the path.
    least_pivot = 0.0
    tie = _TIE

    def __init__(self, products: ColumnProducts, n_picks: int) -> None:
        self.products = products
        self.norms = products.norms()
        self.start = self.norms.copy()
        self.live = self.norms > 0
        self.order: list[int] = []
        self.picked = Picked(self.order, np.empty((min(n_picks, len(self.norms)), len(self.norms))))
        # The candidates in ascending order, the positions of their columns in `_columns`, and these
        # columns, which are those of E'E after the first `_base` picks.
        self._held, self._places = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        n_columns = min(max(products.held, 2 * products.fetched), len(self.norms))
        self._columns = np.zeros((n_columns, len(self.norms)))
        self._base = 0
        self.gains: list[float] = []
        self._prepare()
        while len(self.order) < n_picks and self.live.any():
            values = self._worth()
            feature = _best(values, self.tie)
            if not values[feature] > 0:
                break
            self._advance(feature, values, n_picks - len(self.order))
        self.left = np.where(self.live, self._worth(), 0.0)

    @property
    def W(self) -> np.ndarray:
        """The vectors w of the picks."""
        return self.picked.W

    def _worth(self) -> np.ndarray:
        """Return the gain of each column; 0 for those that are left out."""
        return np.where(self.live, self._values(np.where(self.live, self.norms, 1.0)), 0.0)

    def _advance(self, feature: int, values: np.ndarray, most: int) -> None:
        """Pick the feature, or leave it out if the picks explain it.

        ``most`` is the number of picks that are left; subclasses may make several.
        """
        w = self._vector(feature, values)
        if w is not None:
            self._pick(feature, w, self._update(feature, w))

    def _vector(self, feature: int, values: np.ndarray) -> np.ndarray | None:
        """Return w of a column; None if the column is left out from here on."""
        if feature not in self._held:
            self._fetch(feature, values)
        delta = self._since(self.W[self._base :], feature)
        pivot = float(delta[feature])
        first = self.picked.room[0, self.order[0]] ** 2 if self.order else pivot
        if pivot <= self.least_pivot * first:
            self.live[:] = False
        elif pivot <= _EXPLAINED * self.start[feature]:
            self.live[feature] = False
        else:
            return delta / np.sqrt(pivot)
        return None

    def _since(self, W: np.ndarray, feature: int) -> np.ndarray:
        """Return a candidate's column of ``E'E`` after the picks W that followed the base."""
        column = self._columns[self._places[np.searchsorted(self._held, feature)]]
        return np.asarray(column - W[:, feature] @ W)

    def _fetch(self, feature: int, values: np.ndarray) -> None:
        """Fetch a column and those with the highest values; discard those with the lowest."""
        from scipy.linalg.blas import dgemm

        W, held = self.W[self._base :], self._held
        by_worth = np.argsort(-values, kind="stable")
        by_worth = by_worth[values[by_worth] > 0]
        # The feature itself is among the first, unless there are more ties than are fetched.
        is_held = np.isin(by_worth, held, assume_unique=True)
        most, n_held = self.products.fetched, self.products.held
        fresh = np.union1d(by_worth[~is_held][: most - 1], [feature])
        kept = np.searchsorted(held, np.sort(by_worth[is_held][: max(n_held - most, most)]))
        if len(W) and len(kept):  # update all columns in place: copying the kept ones costs as much
            of_places = np.zeros((len(W), len(self._columns)), order="F")
            of_places[:, self._places] = W[:, held]
            dgemm(-1.0, W.T, of_places, beta=1.0, c=self._columns.T, overwrite_c=1)
        free = np.setdiff1d(np.arange(len(self._columns)), self._places[kept])[: len(fresh)]
        self._columns[free] = self.products.left(fresh, self.picked)
        self._held, self._base = np.concatenate([held[kept], fresh]), len(self.order)
        order = np.argsort(self._held)
        self._places = np.concatenate([self._places[kept], free])[order]
        self._held = self._held[order]

    def _pick(self, feature: int, w: np.ndarray, gain: float) -> None:
        self.picked.room[len(self.order)] = w
        self.order.append(feature)
        self.gains.append(gain)
        self.norms -= w * w
        self.live[feature] = False
        self.live &= self.norms > _EXPLAINED * self.start

    def _prepare(self) -> None:  # noqa: B027  # most paths have nothing to prepare
        """Initialize the terms from which the values are computed."""

    @abstractmethod
    def _values(self, norms: np.ndarray) -> np.ndarray:
        """Return the gain of each column, given nonzero squared norms."""

    @abstractmethod
    def _update(self, feature: int, w: np.ndarray) -> float:
        """Update the terms for a pick, before w is added to W, and return its gain."""


def _best(values: np.ndarray, tie: float = _TIE) -> int:
    """Return the index of the largest value; ties go to the lowest index."""
    return int((values >= (1 - tie) * values.max()).argmax())


class VariancePath(GreedyPath):
    """Picks the column that leaves the smallest residual of X: the largest ``f_j / g_j``.

    ``f_j = |E'E_j|^2``, ``g_j = |E_j|^2``; a gain is the decrease of ``|E|_F^2``, which is
    ``|w|^2``. ``f`` is updated by a recursion that needs ``E'E w``. For the candidates this follows
    directly from their columns, so that a group of picks is made among them. One product then gives
    it for all columns, and the group is accepted up to the first pick that another column would
    have beaten. The recursion loses accuracy quadratically with the residual: a value that has
    fallen to 1e-6 of its former value is recomputed.
    """

    products: Products

    def _prepare(self) -> None:
        self._f = self.products.squares()
        self._f_start = self._f.copy()

    def _values(self, norms: np.ndarray) -> np.ndarray:
        return np.maximum(self._f, 0.0) / norms

    def _advance(self, feature: int, values: np.ndarray, most: int) -> None:
        picks, W = self._among_candidates(feature, values, min(most, _GROUP))
        if not picks:
            return
        products = self.products.left_times(W, self.picked)
        for i, (pick, w) in enumerate(zip(picks, W, strict=True)):
            if i and (self._fallen().any() or _best(self._worth()) != pick):
                break
            products[i] -= (w @ W[:i].T) @ W[:i]
            self._projected = products[i]
            self._pick(pick, w, self._update(pick, w))
        self._refresh()

    def _among_candidates(
        self, feature: int, values: np.ndarray, most: int
    ) -> tuple[list[int], np.ndarray]:
        """Return at most ``most`` picks among the candidates, the given one first, and their w."""
        w = self._vector(feature, values)
        if w is None:
            return [], np.empty((0, len(values)))
        held, before = self._held, self.W[self._base :]
        f, norms, live = self._f[held], self.norms[held], self.live[held]
        others = values.copy()
        others[held] = 0.0
        bound = others.max()
        picks, W = [feature], np.empty((most, len(values)))
        W[0] = w
        while True:
            i = len(picks)
            w = W[i - 1]
            gain = float(w @ w)
            # E'E w at the candidates, from their columns at the base and the picks made since.
            projected = (self._columns @ w)[self._places] - (before @ w) @ before[:, held]
            projected -= (W[: i - 1] @ w) @ W[: i - 1, held]
            f += w[held] * (gain * w[held] - 2.0 * projected)
            norms -= w[held] ** 2
            live &= (norms > _EXPLAINED * self.start[held]) & (held != picks[-1])
            worth = np.where(live, np.maximum(f, 0.0) / np.where(live, norms, 1.0), 0.0)
            best = _best(worth)
            if i == most or not worth[best] > bound:
                return picks, W[:i]
            pick = int(held[best])
            delta = self._since(before, pick) - W[:i, pick] @ W[:i]
            if delta[pick] <= _EXPLAINED * self.start[pick]:
                return picks, W[:i]
            W[i] = delta / np.sqrt(delta[pick])
            picks.append(pick)

    def _update(self, feature: int, w: np.ndarray) -> float:
        gain = float(w @ w)
        self._f += w * (gain * w - 2.0 * self._projected)
        return gain

    def _fallen(self) -> np.ndarray:
        return np.asarray(self.live & (self._f < _FALLEN * self._f_start))

    def _refresh(self) -> None:
        """Recompute the values of f that have fallen so far that rounding errors matter."""
        fallen = np.flatnonzero(self._fallen())
        for begin in range(0, len(fallen), FETCHED):
            part = fallen[begin : begin + FETCHED]
            left = self.products.left(part, self.picked)
            self._f[part] = self._f_start[part] = np.einsum("ij,ij->i", left, left)


class NormPath(GreedyPath):
    """Picks the column of largest residual norm: QR with column pivoting.

    A gain is the squared norm, which is the square of R's diagonal entry. The path ends at a
    squared pivot of 1e-13 of the first, below which rounding errors would determine the order.
    """

    least_pivot, tie = _UNCERTAIN, _NORM_TIE

    def _values(self, norms: np.ndarray) -> np.ndarray:
        return norms

    def _update(self, feature: int, w: np.ndarray) -> float:
        return float(w[feature] ** 2)


class TargetPath(GreedyPath):
    """Picks the column that explains most of all targets: the largest ``|E_j'R|^2 / g_j``.

    R are the residuals of the targets Y after regression on the picks, and ``cross`` is ``X'Y``,
    of shape (n_features, n_targets). A gain is the decrease of ``|R|_F^2``.
    """

    def __init__(self, products: ColumnProducts, n_picks: int, cross: np.ndarray) -> None:
        self._cross = np.array(cross, dtype=np.float64, order="C")  # changed in place
        super().__init__(products, n_picks)

    def _values(self, norms: np.ndarray) -> np.ndarray:
        return np.einsum("jk,jk->j", self._cross, self._cross) / norms

    def _update(self, feature: int, w: np.ndarray) -> float:
        from scipy.linalg.blas import dger

        share = self._cross[feature] / w[feature]
        dger(-1.0, share, w, a=self._cross.T, overwrite_a=1)  # cross - w share', in place
        return float(share @ share)

    def coefficients(self, cross: np.ndarray) -> np.ndarray:
        """Return the least squares coefficients of all targets on the picks.

        Parameters
        ----------
        cross : ndarray of shape (n_features, n_targets)
            ``X'Y`` as passed to the path, before any pick.

        Returns
        -------
        coef : ndarray of shape (n_picks, n_targets)
        """
        from scipy.linalg import solve_triangular

        if not self.order:
            return np.empty((0, cross.shape[1]))
        # The vectors w at the picks form the transposed Cholesky factor of the picks' Gram matrix.
        factor = self.W[:, self.order]
        return solve_triangular(factor, solve_triangular(factor, cross[self.order], trans=1))
