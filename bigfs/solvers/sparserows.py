"""Products of rows that are mostly zeros, centered without filling the zeros in."""

from __future__ import annotations

from typing import Any

import numpy as np

# Groups whose means are products of dense arrays, which are faster than sparse ones.
_FEW = 16


class SparseRows:
    """Few rows in CSR form, less the mean of their group.

    Means are taken away from products of rows: features should be zero in half of the rows, or
    centered, for then these are not small beside the mean's.

    Parameters
    ----------
    entries : csr_array of shape (n_samples, n_features), float64
    groups : ndarray of shape (n_samples,), int, or None, default=None
        The group of each row, numbered from 0. None: nothing is subtracted.
    """

    def __init__(self, entries: Any, groups: np.ndarray | None = None) -> None:
        from scipy.sparse import csr_array

        self.shape: tuple[int, int] = entries.shape
        self._entries, self._by_feature = entries, entries.T.tocsr()
        # Of shape (n_samples, n_groups): orthonormal columns.
        self.members: Any = None
        if groups is not None:
            share = 1 / np.sqrt(np.bincount(groups))
            members = csr_array((share[groups], (np.arange(len(groups)), groups)))
            self.members = members.toarray() if len(share) <= _FEW else members

    def products(self, weights: np.ndarray) -> np.ndarray:
        """Return the products of all pairs of rows with weights of the features, (n, n)."""
        weighted = self._entries.copy()
        weighted.data *= weights[weighted.indices]
        total = (weighted @ self._by_feature).toarray()
        return self._centered(self._centered(total).T)

    def times(self, B: np.ndarray) -> np.ndarray:
        """Return the rows times B of shape (n_features, ...)."""
        return self._centered(self._entries @ B)

    def transposed_times(self, F: np.ndarray) -> np.ndarray:
        """Return the features times F of shape (n_samples, ...)."""
        return np.asarray(self._by_feature @ self._centered(F.copy()))

    def _centered(self, F: np.ndarray) -> np.ndarray:
        """Return F less the means of the groups, in its memory."""
        if self.members is not None:
            F -= self.members @ (self.members.T @ F)
        return F
