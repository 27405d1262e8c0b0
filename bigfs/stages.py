"""The stages of a run: what each depends on, what it costs, what it computes and where it goes.

A stage is a name, a version of its algorithm, the settings it depends on, a function that fills a
folder and one that says what that will cost. Stages meet only at the run directory: each reads
what earlier ones stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

from bigfs.blocks import RowBlocks
from bigfs.config import Config
from bigfs.context import Context
from bigfs.core.cost import Shape, StageCost
from bigfs.core.errors import ConfigError, InputError
from bigfs.core.paths import plain_name
from bigfs.evaluate.selection import compare_with_all
from bigfs.graph import affinity, knn_graph
from bigfs.graph.cost import graph_cost
from bigfs.graph.knn import KNNGraph
from bigfs.graph.local import check_n_neighbors
from bigfs.methods import METHODS
from bigfs.selectors._base import check_n_selected
from bigfs.selectors.costs import evaluation_cost
from bigfs.spectral.cost import spectral_cost
from bigfs.spectral.embedding import spectral_embedding
from bigfs.store.fingerprint import fingerprint
from bigfs.store.ingest import ingest
from bigfs.store.labels import load_classes, load_labels
from bigfs.store.location import Location, as_location, copy_tree, is_remote, is_within
from bigfs.store.scratch import ArrayRef, Scratch, read_attributes
from bigfs.store.source import as_path


@dataclass(frozen=True)
class Stage:
    """One checkpointed step.

    Attributes
    ----------
    name : str
        Also the name of its zarr group in the run directory.
    version : int
        Raised when the algorithm's results change.
    settings : dict
        What the result depends on, besides the stages before it.
    run : callable
        ``run(context, out)`` fills the folder ``out``.
    cost : callable or None, default=None
        ``cost(config, shape)`` says what that will take. None: nothing worth a word.
    """

    name: str
    version: int
    settings: dict[str, Any]
    run: Callable[[Context, Scratch], None]
    cost: Callable[[Config, Shape], StageCost] | None = None


def stages_of(config: Config) -> list[Stage]:
    """Return the stages of a configuration after the data are in place, in order."""
    method = METHODS[config.method]
    stages = []
    sampled = config.method == "m3fs" and config.m3fs.sample_size is not None
    if config.graph is not None and not sampled:
        graph = config.graph.model_dump()
        common = {
            "preprocess": config.preprocess,
            "rows": config.blocks.rows,
            "random_state": config.random_state,
            "memory_limit": config.memory_limit,
        }
        stages.append(Stage("graph", 4, {**graph, **common}, _run_graph, _graph_cost))
    if config.spectral is not None:
        spectral = {
            **config.spectral.model_dump(),
            "memory_limit": config.memory_limit,
            "n_components": n_components(config),
            "random_state": config.random_state,
        }
        stages.append(Stage("spectral", 3, spectral, _run_spectral, _spectral_cost))
    scoring = {
        "method": config.method,
        "m": config.n_features_to_select,
        "rows": config.blocks.rows,
        "preprocess": config.preprocess,
        **method.settings(config),
        **_content_of_labels(_labels_of_start(config)),
    }
    stages.append(Stage("result", 2, scoring, _run_scores, method.cost))
    if config.evaluate is not None:
        chosen = {**config.evaluate.model_dump(), "random_state": config.random_state}
        chosen |= _content_of_labels(config.evaluate.labels)
        stages.append(Stage("evaluation", 2, chosen, _run_evaluation, _evaluation_cost))
    return stages


def check_settings(config: Config, n_samples: int | None, n_features: int) -> None:
    """Raise InputError for settings that the shape of the data does not allow.

    Parameters
    ----------
    config : Config
    n_samples : int or None
        None where it is not known yet.
    n_features : int
    """
    check_n_selected(config.method, config.n_features_to_select, n_features)
    if n_samples is not None and config.graph is not None:
        check_n_neighbors(config.graph.n_neighbors, n_samples)
    METHODS[config.method].check(config, n_samples, n_features)


def check_labels(config: Config, n_samples: int | None) -> None:
    """Raise InputError if labels to start from, or to judge by, cannot be read or do not fit.

    Parameters
    ----------
    config : Config
    n_samples : int or None
        How many labels there must be. None where it is not known yet.
    """
    labels = _labels_of_start(config)
    if labels is not None:
        load_labels(labels, n_samples)
    if config.evaluate is not None:
        load_classes(config.evaluate.labels, n_samples)


def check_outside(config: Config) -> None:
    """Raise ConfigError if the input or labels lie in the run directory, which is bigfs's own."""
    named = {"input.uri": config.input.uri, f"{config.method}.init": _labels_of_start(config)}
    if config.evaluate is not None:
        named["evaluate.labels"] = config.evaluate.labels
    for key, uri in named.items():
        if uri is not None:
            check_apart(config.run, key, uri)


def check_apart(run: str, key: str, uri: str) -> None:
    """Raise ConfigError if what a setting names lies in a run directory."""
    path = as_path(uri.partition("::")[0])
    if path is not None and is_within(path, as_location(run)):
        raise ConfigError(
            f"{key}: {uri} lies in the run directory {run}, which holds what a run makes. Move it "
            "elsewhere, or give another run directory."
        )


def _labels_of_start(config: Config) -> str | None:
    """Return where the labels are that a method starts from, None if it does not."""
    words = METHODS[config.method].starts
    if not words:
        return None
    init = str(getattr(config, config.method).init)
    return None if init in words else init


def _content_of_labels(uri: str | None) -> dict[str, str]:
    """Return what tells whether a file of labels has changed, as a setting."""
    return {} if uri is None else {"content of the labels": fingerprint(uri.partition("::")[0])}


def n_components(config: Config) -> int | str:
    """Return the number of eigenvectors of a configuration, or "auto"."""
    wanted = METHODS[config.method].n_components
    assert wanted is not None, f"{config.method} takes no eigenvectors"
    return wanted(config)


def run_ingest(config: Config, out: Location) -> dict[str, Any]:
    """Bring the input into a store of ours; return what the manifest keeps of it."""
    report = ingest(
        config.input.uri, out, variable=config.input.variable, missing=config.input.missing
    )
    return {
        "n_samples": report.n_samples,
        "n_features": report.n_features,
        "filled_values": report.filled_values,
        "dropped_rows": report.dropped_rows,
    }


def _graph_cost(config: Config, shape: Shape) -> StageCost:
    settings = config.graph
    return graph_cost(
        shape,
        settings.n_neighbors,
        config.memory_limit,
        algorithm=settings.algorithm,
        representation=settings.representation,
        metric=settings.metric,
        recall_target=settings.recall_target,
        weight=settings.weight,
        remote=is_remote(config.run),
    )


def _run_graph(context: Context, out: Scratch) -> None:
    config, blocks = context.config, context.blocks
    if context.neighbors is not None:
        graph = _take_neighbors(context.neighbors, out)
    else:
        graph = _find_neighbors(config, blocks, out)
    W = affinity(
        graph,
        weight=config.graph.weight,
        sigma=config.graph.sigma,
        blocks=blocks,
        scratch=out.child("affinity"),
    )
    out.describe(
        graph=graph.describe(),
        affinity=W.describe(),
        measured_peak_bytes=graph.details["measured_peak_bytes"],
    )


def _find_neighbors(config: Config, blocks: RowBlocks, out: Scratch) -> KNNGraph:
    return knn_graph(
        blocks,
        config.graph.n_neighbors,
        metric=config.graph.metric,
        algorithm=config.graph.algorithm,
        representation=config.graph.representation,
        eps=config.graph.eps,
        recall_target=config.graph.recall_target,
        if_missed=config.graph.if_missed,
        memory_limit=config.memory_limit,
        random_state=config.random_state,
        scratch=out,
    )


def _take_neighbors(path: Location, out: Scratch) -> KNNGraph:
    """Take over the neighbors of another graph stage; only the weights differ."""
    stored = read_attributes(path)["graph"]
    for name in (*stored["arrays"], "partitions"):
        copy_tree(path / plain_name(name, path), out.path / name)
    return KNNGraph.open(out.path, stored)


def _spectral_cost(config: Config, shape: Shape) -> StageCost:
    return spectral_cost(
        shape.n_samples,
        config.graph.n_neighbors,
        n_components(config),
        config.memory_limit,
        solver=config.spectral.solver,
        tol=config.spectral.tol,
        weight=config.graph.weight,
    )


def _run_spectral(context: Context, out: Scratch) -> None:
    config = context.config
    found = spectral_embedding(
        context.affinity,
        n_components(config),
        solver=config.spectral.solver,
        tol=config.spectral.tol,
        random_state=config.random_state,
        memory_limit=config.memory_limit,
        scratch=out,
        chunk_rows=context.blocks.rows,
        checkpoint=context.checkpoint,
    )
    out.describe(
        eigenvalues=found.eigenvalues.tolist(),
        norms=found.norms.tolist(),
        residuals=found.residuals.tolist(),
        n_connected_components=found.n_connected_components,
        spectrum=found.spectrum.tolist(),
        solver=found.solver,
        reason=found.reason,
        n_products=found.n_products,
        n_iterations=found.n_iterations,
        details=found.details,
    )


def _run_scores(context: Context, out: Scratch) -> None:
    config, blocks = context.config, context.blocks
    n_selected = check_n_selected(config.method, config.n_features_to_select, blocks.n_features)
    result = METHODS[config.method].score(context, n_selected, out)
    out.put("scores", result.scores)
    out.put("ranking", result.ranking)
    out.put("selected", result.support(n_selected))
    if result.supports is not None:
        out.put("supports", result.supports)
    small = {}
    for name, values in result.details.items():
        if isinstance(values, np.ndarray):
            out.put(name, values)
        elif issparse(values):
            for part in ("data", "indices", "indptr"):
                out.put(f"{name}_{part}", getattr(values, part))
        elif not isinstance(values, ArrayRef):  # tasks have written that where it belongs
            small[name] = values
    out.describe(
        **small,
        method=config.method,
        n_features_to_select=n_selected,
        n_samples=blocks.n_samples,
        n_features=blocks.n_features,
        feature_names=blocks.source.feature_names,
    )


def _evaluation_cost(config: Config, shape: Shape) -> StageCost:
    settings = config.evaluate
    assert settings is not None
    return evaluation_cost(
        shape,
        min(config.n_features_to_select, shape.n_features),
        settings.n_repetitions,
        settings.nearest_neighbor,
        config.memory_limit,
    )


def _run_evaluation(context: Context, out: Scratch) -> None:
    settings = context.config.evaluate
    if settings is None:
        raise InputError("evaluate: no labels are given. Set evaluate.labels.")
    stored = context.directory.stage_path("result")
    out.describe(
        **compare_with_all(
            context.blocks,
            ArrayRef.at(stored / "selected").load(),
            **settings.model_dump(),
            random_state=context.config.random_state,
            memory_limit=context.config.memory_limit,
        )
    )
