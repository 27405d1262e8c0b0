"""Products of rows that are mostly zeros, centered without making them dense."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.core.threads import compiled

# Modules that a stage loads if its rows may be mostly zeros.
LOADS = ("bigfs.solvers.sparserows",)
# Up to this number of groups, the means are computed with dense arrays, which are faster.
_FEW = 16
# Number of columns processed at a time.
_STRIP = 256


def _add_products(
    row_starts: np.ndarray,
    features: np.ndarray,
    values: np.ndarray,
    weights: np.ndarray,
    feature_starts: np.ndarray,
    rows: np.ndarray,
    others: np.ndarray,
    total: np.ndarray,
) -> None:
    """Add the weighted products of all pairs of rows to ``total``; compiled by numba.

    The entries are passed twice, in CSR form by rows and by features.
    """
    first = feature_starts[:-1].copy()  # for each feature, its first entry from the current row on
    for i in range(len(total)):
        products = total[i]
        for entry in range(row_starts[i], row_starts[i + 1]):
            feature = features[entry]
            value = values[entry] * weights[feature]
            for other in range(first[feature], feature_starts[feature + 1]):
                products[rows[other]] += value * others[other]
            first[feature] += 1
    for i in range(len(total)):
        for j in range(i):
            total[i, j] = total[j, i]


def warm_up() -> None:
    """Load numba and the compiled loop, once per process instead of within a task."""
    from scipy.sparse import csr_array

    SparseRows(csr_array(np.eye(2))).products(np.ones(2))


class SparseRows:
    """Few rows in CSR form, minus the mean of their group.

    The means are subtracted from products of the rows. To avoid cancellation, features should be
    zero in at least half of the rows, or centered.

    Parameters
    ----------
    entries : csr_array of shape (n_samples, n_features), float64
    groups : ndarray of shape (n_samples,), int, or None, default=None
        Group of each row, numbered from 0. None: nothing is subtracted.
    """

    def __init__(self, entries: Any, groups: np.ndarray | None = None) -> None:
        from scipy.sparse import csr_array

        if not entries.has_canonical_format:
            entries = entries.copy()
            entries.sum_duplicates()
        self.shape: tuple[int, int] = entries.shape
        self._entries, self._by_feature = entries, entries.T.tocsr()
        # Of shape (n_samples, n_groups), with orthonormal columns.
        self.members: Any = None
        if groups is not None:
            share = 1 / np.sqrt(np.bincount(groups))
            members = csr_array((share[groups], (np.arange(len(groups)), groups)))
            self.members = members.toarray() if len(share) <= _FEW else members

    def products(self, weights: np.ndarray) -> np.ndarray:
        """Return the products of all pairs of rows with weighted features, (n, n)."""
        rows, columns = self._entries, self._by_feature
        total = np.zeros((self.shape[0], self.shape[0]))
        compiled(_add_products)(
            *(rows.indptr, rows.indices, rows.data, np.asarray(weights, dtype=np.float64)),
            *(columns.indptr, columns.indices, columns.data, total),
        )
        return self._centered(self._centered(total).T)

    def columns(self, features: np.ndarray) -> np.ndarray:
        """Return the given columns minus the group means, shape (n_samples, n_columns)."""
        return self._centered(self._by_feature[features].toarray().T)

    def squares(self) -> np.ndarray:
        """Return the squared norms of the columns, shape (n_features,)."""
        total = self._by_feature.power(2).sum(axis=1)
        if self.members is not None:
            means = self._by_feature @ self.members
            total = total - np.asarray((means * means).sum(axis=1)).ravel()
        return np.asarray(total)

    def product_squares(self) -> np.ndarray:
        """Return the sums of the squared products of each column with all columns, (n_features,).

        There must be few groups (at most `_FEW`), as for centered rows.
        """
        from scipy.linalg.blas import dgemm

        n, d = self.shape
        norms, columns = np.zeros(d), self._by_feature
        if columns.nnz * n < d * d + float((np.diff(self._entries.indptr) ** 2.0).sum()):
            outer = np.ascontiguousarray(self.products(np.ones(d)))  # x_j' (X X') x_j
            for part in (slice(begin, begin + _STRIP) for begin in range(0, d, _STRIP)):
                norms[part] = columns[part].multiply(columns[part] @ outer).sum(axis=1)
            return norms
        means = None if self.members is None else np.asarray(columns @ self.members)
        room = np.empty(min(_STRIP, d) * d)
        for begin in range(0, d, _STRIP):
            part, later = columns[begin : begin + _STRIP], self._entries[:, begin:]
            shape = size, _ = part.shape[0], later.shape[1]
            gram = (part @ later).toarray(out=room[: size * shape[1]].reshape(shape))
            if means is not None:
                m = means[begin:]
                dgemm(-1.0, m, m[:size], beta=1.0, c=gram.T, trans_b=1, overwrite_c=1)
            norms[begin : begin + size] += np.einsum("ij,ij->i", gram, gram)
            # The products are symmetric: add them for the later columns, too, whose strips then
            # leave them out.
            norms[begin + size :] += np.einsum("ij,ij->j", gram[:, size:], gram[:, size:])
        return norms

    def times(self, B: np.ndarray) -> np.ndarray:
        """Return the rows times B of shape (n_features, ...)."""
        return self._centered(self._entries @ B)

    def transposed_times(self, F: np.ndarray) -> np.ndarray:
        """Return the features times F of shape (n_samples, ...)."""
        return np.asarray(self._by_feature @ self._centered(F.copy()))

    def _centered(self, F: np.ndarray) -> np.ndarray:
        """Subtract the group means from F in place, and return F."""
        if self.members is not None:
            F -= self.members @ (self.members.T @ F)
        return F
