"""Base classes of the selectors: input checks, ranking from scores, lazy transform."""

from __future__ import annotations

import html
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from inspect import get_annotations, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, dataclass_transform

import numpy as np
from scipy.sparse import issparse
from sklearn import get_config
from sklearn.base import OneToOneFeatureMixin
from sklearn.utils import get_tags
from sklearn.utils.validation import _num_samples, check_array, check_is_fitted, validate_data

from bigfs.blocks import RowBlocks
from bigfs.blocks.lazy import (
    as_lazy,
    columns_of,
    in_memory,
    is_annotated,
    is_stored,
    open_stored,
)
from bigfs.blocks.preprocess import Transform
from bigfs.config import Selection, validated
from bigfs.config.fields import fresh_seed
from bigfs.config.messages import nearest
from bigfs.config.sections import Auto, GraphConfig, MissingConfig, StabilityConfig
from bigfs.core.errors import InputError, InputTypeError
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT
from bigfs.core.paths import SOURCE, LabelValues, as_text, column_of
from bigfs.core.seeds import check_seed
from bigfs.runtime.progress import showing
from bigfs.runtime.scope import active_client
from bigfs.runtime.workers import check_sizes, worker_limits
from bigfs.selectors.curves import curves_stage
from bigfs.selectors.docstrings import by_nearest, completed, described
from bigfs.selectors.number import is_by_fits
from bigfs.selectors.registry import METHODS, method_of, selection_model
from bigfs.selectors.scoring import (
    check_form,
    check_settings,
    resolved,
    stages_of_selection,
    warn_of_data,
)
from bigfs.selectors.stability.fits import check_stability, stability_stage
from bigfs.stages.curves import Curves, feature_columns
from bigfs.stages.engine import Engine, TemporaryStages
from bigfs.stages.scores import FeatureScores, check_n_selected, support_of
from bigfs.stages.stage import Stage
from bigfs.store.columns import suspicious_columns
from bigfs.store.formats.memory import plain, refuse_texts
from bigfs.store.scratch import ArrayRef, Scratch, read_attributes
from bigfs.store.several import sources_of
from bigfs.store.source import (
    check_fitted_names,
    is_list_of_uris,
    listed,
    open_matrix,
    positions_by_name,
)
from bigfs.store.values import check_present, plain_values

# scikit-learn is not typed. With a base class of unknown type, type checkers would accept any
# parameter, so stubs stand in for its classes.
if TYPE_CHECKING:

    class ClusterMixin:
        """Stub of scikit-learn's mixin for estimators that cluster rows."""

    class TransformerMixin:
        """Stub of scikit-learn's mixin for transformers."""

        _repr_mimebundle_: Any
        _repr_html_inner: Any
        __sklearn_tags__: Any

        def __getattr__(self, name: str) -> Any:
            """Return an attribute set by `fit`."""

    class BaseEstimator:
        """Stub of scikit-learn's base class of estimators."""

else:
    from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin  # noqa: F401

logger = logging.getLogger("bigfs")

# "auto", or a dict as in a pipeline. With both, a fitted estimator has the attribute ``curves_``.
NumberOfFeatures = int | str | dict[str, Any] | None


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(field,))
class BaseSelector(TransformerMixin, BaseEstimator, ABC):
    """Base of the selectors: `fit` opens the data and runs the stages of the method.

    It reimplements the methods of scikit-learn's ``SelectorMixin``, because importing
    ``sklearn.feature_selection`` takes as long as importing all of bigfs.

    If a selector has a parameter that its docstring does not describe, the description is taken
    from the settings model of the method, or else from the nearest base class that has one. The
    same holds for the attributes shared by all selectors.

    Parameters
    ----------
    n_features_to_select : int, "auto", dict or None, default=None
        Number of features to keep. None keeps half of them; "auto" chooses the number from a
        curve; a dict specifies the curve, as in a pipeline.
    n_neighbors : int, default=5
        Number of neighbors of each row in the graph.
    weight : {"binary", "heat", "dot", "cosine"}, default="binary"
        Weights of the graph's edges.
    sigma : float, "median" or None, default=None
        Heat-kernel width in ``exp(-|x_i - x_j|^2 / sigma)``, at least 1e-6. None gives each edge
        its own width, ``max(s_i, s_j)^2`` with s the distance to the last neighbor.
    metric : {"euclidean", "cosine", "correlation"}, default="euclidean"
        Distance between rows.
    representation : str, default="auto"
        Representation of the rows in which neighbors are searched: "raw" for the features;
        "pca:50" for principal components; or, for an AnnData, "obsm/NAME" for an array or
        "obsp/NAME" for a finished graph, whose values are the edge weights unless the name ends in
        "distances". "auto" is "pca:50" for sparse counts that are normalized; "pca:50", "pca:100"
        or "pca:200" for 50,000 or more dense rows with more than 256 features, if a sample keeps
        its neighbors; else "raw".
    preprocess : {"auto", "none", "standardize", "rescale", "minmax", "unit_norm", "log1p", \
"normalize_total", "normalize_log1p"}, default="auto"
        Transformation applied while reading. "auto" is "normalize_log1p" for sparse counts,
        "minmax" for dense features of different units, else "none"; see `preprocess_`.
    missing : {"error", "mean", "zero", "drop_rows"}, default="error"
        Treatment of NaN: raise an error that names its position, replace it by the mean of its
        feature or by zero, or drop its row. With any value but "error", `transform` keeps NaN.
    redundancy : float or None, default=None
        Pass over a feature if its absolute correlation with a better feature that is kept exceeds
        this value, such as 0.95. If too few features are left, the best of those passed over fill
        the selection.
    random_state : int or None, default=0
        Seed of all random numbers.
    memory_limit : int or str, default="4 GiB"
        Upper bound of the resident memory of one worker process.
    verbose : int, default=1
        Progress is shown after two seconds; 0 shows none.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Score of each feature; larger is better.
    preprocess_ : str
        The transformation that was applied.
    redundant_with_ : ndarray of shape (n_features,), int64
        Only with ``redundancy``: for each feature passed over, the kept feature it is redundant
        with; -1 for all others.
    row_mask_ : ndarray of shape (n_rows,), bool
        Mask of the rows that were used. Only with ``missing="drop_rows"``, or if the data were
        opened or stored without some of their rows.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first; ties go to the lower index, constant features come last.
    """

    _annotated: Any = None  # the AnnData that X is an opened matrix of, if any

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Raise InputTypeError for an unknown parameter, and suggest the closest known name."""
        known = signature(cls.__init__).parameters
        accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        unknown = next((name for name in kwargs if name not in known), None)
        if unknown is not None and not accepts_any:
            near = nearest(unknown, known)
            hint = f"did you mean {near!r}?" if near else f"It has {', '.join([*known][1:])}."
            mark = ";" if near else "."
            if unknown in Selection.model_fields:
                mark, hint = ":", "it is a setting of pipelines and of bigfs.run({...}, data=X)."
            raise InputTypeError(f"{cls.__name__} has no parameter {unknown!r}{mark} {hint}")
        return super().__new__(cls)

    def __init_subclass__(cls, *, kw_only: bool = True, **kwargs: Any) -> None:
        """Turn the fields of a selector into parameters and complete its docstring."""
        super().__init_subclass__(**kwargs)
        models = [m.parameters for m in METHODS.values() if m.estimator == cls.__name__]
        if (models or get_annotations(cls)) and "__init__" not in vars(cls):
            dataclass(eq=False, repr=False, kw_only=kw_only)(cls)
            by_nearest(cls)
        if cls.__doc__ and "__init__" in vars(cls):
            bases = [base for base in cls.__mro__[:0:-1] if issubclass(base, BaseSelector)]
            own = [described(cls, model) for model in models]
            cls.__doc__ = completed(cls, [*(base.__doc__ or "" for base in bases), *own])

    def fit(self, X: Any, y: Any = None) -> BaseSelector:
        """Score and rank the features.

        Parameters
        ----------
        X : array-like, sparse matrix, DataFrame, AnnData, Dask array, zarr array, path or URI
            Data of shape (n_samples, n_features). Data that are not in memory are read by blocks.
        y : None
            Ignored; present for compatibility with scikit-learn's pipelines.

        Returns
        -------
        self : object

        Raises
        ------
        InputError
            If the data or a parameter cannot be used, or a file changes while it is read.
        MemoryLimitError
            If a step does not fit into ``memory_limit``.
        """
        with showing(type(self).__name__, getattr(self, "verbose", 1)):
            return self._fit(X)

    def _fit(self, X: Any) -> BaseSelector:
        """Score and rank the features."""
        name = type(self).__name__
        selection, given = self._selection(X), {"missing": self._policy()}
        missing = validated(MissingConfig, given, name, nested=False).missing
        if active_client() is not None:
            check_sizes(worker_limits())
        scratch = Scratch()
        source = open_matrix(self._checked(X))
        selection = resolved(selection, source, X if self._annotated is None else self._annotated)
        check_form(stages_of_selection(selection), selection, source)
        blocks = RowBlocks.from_any(
            source,
            scratch=scratch,
            transform=selection.preprocess,
            sparse=True,
            missing=missing,
            memory_limit=selection.memory_limit,
        )
        warn_of_data(blocks, selection.method)
        for sentence in suspicious_columns(blocks.source):
            logger.warning(sentence)
        if not isinstance(selection.n_features_to_select, Auto):
            n_selected = check_n_selected(name, self._n_wanted(), blocks.n_features)
            selection = selection.model_copy(update={"n_features_to_select": n_selected})
        check_settings(selection, blocks.n_samples, blocks.n_features)
        stages = self._stages(selection, blocks)
        store = TemporaryStages(scratch.child("stages"))
        finished = Engine(store, blocks, memory_limit=selection.memory_limit).run(stages)
        result = FeatureScores.open(finished["result"])
        for attribute in [a for a in vars(self) if a.endswith("_") and not a.endswith("_in_")]:
            delattr(self, attribute)  # left from an earlier fit
        self.scores_ = result.scores
        self.ranking_ = result.ranking
        self._supports = result.supports
        self.n_features_to_select_ = selection.n_features_to_select
        if "curves" in finished:
            self.curves_ = Curves.open(finished["curves"])
            self.n_features_to_select_ = len(self.curves_.order)
            self.ranking_, self.scores_ = self.curves_.reordered(result.ranking, result.scores)
        if hasattr(self, "random_state"):
            self.random_state_ = selection.random_state
        dropped = list(blocks.source.dropped)
        if dropped or missing == "drop_rows":
            # Results with one entry per sample cover only the rows that remain.
            self.row_mask_ = np.ones(blocks.n_samples + len(dropped), dtype=bool)
            self.row_mask_[dropped] = False
        self._keep_details(result.details, scratch if is_stored(X) else None)
        self._notes = list(read_attributes(finished["result"]).get("notes", []))
        self.preprocess_ = selection.preprocess
        columns = blocks.transform.columns
        self._columns = None if columns is None else columns.load()
        return self

    def _policy(self) -> Any:
        """Return the parameter for the treatment of NaN, not validated."""
        return getattr(self, "missing", "error")

    def _n_wanted(self) -> Any:
        """Return the requested number of features.

        None stands for half of them, or for the number that the method finds itself.

        Raises
        ------
        InputError
            If ``redundancy`` is set and the method would find the number itself.
        """
        number = self.n_features_to_select
        if self.redundancy is not None and number is None and method_of(type(self)).finds_number:
            raise InputError(
                f"{type(self).__name__}: redundancy needs n_features_to_select: features are "
                "passed over until that many are kept."
            )
        return number

    def _stages(self, selection: Selection, blocks: RowBlocks) -> list[Stage]:
        """Return the stages of a fit."""
        stages, number, fits = stages_of_selection(selection), selection.n_features_to_select, None
        if is_by_fits(number):
            settings = StabilityConfig()
            check_stability(selection, settings, blocks.n_samples, blocks.n_features)
            fits = stability_stage(selection, settings)
            stages.append(fits)
        if isinstance(number, Auto):
            stages.append(curves_stage(selection, fits))
        return stages

    def _keep_details(self, details: dict[str, Any], scratch: Scratch | None) -> None:
        """Store further results as attributes, their names followed by an underscore.

        Arrays with one row per sample are opened lazily if a ``scratch`` is given, which is the
        case if the data are not in memory; otherwise they are loaded.
        """
        for name, value in details.items():
            if isinstance(value, ArrayRef):
                value = value.load() if scratch is None else value.open(scratch)
            setattr(self, f"{name}_", value)

    def _selection(self, X: Any = None) -> Selection:
        """Return the parameters as settings of a pipeline, validated by the same model.

        If labels are given as the name of a column of ``obs`` of an AnnData ``X``, they are taken
        from there.
        """
        check_seed(fresh_seed(getattr(self, "random_state", 0)))
        method = method_of(type(self))
        settings: dict[str, Any] = {"method": method.name, "n_features_to_select": 1}
        finished = str(getattr(self, "representation", "")).startswith("obsp/")
        for name, value in self.get_params(deep=False).items():
            if name in ("verbose", "missing"):
                continue
            section = settings
            if name == method.labels:
                value = self._given_labels(X, name, value)
            if name in method.parameters.model_fields:
                section = settings.setdefault(method.name, {})
            elif name in GraphConfig.model_fields:
                if finished and value == signature(type(self)).parameters[name].default:
                    continue  # as in a pipeline: a finished graph has its own weights
                own = {} if finished else dict(method.graph_defaults)
                section = settings.setdefault("graph", own)
                if name == "representation" and isinstance(X, (str, Path)):
                    part_of_file = str(value).startswith(("obsm/", "obsp/"))
                    value = f"{X}::{value}" if part_of_file else value
            # A number is checked later, once the number of features is known.
            chosen_later = isinstance(value, dict) or (isinstance(value, str) and value == "auto")
            if name != "n_features_to_select" or chosen_later:
                section[name] = value.item() if isinstance(value, np.generic) else value
        return validated(selection_model(), settings, type(self).__name__, nested=False)

    def _given_labels(self, X: Any, name: str, value: Any) -> Any:
        """Return labels, or another start, as an array; a name or None is returned unchanged."""
        value, annotated = self.labels_in(X, value), X if is_annotated(X) else self._annotated
        if isinstance(value, str) and annotated is not None:
            is_path = "://" in value or os.path.exists(column_of(value)[0])
            starts = method_of(type(self)).starts
            if value not in starts and not is_path:
                choices = ", ".join([*map(repr, starts), "a column of obs"])
                raise InputError(
                    f"{type(self).__name__}: {name} must be {choices} or a file of labels. Got "
                    f"{value!r}; obs has {listed([str(column) for column in annotated.obs])}."
                )
        if value is None or isinstance(value, (str, Path, LabelValues)):
            return value
        name = f"{type(self).__name__}: {name}"
        return check_present(plain_values(value, name), name)

    @staticmethod
    def labels_in(X: Any, value: Any) -> Any:
        """Return the column of ``obs`` with the name ``value`` if ``X`` is an AnnData.

        If ``X`` is made of several sources, ``source`` refers to the source of each row. Other
        values are returned unchanged.
        """
        if not isinstance(value, str):
            return value
        uri = as_text(X) if is_list_of_uris(X) else X
        if value == SOURCE and isinstance(uri, (str, Path)) and sources_of(str(uri)) is not None:
            return f"{uri}::{SOURCE}"
        return X.obs[value].to_numpy() if is_annotated(X) and value in X.obs else value

    def support(self, n_features_to_select: int) -> np.ndarray:
        """Return the indices of the best features, in ascending order.

        One fit also answers for other numbers of features. If the order of the features depends
        on their number, the documentation of the class states for which numbers the answer is
        that of a fit with this number; with ``redundancy`` this holds for
        ``n_features_to_select`` only.
        """
        check_is_fitted(self, "ranking_")
        check_n_selected(type(self).__name__, n_features_to_select, len(self.ranking_))
        return support_of(self.ranking_, self._supports, n_features_to_select)

    @property
    def selected(self) -> np.ndarray:
        """Indices of the selected features, ascending, as in the `Result` of a run."""
        return self.get_support(indices=True)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] = self._answer() + bundle["text/html"]
        return bundle

    def _repr_html_inner(self) -> str:
        return self._answer() + str(super()._repr_html_inner())

    def _answer(self) -> str:
        """Return HTML for notebooks: the selection, its stability, notes and the best features."""
        if not hasattr(self, "ranking_"):
            return ""
        lines = [f"{len(self.selected):,} of {len(self.ranking_):,} features selected"]
        if hasattr(self, "stability_interval_"):
            low, high = self.stability_interval_
            lines.append(f"stability {self.stability_:.2f} (95 % interval {low:.2f} to {high:.2f})")
        lines += getattr(self, "_notes", [])
        text = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
        return text + str(self.to_frame().head(10).to_html(index=False))

    def to_frame(self) -> Any:
        """Return all features as a pandas frame, best first.

        Returns
        -------
        frame : DataFrame
            Columns ``rank``, ``index``, ``name``, ``score`` and ``selected``; with ``redundancy``
            also ``redundant_with``, for fits on samples ``frequency``, and with curves
            (``n_features_to_select="auto"``) the reasons why each feature is selected or not.
        """
        import pandas as pd

        check_is_fitted(self, "ranking_")
        names = [str(n) for n in getattr(self, "feature_names_in_", range(len(self.ranking_)))]
        known = ("curves", "redundant_with", "frequencies")
        more: dict[str, Any] = {name: getattr(self, f"{name}_", None) for name in known}
        columns = feature_columns(self.ranking_, self.scores_, self.selected, names, **more)
        return pd.DataFrame(columns)

    def transform(self, X: Any) -> Any:
        """Reduce X to the selected features.

        Parameters
        ----------
        X : array-like, sparse matrix, DataFrame, Dask array, zarr array, path or URI
            Data with the features seen in `fit`.

        Returns
        -------
        X_selected : same kind as X
            Lazy for lazy input: a Dask array for Dask and zarr arrays, paths and URIs. For an
            AnnData, a view of the selected features. A frame requested by `set_output` is in
            memory.
        """
        check_is_fitted(self, "ranking_")
        if not is_stored(X):
            return self._transform_in_memory(X)
        kept, names = self.get_support(indices=True), getattr(self, "feature_names_in_", None)
        wanted, output = [] if names is None else names[kept].tolist(), self._output()
        if is_annotated(X):
            view = X[:, self._positions(X.var_names.tolist(), X.shape)]
            return view if output == "default" else view.to_df()
        columns = columns_of(X, wanted)
        if columns is not None:
            return in_memory(columns, output)
        if type(X).__module__.startswith("xarray") and output == "default":
            from bigfs.store.formats.xarrays import keep_features

            return keep_features(X, names, kept, self.n_features_in_)
        opened = open_stored(X, wanted)
        lazy = as_lazy(opened)
        columns = self._positions(getattr(opened, "feature_names", None), lazy.shape)
        return in_memory(lazy[:, columns], output)

    def _positions(self, names: Sequence[str] | None, shape: tuple[int, ...]) -> np.ndarray:
        """Return the positions of the selected features in data with these names and shape."""
        kept = self.get_support(indices=True)
        columns = positions_by_name(kept, getattr(self, "feature_names_in_", None), names)
        if columns is None:
            self._check_shape(shape)
        return kept if columns is None else columns

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise InputError if the number of features differs from that seen in `fit`."""
        if len(shape) != 2 or shape[1] != self.n_features_in_:
            raise InputError(
                f"X has {shape[-1]} features and shape {shape}, but {type(self).__name__} is "
                f"expecting {self.n_features_in_} features as input."
            )

    def _output(self) -> str:
        """Return the output container set by `set_output` or by scikit-learn's configuration."""
        wanted = getattr(self, "_sklearn_output_config", {}).get("transform")
        return str(wanted or get_config()["transform_output"])

    def _transform_in_memory(self, X: Any) -> Any:
        """Return the selected columns of data in memory, after checks.

        A frame stays a frame if `set_output` requests a container other than the default.
        """
        X = plain(X)
        names = [str(name) for name in X.columns] if hasattr(X, "iloc") else []
        fitted = getattr(self, "feature_names_in_", ())
        if names and set(names) == set(fitted) and names != X.columns.tolist():
            X = X.set_axis(names, axis=1)  # scikit-learn compares names only if they are strings
        frame = hasattr(X, "iloc") and self._output() != "default"
        X = validate_data(
            self,
            X,
            dtype=None,
            accept_sparse="csr",
            ensure_all_finite=not get_tags(self).input_tags.allow_nan,
            skip_check_array=frame,
            reset=False,
        )
        kept = self.get_support(indices=True)
        return X.iloc[:, kept] if frame else X[:, kept]

    def get_support(self, indices: bool = False) -> np.ndarray:
        """Return a mask or the indices of the selected features.

        Parameters
        ----------
        indices : bool, default=False
            If True, return indices in ascending order instead of a mask.

        Returns
        -------
        support : ndarray of shape (n_features,), bool, or of shape (n_selected,), int64
        """
        check_is_fitted(self, "ranking_")
        mask = np.zeros(len(self.ranking_), dtype=bool)
        mask[self.ranking_[: self.n_features_to_select_]] = True
        return np.flatnonzero(mask) if indices else mask

    def inverse_transform(self, X: Any) -> Any:
        """Restore selected columns to their original positions; all other columns are zero.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_selected)

        Returns
        -------
        X_original : ndarray or sparse matrix (CSC) of shape (n_samples, n_features)

        Raises
        ------
        ValueError
            If the number of columns of ``X`` is not the number of selected features.
        """
        kept = self.get_support(indices=True)
        X = check_array(plain(X), dtype=None, accept_sparse="coo", ensure_all_finite=False)
        if X.shape[1] != len(kept):
            raise ValueError(
                f"X has {X.shape[1]} features, but {len(kept)} are selected by "
                f"{type(self).__name__}."
            )
        shape = (X.shape[0], len(self.ranking_))
        if issparse(X):
            return type(X)((X.data, (X.row, kept[X.col])), shape=shape).tocsc()
        original = np.zeros(shape, dtype=X.dtype)
        original[:, kept] = X
        return original

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the selected features.

        Parameters
        ----------
        input_features : array-like of str or None, default=None
            Names of all features; if `fit` saw names, they must be the same. None uses the names
            seen in `fit`, or ``x0``, ``x1``, ...

        Returns
        -------
        names : ndarray of shape (n_selected,), object
        """
        names: np.ndarray = OneToOneFeatureMixin.get_feature_names_out(self, input_features)
        return names[self.get_support()]

    def _checked(self, X: Any) -> Any:
        """Check X and record the number and names of its features.

        Data in memory undergo scikit-learn's checks; stored data are opened.
        """
        if not is_stored(X):
            X = plain(X)
            refuse_texts(X)
            checked = self._validated(X, ensure_min_samples=2)
            names = getattr(self, "feature_names_in_", None)
            if names is None or not isinstance(checked, np.ndarray):
                return checked
            from bigfs.store.formats.memory import ArraySource

            return ArraySource(checked, "X", list(names))
        source = open_matrix(X)
        self.n_features_in_ = source.n_features
        if source.feature_names is not None:
            self.feature_names_in_ = np.asarray(source.feature_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return source

    def _validated(self, X: Any, **options: Any) -> Any:
        """Apply scikit-learn's checks to data in memory."""
        return validate_data(
            self,
            X,
            accept_sparse=("csr", "csc"),
            dtype="numeric",
            ensure_all_finite=False,  # checked per block, where errors name the position
            **options,
        )

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: sparse input is accepted, and y is not required."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self._policy() != "error"
        tags.target_tags.required = False
        return tags


class MethodSelector(BaseSelector):
    """Base of the selectors that implement one method; their fields are its parameters."""

    n_features_to_select: NumberOfFeatures = field(default=None, kw_only=False)
    preprocess: str = "auto"
    missing: str = "error"
    redundancy: float | None = None
    verbose: int = 1


class SeededSelector(MethodSelector):
    """Base of the selectors that draw random numbers, or hold more than a tile in memory."""

    random_state: int | None = 0
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT


class GraphSelector(SeededSelector):
    """Base of the selectors that use the weighted neighbor graph."""

    n_neighbors: int = 5
    weight: str = "binary"
    sigma: float | str | None = None
    metric: str = "euclidean"
    representation: str = "auto"


class LabelingSelector(ClusterMixin, SeededSelector):
    """Base of the selectors that can also label new rows."""

    @abstractmethod
    def _write_labels(self, blocks: RowBlocks, labels: ArrayRef) -> None:
        """Write the label of every row of the opened data."""

    def predict(self, X: Any) -> Any:
        """Label rows by blocks, with the rule that `fit` applied to its own rows.

        Parameters
        ----------
        X : array-like, sparse matrix, DataFrame, Dask array, zarr array, path or URI
            Data with the features seen in `fit`; they are preprocessed in the same way. NaN is
            replaced by 0 if the selector has ``missing="zero"``, and raises an error otherwise,
            because the means seen in `fit` are not kept.

        Returns
        -------
        labels : ndarray (zarr array if X is stored) of shape (n_samples,), int32
        """
        check_is_fitted(self, "ranking_")
        scratch, rows = Scratch(), X
        if not is_stored(X):
            rows = self._validated(plain(X), reset=False)
            rows = rows[[0, 0]] if rows.shape[0] == 1 else rows  # opened data need two rows
        missing = "zero" if self._policy() == "zero" else "error"
        blocks = RowBlocks.from_any(rows, scratch=scratch, missing=missing)
        self._check_shape((blocks.n_samples, blocks.n_features))
        check_fitted_names(blocks.source, getattr(self, "feature_names_in_", None))
        columns = None if self._columns is None else scratch.put("columns", self._columns)
        blocks.transform = Transform(self.preprocess_, columns)
        labels = scratch.create("labels", (blocks.n_samples,), np.int32, blocks.rows)
        self._write_labels(blocks, labels)
        blocks.source.check_unchanged()
        return labels.open(scratch) if is_stored(X) else labels.load()[: _num_samples(X)]
