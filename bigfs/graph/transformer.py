"""The neighbor graph as a scikit-learn transformer, for pipelines, UMAP and scanpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array, csr_matrix
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from bigfs.blocks import RowBlocks
from bigfs.blocks.lazy import is_stored
from bigfs.config.fields import fresh_seed
from bigfs.core.errors import InputError, check_count
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, check_fits
from bigfs.core.units import parse_bytes
from bigfs.graph.build import knn_graph
from bigfs.graph.knn import check_mode
from bigfs.graph.recall import neighbors_of
from bigfs.runtime.progress import showing
from bigfs.store.formats.memory import plain
from bigfs.store.source import check_fitted_names, open_matrix


class KNeighborsTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Turn data, possibly larger than memory, into a sparse graph of nearest neighbors.

    Neighbors are counted as by scikit-learn's transformer of the same name: in mode ``distance``
    each row gets itself, at distance zero, and ``n_neighbors`` others; in mode ``connectivity`` the
    row itself is one of the ``n_neighbors``. ``n_neighbors`` must be less than the number of rows.

    Parameters
    ----------
    n_neighbors : int, default=5
    mode : {"distance", "connectivity"}, default="distance"
    metric : {"euclidean", "cosine", "correlation"}, default="euclidean"
    algorithm : {"auto", "exact", "pynndescent"}, default="auto"
        As in `bigfs.knn_graph`.
    recall_target : float or None, default=None
        As in `bigfs.knn_graph`.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process, and for the returned matrix.
    random_state : int, default=0
        Seed of all randomness.
    verbose : int, default=1
        If positive, progress is shown after two seconds.

    Attributes
    ----------
    graph_ : KNNGraph
        The neighbors of the fitted rows, with their recall.
    n_samples_fit_ : int

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from bigfs import KNeighborsTransformer
    >>> KNeighborsTransformer(n_neighbors=3).fit_transform(load_digits().data).nnz
    7188
    """

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        mode: str = "distance",
        metric: str = "euclidean",
        algorithm: str = "auto",
        recall_target: float | None = None,
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
        random_state: int = 0,
        verbose: int = 1,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.mode = mode
        self.metric = metric
        self.algorithm = algorithm
        self.recall_target = recall_target
        self.memory_limit = memory_limit
        self.random_state = random_state
        self.verbose = verbose

    _blocks: RowBlocks | None

    def fit(self, X: Any, y: Any = None) -> KNeighborsTransformer:
        """Find the neighbors of every row.

        Parameters
        ----------
        X : array-like, sparse matrix, DataFrame, AnnData, Dask or zarr array, path or URI
            Data of shape (n_samples, n_features).
        y : None
            Ignored; present for compatibility with scikit-learn's pipelines.

        Returns
        -------
        self : object
        """
        with showing(type(self).__name__, self.verbose):
            check_mode(self.mode)
            self._source = open_matrix(self._checked(X, reset=True))
            blocks = self._blocks = RowBlocks.from_any(self._source)
            if is_stored(X):
                self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
                if blocks.source.feature_names is not None:
                    self.feature_names_in_ = np.asarray(blocks.source.feature_names, dtype=object)
            self.n_features_in_ = blocks.n_features
            names = ("metric", "algorithm", "recall_target", "memory_limit")
            settings = {name: getattr(self, name) for name in names}
            settings["random_state"] = fresh_seed(self.random_state)
            self.graph_ = knn_graph(blocks, self.n_neighbors, **settings, scratch=blocks.scratch)
            self.n_samples_fit_ = self._n_features_out = blocks.n_samples
            return self

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_blocks": None}

    def fit_transform(self, X: Any, y: Any = None) -> csr_matrix:
        """Find the neighbors of every row and return them as a sparse matrix.

        Returns
        -------
        graph : csr_matrix of shape (n_samples, n_samples), float32
        """
        self.fit(X)
        others = self.n_neighbors - (self.mode == "connectivity")
        return self._matrix(*self._itself_first(others))

    def transform(self, X: Any) -> csr_matrix:
        """Return the nearest fitted rows of other rows, by exact search in one pass.

        Parameters
        ----------
        X : array-like, sparse matrix, DataFrame, AnnData, Dask or zarr array, path or URI
            Data of shape (n_queries, n_features). Must fit memory; the fitted data need not.

        Returns
        -------
        graph : csr_matrix of shape (n_queries, n_samples), float32
        """
        check_is_fitted(self, "graph_")
        check_mode(self.mode)
        n = self.n_samples_fit_
        check_count("n_neighbors", self.n_neighbors, n - 1, f"since {n} rows were fitted")
        queries = self._checked(X, reset=False)
        if is_stored(queries):
            queries = self._loaded(queries)
        elif hasattr(queries, "tocsr"):
            queries = queries.toarray()
        count = self.n_neighbors + (self.mode == "distance")
        if self._blocks is None:  # not kept in copies or in other processes
            self._blocks = RowBlocks.from_any(self._source)
        neighbors = neighbors_of(self._blocks, queries, count, self.metric)
        self._blocks.source.check_unchanged()
        return self._matrix(*neighbors)

    def precomputed_knn(self) -> tuple[np.ndarray, np.ndarray]:
        """Return ``(indices, distances)`` with the row itself first, in the form UMAP needs.

        Returns
        -------
        indices : ndarray of shape (n_samples, n_neighbors + 1), int32
        distances : ndarray of shape (n_samples, n_neighbors + 1), float32
            For ``umap.UMAP(n_neighbors=n_neighbors + 1, precomputed_knn=...)``.
        """
        check_is_fitted(self, "graph_")
        return self._itself_first(self.graph_.n_neighbors)

    def _itself_first(self, others: int) -> tuple[np.ndarray, np.ndarray]:
        """Return each row and its nearest others, and the distances to them."""
        graph, n = self.graph_, self.n_samples_fit_
        graph.check_fits(self.memory_limit)
        own, zeros = np.arange(n, dtype=np.int32)[:, None], np.zeros((n, 1), np.float32)
        indices, distances = graph.indices[:, :others], graph.distances[:, :others]
        return np.hstack([own, indices]), np.hstack([zeros, distances])

    def _matrix(self, indices: np.ndarray, distances: np.ndarray) -> csr_matrix:
        """Return rows of neighbors as CSR, by ascending distance."""
        data = distances if self.mode == "distance" else np.ones_like(distances)
        shape = (len(indices), self.n_samples_fit_)
        # Parts of scikit-learn do not accept int64, which scipy would keep.
        dtype = np.int64 if indices.size >= 2**31 else np.int32
        indptr = np.arange(len(indices) + 1, dtype=dtype) * indices.shape[1]
        parts = data.ravel(), indices.ravel().astype(dtype, copy=False), indptr
        return csr_matrix(csr_array(parts, shape=shape))

    def _checked(self, X: Any, reset: bool) -> Any:
        """Apply scikit-learn's checks to in-memory data; stored data are checked block by block."""
        if is_stored(X):
            return X
        return validate_data(
            self,
            plain(X),
            reset=reset,
            accept_sparse=("csr", "csc"),
            dtype="numeric",
            ensure_all_finite=not reset,  # in fit, the blocks are checked, with better messages
            ensure_min_samples=2 if reset else 1,
        )

    def _loaded(self, X: Any) -> np.ndarray:
        """Return all stored rows, checked."""
        blocks = RowBlocks.from_any(X)
        if blocks.n_features != self.n_features_in_:
            raise InputError(
                f"X has {blocks.n_features} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input."
            )
        check_fitted_names(blocks.source, getattr(self, "feature_names_in_", None))
        check_fits("rows to compare", blocks.nbytes, parse_bytes(self.memory_limit), "transform")
        return blocks.start_pass().read(0, blocks.n_samples)

    def __sklearn_tags__(self) -> Any:
        """Declare to scikit-learn that sparse input is accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags
