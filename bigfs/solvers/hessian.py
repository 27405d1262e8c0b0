"""The inverse of what a step of the interior-point method leaves for V, on the rows of a program.

    H = (diag(stiff) + S) x I - U U'

with V of shape (d, P): the same d x d matrix for every column, and a column of U for every feature,
which ties the columns of V. The rows N of a program need ``N H^-1 N'``, and a step is
``H^-1 (V + x N)`` with an x that follows from ``N H^-1 V``: that takes what the products are of.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs, dtrtrs

# Rows of many columns, rows of one, and which column that is.
_Split = tuple[np.ndarray, np.ndarray, np.ndarray]
_Begun = tuple[np.ndarray, np.ndarray]


class Inverse(Protocol):
    """The inverse of H, applied to the rows."""

    products: np.ndarray  # of shape (n_rows, n_rows), float64: ``N H^-1 N'``

    def begin(self, V: np.ndarray) -> tuple[_Begun, np.ndarray]:
        """Return what `finish` needs, and ``N H^-1 V``."""

    def finish(self, begun: _Begun, x: np.ndarray) -> np.ndarray:
        """Return ``H^-1 (V + x N)``."""


def inverse_of(
    S: np.ndarray | None,
    stiff: np.ndarray,
    U: np.ndarray,
    N: np.ndarray,
    split: _Split,
    wide: np.ndarray,
) -> Inverse:
    """Return the inverse.

    Parameters
    ----------
    S : ndarray of shape (d, d) or None
    stiff : ndarray of shape (d,), float64
    U : ndarray of shape (d, P), float64
    N : ndarray of shape (n_rows, d, P), float64
    split : (ndarray, ndarray, ndarray)
        Numbers of the rows of many columns, of those of one column, and that column of each.
    wide : ndarray of shape (n_wide, P, d), float64
        The rows of many columns, features last.
    """
    if S is None:
        return _Diagonal(stiff, U, N)
    if U.shape[1] == 1:
        return _OneColumn(S, stiff, U, N)
    return _ManyColumns(S, stiff, U, N, split, wide)


class _Diagonal:
    """Feature by feature: ``stiff - u u'``."""

    def __init__(self, stiff: np.ndarray, U: np.ndarray, N: np.ndarray) -> None:
        self._stiff, self._U, self._N = stiff, U, N
        self._shrink = 1 / (stiff * (stiff - np.vecdot(U, U)))
        along = np.einsum("kp,nkp->nk", U, N)
        flat, scaled = N.reshape(len(N), -1), (N / stiff[:, None]).reshape(len(N), -1)
        self.products = np.asarray(flat @ scaled.T + along @ (along * self._shrink).T)

    def begin(self, V: np.ndarray) -> tuple[_Begun, np.ndarray]:
        return (V, V), self._N.reshape(len(self._N), -1) @ self._solve(V).ravel()

    def finish(self, begun: _Begun, x: np.ndarray) -> np.ndarray:
        V = begun[0]
        return self._solve(V + (x @ self._N.reshape(len(x), -1)).reshape(V.shape))

    def _solve(self, V: np.ndarray) -> np.ndarray:
        along = np.vecdot(self._U, V) * self._shrink
        return np.asarray(V / self._stiff[:, None] + along[:, None] * self._U)


class _OneColumn:
    """Two clusters: one factor, ``H = L L'``, and the rows solved by L."""

    def __init__(self, S: np.ndarray, stiff: np.ndarray, U: np.ndarray, N: np.ndarray) -> None:
        K = S.copy()
        K.flat[:: len(K) + 1] += stiff - U[:, 0] ** 2
        self._factor = _cholesky(K)
        self._half = dtrtrs(self._factor, N[:, :, 0].T, trans=1)[0]
        self.products = np.asarray(self._half.T @ self._half)

    def begin(self, V: np.ndarray) -> tuple[_Begun, np.ndarray]:
        half = dtrtrs(self._factor, V, trans=1)[0]
        return (half, half), half[:, 0] @ self._half

    def finish(self, begun: _Begun, x: np.ndarray) -> np.ndarray:
        return np.asarray(dtrtrs(self._factor, begun[0] + (self._half @ x)[:, None])[0])


class _ManyColumns:
    """One inverse for all columns, and a correction of as many unknowns as there are features.

    Matrices of d^2 are what a program takes: no more than three of these are alive at once.
    """

    def __init__(
        self,
        S: np.ndarray,
        stiff: np.ndarray,
        U: np.ndarray,
        N: np.ndarray,
        split: _Split,
        wide: np.ndarray,
    ) -> None:
        self._U, self._split = U, split
        self._matrix = _inverse(S, stiff)
        K = U @ U.T
        K *= self._matrix
        np.subtract(0.0, K, out=K)
        K.flat[:: len(stiff) + 1] += 1.0
        self._inner = _cholesky(K)
        del K
        many, few, of = split
        single = N[few, :, of].T
        # All rows of all clusters below each other: one product by the matrix.
        Z = self._rows = (wide.reshape(-1, len(stiff)) @ self._matrix).reshape(wide.shape)
        z = self._single = self._matrix @ single
        self._columns = np.equal.outer(of, np.arange(U.shape[1])).astype(np.float64)
        along = self._along = np.empty((len(stiff), len(N)))
        along[:, many] = np.einsum("pk,npk->kn", np.ascontiguousarray(U.T), Z)
        along[:, few] = U[:, of] * z
        self._corrected = dpotrs(self._inner, along)[0]
        gram = np.asarray(along.T @ self._corrected)
        flat = wide.reshape(len(many), -1)
        gram[np.ix_(many, many)] += flat @ Z.reshape(flat.shape).T
        gram[np.ix_(few, few)] += (single.T @ z) * np.equal.outer(of, of)
        across = np.einsum("nsk,ks->ns", wide[:, of], z)
        gram[np.ix_(many, few)] += across
        gram[np.ix_(few, many)] += across.T
        self.products, self._flat = gram, N.reshape(len(N), -1)

    def begin(self, V: np.ndarray) -> tuple[_Begun, np.ndarray]:
        Z = self._matrix @ V
        correction = dpotrs(self._inner, np.vecdot(self._U, Z))[0]
        return (Z, correction), self._flat @ Z.ravel() + correction @ self._along

    def finish(self, begun: _Begun, x: np.ndarray) -> np.ndarray:
        (Z, correction), (many, few, _) = begun, self._split
        flat = self._rows.reshape(len(many), -1)
        out = Z + (x[many] @ flat).reshape(Z.shape[::-1]).T
        out += (self._single * x[few]) @ self._columns
        correction = correction + self._corrected @ x
        out += self._matrix @ (correction[:, None] * self._U)
        return np.asarray(out)


def _inverse(S: np.ndarray, stiff: np.ndarray) -> np.ndarray:
    """Return the inverse of ``diag(stiff) + S``, scaled to a unit diagonal of stiff between."""
    root = 1 / np.sqrt(stiff)
    K = root[:, None] * S
    K *= root
    K.flat[:: len(stiff) + 1] += 1.0
    factor = _cholesky(K)
    del K
    half = dpotri(factor, overwrite_c=True)[0]
    del factor
    half.T.flat[:: len(stiff) + 1] *= 0.5
    inverse = half + half.T
    del half
    inverse *= root[:, None]
    inverse *= root
    return np.asarray(inverse)


def _cholesky(K: np.ndarray) -> np.ndarray:
    """Return the upper factor of a symmetric matrix, in its memory where that is possible.

    LAPACK is called itself: programs of few features are so small that checks take longer.
    """
    factor, failed = dpotrf(K.T, overwrite_a=True)
    if failed:
        raise np.linalg.LinAlgError("not positive definite")
    return np.asarray(factor)
