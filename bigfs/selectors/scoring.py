"""The stages of a selection on opened data: graph, eigenvectors, scores."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.config import Selection
from bigfs.config.sections import Auto, GraphConfig
from bigfs.core.cost import Shape, StageCost
from bigfs.core.errors import InputError
from bigfs.core.paths import LabelValues
from bigfs.graph.local import check_n_neighbors
from bigfs.graph.representation import components_enough, open_member, with_member
from bigfs.selectors.method import Strategy
from bigfs.selectors.number import check_criterion, largest_number
from bigfs.selectors.redundancy import (
    Redundancy,
    included,
    numbers_of,
    passed_over,
    with_redundancy,
)
from bigfs.selectors.registry import METHODS
from bigfs.stages.graph import (
    components_stage,
    graph_stage,
    mean_neighbors,
    n_components_of,
    representation_stage,
)
from bigfs.stages.scores import FeatureScores, check_n_selected
from bigfs.stages.spectral import spectral_stage
from bigfs.stages.stage import Inputs, Stage
from bigfs.store.columns import different_units, note_on_names
from bigfs.store.csr import check_dense
from bigfs.store.labels import digest_of, load_labels
from bigfs.store.scratch import Scratch
from bigfs.store.source import Source

logger = logging.getLogger("bigfs")
T = TypeVar("T", bound=Selection)
# Number of principal components used to compare rows of counts.
N_COMPONENTS = 50


def resolved(selection: T, source: Source, data: Any = None) -> T:
    """Return the selection with ``auto`` resolved in its preprocessing and its graph.

    For sparse counts, every row is scaled to the same total and log-transformed, and rows are
    compared by principal components. Dense features of different units are each scaled to [0, 1].
    If there are many wide rows, they are compared by principal components, provided that these
    keep their neighbors. All other data stay unchanged.

    Parameters
    ----------
    selection : Selection
    source : Source
        The opened input. Its first rows determine whether it holds counts or different units.
    data : object, default=None
        The input that was opened. If it is an AnnData in memory, the graph may refer to its
        ``obsm`` or ``obsp``.
    """
    changes: dict[str, Any] = {}
    graph, counts = selection.graph, False
    if selection.preprocess == "auto":
        wanted = not METHODS[selection.method].raw_counts
        counts = wanted and source.holds_counts()
        scaled = wanted and not counts and different_units(source)
        changes["preprocess"] = "normalize_log1p" if counts else "minmax" if scaled else "none"
    if graph is not None and graph.representation == "auto":
        fits = graph.metric == "euclidean" and graph.weight in ("binary", "heat")
        enough = None
        if counts and fits and source.n_features > N_COMPONENTS:
            large = (source.counted_samples or 0) >= 2 * N_COMPONENTS
            enough = N_COMPONENTS if large else None
        if fits and not counts and getattr(selection, "update", None) is None:  # of all features
            kind = changes.get("preprocess", selection.preprocess)
            limit = selection.memory_limit
            enough = components_enough(source, kind, graph.n_neighbors, limit)
        used = "raw" if enough is None else f"pca:{enough}"
        changes["graph"] = graph.model_copy(update={"representation": used})
    if graph is not None and graph.of_annotated:
        graph = with_member(graph, data)
        mean = mean_neighbors(open_member(graph)) if graph.is_finished else graph.n_neighbors
        changes["graph"] = graph.model_copy(update={"n_neighbors": mean})
    return selection.model_copy(update=changes) if changes else selection


def stages_of_selection(selection: Selection, *, remote: bool = False) -> list[Stage]:
    """Return the stages of a selection, in the order in which they run.

    Parameters
    ----------
    selection : Selection
    remote : bool, default=False
        True if results are stored in a bucket.
    """
    method, parameters = METHODS[selection.method], selection.parameters
    needs = method.needs(parameters)
    seeds = {"random_state": selection.random_state, "memory_limit": selection.memory_limit}
    data: dict[str, Any] = {"preprocess": selection.preprocess, "rows": selection.blocks.rows}
    stages = []
    if "graph" in needs:
        graph = selection.used_graph
        fewer = _takes_fewer_neighbors(selection)
        compared = n_components_of(graph)
        if compared is not None and graph.representation.startswith("pca"):
            stages.append(components_stage(compared, **data, **seeds))
        elif compared is not None:
            stages.append(representation_stage(graph, **data))
        stages.append(graph_stage(graph, remote=remote, fewer_neighbors=fewer, **data, **seeds))
    if "spectral" in needs:
        n_components = method.n_components(parameters)
        assert selection.spectral is not None  # set for every method that reads the section
        graph = selection.used_graph
        stages.append(spectral_stage(selection.spectral, n_components, graph, **seeds))
    number = selection.n_features_to_select
    settings: dict[str, Any] = {
        "method": selection.method,
        "n_features_to_select": {"at_most": number.at_most} if isinstance(number, Auto) else number,
        **data,
        **seeds,
        method.name: _as_values(parameters),
        **selection.model_dump(include={"redundancy", "least_gap", "include"}, exclude_none=True),
        **content_of_labels(labels_of_start(selection)),
    }
    if selection.graph is not None and "graph" not in needs:
        settings["graph"] = selection.graph.model_dump()
    choose = partial(choose_scoring, selection=selection)
    result = Stage("result", 31, settings, choose, sparse=method.sparse, updates=method.keeps_sums)
    return [*stages, result]


def choose_scoring(shape: Shape, selection: Selection) -> Scoring:
    """Return the strategy of the selected method for data of the given shape."""
    used, notes = _lowered(selection, shape)
    chosen_later = isinstance(selection.n_features_to_select, Auto)
    return Scoring(METHODS[selection.method].choose(shape, used), used, notes, chosen_later)


def _lowered(selection: Selection, shape: Shape) -> tuple[Selection, tuple[str, ...]]:
    """Return the selection with numbers lowered to fit the shape, and notes on the changes.

    A number of features to choose later is replaced by the largest one considered.
    """
    number = selection.n_features_to_select
    if isinstance(number, Auto):
        largest_m = largest_number(number, shape.n_samples, shape.n_features)
        selection = selection.model_copy(update={"n_features_to_select": largest_m})
    sizes = {"n_samples": shape.n_samples, "n_features": shape.n_features}
    changes, notes = {}, []
    for bound in METHODS[selection.method].bounds:
        value = getattr(selection.parameters, bound.parameter)
        largest = bound.exceeded(selection.parameters, sizes)
        if largest is not None:
            changes[bound.parameter] = largest
            notes.append(
                f"{bound.parameter} is reduced from its default {value} to {largest}: X has "
                f"{shape.n_samples} rows and {shape.n_features} features."
            )
    graph, most = selection.graph, shape.n_samples - 1
    if graph is not None and graph.n_neighbors > most:
        selection = selection.model_copy(
            update={"graph": graph.model_copy(update={"n_neighbors": most})}
        )
        notes.append(
            f"n_neighbors is reduced from {graph.n_neighbors} to {most}: X has {most + 1} rows."
        )
    return selection.with_parameters(**changes) if changes else selection, tuple(notes)


def _takes_fewer_neighbors(selection: Selection) -> bool:
    """Return True if the number of neighbors is the default, which is lowered for few rows."""
    return selection.used_graph.n_neighbors == GraphConfig.model_fields["n_neighbors"].default


def _as_values(parameters: Any) -> dict[str, Any]:
    """Return parameters as JSON values; a start in memory is replaced by "in memory"."""
    values = parameters.model_dump()
    return {k: v if not hasattr(v, "shape") else "in memory" for k, v in values.items()}


@dataclass(frozen=True)
class Scoring:
    """The strategy of a method, with the redundancy rule and notes that apply to its scores."""

    strategy: Strategy
    selection: Selection
    notes: tuple[str, ...] = ()
    chosen_later: bool = False

    def cost(self) -> StageCost:
        """Return the cost of the method's strategy and of passing over redundant features."""
        return with_redundancy(self.strategy.cost(), self.redundancy)

    @property
    def redundancy(self) -> Redundancy | None:
        """The rule that passes over redundant features; None if there is none."""
        used = self.selection
        return Redundancy.of(used, self.strategy.shape, used.n_features_to_select)

    def run(self, inputs: Inputs, out: Scratch) -> None:
        """Compute and store the scores and the selection."""
        blocks, selection = inputs.blocks, self.selection
        for note in self.notes:
            logger.warning(note)
        notes = [*data_notes(blocks, selection.method), *self.notes]
        notes += preparation_notes(selection)
        result = passed_over(self.strategy.run(inputs, out), blocks, selection, self.redundancy)
        warnings = [*result.notes]
        if not result.scores.any():
            warnings.append(
                "All scores are 0: no feature varies, or the method does not distinguish them. The "
                "ranking is the order of the columns."
            )
        if result.details.get("converged") is False:
            warnings.append(
                f"The iteration ended before it converged: raise {selection.method}.max_iter (in "
                "Python max_iter)."
            )
        source, n_selected = blocks.source, selection.n_features_to_select
        if self.chosen_later and source.holds_counts():
            warnings.append(
                "n_features_to_select: auto chooses the number at which the selected features "
                "explain the others. For single-cell counts this is too small: cell types need "
                "more genes. Set it to the number that is usual in your field, such as 2000."
            )
        for note in warnings:
            logger.warning(note)
        notes += warnings
        largest = n_selected if self.chosen_later else None
        store_result(result, out, selection.method, n_selected, blocks, notes, largest)


def store_result(
    result: FeatureScores,
    out: Scratch,
    method: str,
    n_selected: int,
    blocks: RowBlocks,
    notes: list[str],
    largest: int | None = None,
) -> None:
    """Store the scores of a method and its selection.

    Parameters
    ----------
    result : FeatureScores
    out : Scratch
        Folder of the result.
    method : str
        Name of the method.
    n_selected : int
        Number of features to select.
    blocks : RowBlocks
        The data, for their shape and the names of the features.
    notes : list of str
    largest : int or None, default=None
        Largest number of features considered, if the number is chosen later.
    """
    out.put("selected", result.support(n_selected))
    result.store(
        out,
        method=method,
        n_features_to_select=n_selected,
        largest=largest,
        n_samples=blocks.n_samples,
        n_features=blocks.n_features,
        feature_names=blocks.source.feature_names,
        notes=notes,
    )


def preparation_notes(selection: Selection) -> list[str]:
    """Return a list with a sentence on how counts were prepared; empty for other data."""
    if not selection.preprocess.startswith("normalize"):
        return []
    logged = ", then log1p was applied" if selection.preprocess == "normalize_log1p" else ""
    compared = ""
    if selection.graph is not None and selection.graph.representation != "raw":
        kind, _, number = selection.graph.representation.rpartition("::")[2].partition(":")
        what = f"{number} principal components" if number else kind
        compared = f" Neighbors are computed from {what}."
    return [f"Counts: every row was scaled to a sum of 10,000{logged}.{compared}"]


def data_notes(blocks: RowBlocks, *methods: str) -> list[str]:
    """Return sentences on unusual feature names, and on scales if a method depends on them."""
    are_free = all(METHODS[name].scale_free for name in methods)
    notes = [note_on_names(blocks.source), *([] if are_free else blocks.scale_notes)]
    return [note for note in notes if note]


def warn_of_data(blocks: RowBlocks, *methods: str) -> None:
    """Log the sentences of `data_notes` as warnings, once, before the work begins."""
    for note in data_notes(blocks, *methods):
        logger.warning(note)


def check_form(stages: list[Stage], selection: Selection, source: Source) -> None:
    """Raise InputError if settings do not fit the features, or sparse data cannot be made dense."""
    if selection.least_gap is not None:
        numbers_of(source)
    n_taken, number = len(included(source, selection.include)), selection.n_features_to_select
    name, most = (".at_most", number.at_most) if isinstance(number, Auto) else ("", number)
    if n_taken > most:
        raise InputError(
            f"include names {n_taken:,} features, but n_features_to_select{name} is {most:,}. "
            f"Set it to at least {n_taken:,}."
        )
    dense = [stage.name for stage in stages if not stage.sparse]
    if not source.sparse or not dense:
        return
    own = METHODS[selection.method]
    if own.sparse and "graph" in dense:
        check_dense(
            source,
            f"the graph of representation '{selection.used_graph.representation}'",
            "Set graph.representation to 'pca:50'.",
        )
    what = f"stage '{dense[0]}'" if own.sparse else f"method '{own.name}'"
    sparse_methods = ", ".join(name for name, method in METHODS.items() if method.sparse)
    check_dense(source, what, f"Drop rare features first, or use one of {sparse_methods}.")


def check_settings(selection: Selection, n_samples: int | None, n_features: int) -> None:
    """Raise InputError for settings that the shape of the data does not allow.

    Parameters
    ----------
    selection : Selection
    n_samples : int or None
        None if it is not known yet.
    n_features : int
    """
    method = METHODS[selection.method]
    number = selection.n_features_to_select
    if isinstance(number, Auto):
        check_criterion(number, method.title, method.needs(selection.parameters))
    else:
        check_n_selected(method.title, number, n_features)
    if method.check is not None:
        method.check(selection.parameters)
    if method.neighbor_lists and selection.graph is not None and selection.graph.is_finished:
        raise InputError(
            f"{method.title} reads lists of neighbors, which the finished graph "
            f"{selection.graph.representation} does not have. Set graph.representation to 'raw'."
        )
    if n_samples is not None and selection.graph is not None:
        n_neighbors = selection.graph.n_neighbors
        if _takes_fewer_neighbors(selection):
            n_neighbors = min(n_neighbors, n_samples - 1)
        check_n_neighbors(n_neighbors, n_samples)
    sizes = {"n_samples": n_samples, "n_features": n_features}
    for bound in method.bounds:
        bound.check(method.title, selection.parameters, sizes)


def labels_of_start(selection: Selection) -> str | LabelValues | None:
    """Return the address or values of the labels that a method starts from, or None.

    Raises
    ------
    InputError
        If the start is a plain word that is neither a valid start nor an existing file or folder.
    """
    method = METHODS[selection.method]
    init, starts = getattr(selection.parameters, method.labels, None), method.starts
    if isinstance(init, LabelValues):
        return init
    if not isinstance(init, str) or init in starts:
        return None
    if init.isidentifier() and not os.path.exists(init):
        named = f"{', '.join(map(repr, starts))} or " if starts else ""
        raise InputError(
            f"{method.labels} must be {named}a file of labels. Got {init!r}, which does not exist. "
            f"To use a column of the input, name its file too: FILE::{init}."
        )
    return init


def start_of(
    selection: Selection,
    n_samples: int | None,
    dropped: Sequence[int] = (),
    rows: Mapping[str, int] = MappingProxyType({}),
) -> Any:
    """Return the start of a method: labels that are read, an array as given, or a name.

    If labels or an array are given for all rows, the entries of dropped rows are removed.

    Parameters
    ----------
    selection : Selection
    n_samples : int or None
        Required number of labels. None if it is not known yet.
    dropped : sequence of int, default=()
        Rows that were dropped when the data were read. Labels may also be given for all rows.
    rows : mapping of str to int, optional
        Names and sizes of the dimensions of the rows, as in `load_labels`.

    Raises
    ------
    InputError
        If labels cannot be read or do not fit.
    """
    labels = labels_of_start(selection)
    if labels is not None:
        return load_labels(labels, n_samples, dropped, rows=rows)
    given = getattr(selection.parameters, METHODS[selection.method].labels, None)
    if n_samples is None or not len(dropped) or given is None or isinstance(given, str):
        return given
    of_all_rows = len(given) == n_samples + len(dropped)
    return np.delete(given, dropped, axis=0) if of_all_rows else given


def checked_labels(given: Any, n_samples: int, n_clusters: int) -> np.ndarray:
    """Return given labels as an array of integers in [0, n_clusters), one for each row.

    Raises
    ------
    InputError
        If they have another shape, type or range.
    """
    labels = np.asarray(given)
    fits = labels.shape == (n_samples,) and labels.dtype.kind in "iu"
    if not fits or labels.min() < 0 or labels.max() >= n_clusters:
        raise InputError(
            f"init: labels must be {n_samples} whole numbers in [0, {n_clusters - 1}], one for "
            f"each row. Got {described(labels)}."
        )
    return labels


def described(given: np.ndarray) -> str:
    """Return a short description of a given array, for messages."""
    if given.ndim == 0:
        return repr(given.item())
    span = f", values {given.min()} to {given.max()}" if given.dtype.kind in "fiub" else ""
    return f"{given.dtype} of shape {given.shape}{span if given.size else ''}"


def content_of_labels(labels: str | LabelValues | None) -> dict[str, str]:
    """Return a setting with the fingerprint of the labels; empty without labels."""
    return {} if labels is None else {"content of the labels": digest_of(labels)}
