"""One trial of a paper's protocol in one task: fit methods on some rows, evaluate selections.

The trials of a data set share a folder, where equal stages meet: a graph that one task has made
serves the others.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.config import Config, Entry
from bigfs.core.paths import LabelValues
from bigfs.core.seeds import derive_seed, rng
from bigfs.evaluate.metrics import nearest_neighbor_error
from bigfs.evaluate.protocols import Protocol, clustering_scores, kmeans_scores
from bigfs.pipeline.compare import fits_for
from bigfs.runtime.scope import inline
from bigfs.selectors.scoring import stages_of_selection
from bigfs.stages.engine import Engine
from bigfs.stages.scores import FeatureScores
from bigfs.store.location import as_location, is_remote, remove_tree, replaced_file
from bigfs.store.scratch import ArrayRef, Scratch
from pipelines.paper.stages import SharedStages

# A method that starts here starts from the known classes: the LFS paper's evaluation.
CLASSES = "classes"


@dataclass(frozen=True)
class Trial:
    """Some rows of a data set."""

    # The data set, preprocessed.
    X: ArrayRef
    y: ArrayRef
    folder: str  # where the trial's tasks keep what they share
    # Rows of these classes. None: all.
    classes: tuple[int, ...] | None = None

    def load(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows, and their classes numbered from 0."""
        X, y = self.X.load(), self.y.load()
        if self.classes is None:
            return X, y
        kept = np.isin(y, self.classes)
        return X[kept], np.searchsorted(np.sort(self.classes), y[kept])


@dataclass(frozen=True)
class Found:
    """The outcome of one configuration in one trial."""

    selections: dict[int, tuple[int, ...]]  # per number of features: the selected ones, ascending
    # `clustering_scores` of the method's own clusters, for the first number of features.
    clusters: dict[str, float] | None


def draw_classes(y: np.ndarray, n_classes: int, draw: int, random_state: int) -> tuple[int, ...]:
    """Return the classes of a draw, ascending."""
    generator = rng(random_state, f"classes {n_classes}", draw)
    chosen = generator.choice(int(y.max()) + 1, n_classes, replace=False)
    return tuple(sorted(chosen.tolist()))


def fit_trial(trial: Trial, entries: list[Entry], sizes: list[int]) -> list[Found]:
    """Fit configurations on the rows of a trial, in this thread."""
    with inline():
        X, y = trial.load()
        return _fit(X, y, trial, entries, sizes)


def _fit(
    X: np.ndarray, y: np.ndarray, trial: Trial, entries: list[Entry], sizes: list[int]
) -> list[Found]:
    folder = as_location(trial.folder)
    work = Scratch(folder / f"work-{uuid.uuid4().hex[:12]}")
    blocks = RowBlocks.from_any(X, scratch=work)
    blocks.keeps_gram = True
    engine = Engine(SharedStages(folder), blocks, memory_limit=entries[0].config.memory_limit)
    outcomes = []
    classes = folder / f"classes-{uuid.uuid4().hex[:12]}.npy"
    with replaced_file(classes, sync=False) as file:
        np.save(file, y)
    for entry in entries:
        begun = started(entry.config, str(classes))
        selections: dict[int, tuple[int, ...]] = {}
        clusters = None
        wanted = [m for m in sizes if m <= X.shape[1]]
        if entry.everything:
            wanted = [X.shape[1]]
        for config, served in fits_for(begun, wanted):
            stages = stages_of_selection(config, remote=is_remote(folder))
            result = FeatureScores.open(engine.run(stages)["result"])
            selections |= {m: tuple(result.support(m).tolist()) for m in served}
            labels = result.details.get("labels")
            if wanted[0] in served and labels is not None:
                clusters = clustering_scores(y, labels.load())
        outcomes.append(Found(selections, clusters))
    remove_tree(work.path)
    return outcomes


def started(config: Config, classes: str | LabelValues) -> Config:
    """Return the configuration with ``init: classes`` as the known classes."""
    if getattr(config.parameters, "init", None) != CLASSES:
        return config
    return config.with_parameters(init=classes)


def judge(
    columns: tuple[int, ...] | None, trial: Trial, protocol: Protocol, repetitions: range
) -> list[dict[str, float]]:
    """Return the scores of k-means on the columns (None: all), for each repetition."""
    X, y = trial.load()
    part = X if columns is None else X[:, list(columns)]
    # Single precision halves the time of k-means; the starts and the figures are as good.
    part = np.ascontiguousarray(part, dtype=np.float32)
    scores = [
        kmeans_scores(
            part,
            y,
            n_clusters=protocol.n_clusters,
            n_init=protocol.n_init,
            init=protocol.init,
            seed=derive_seed(protocol.random_state, "evaluation", i),
        )
        for i in repetitions
    ]
    if protocol.nearest_neighbor:
        error = nearest_neighbor_error(part, y)
        scores = [{**repetition, "nearest_neighbor_error": error} for repetition in scores]
    return scores


def fit_and_judge(
    trial: Trial, entries: list[Entry], sizes: list[int], protocol: Protocol
) -> dict[tuple[str, int], list[dict[str, float]]]:
    """Return the scores of every method and number of features, and of all features, in a trial.

    All features are named ``""`` and 0.
    """
    with inline():
        X, y = trial.load()
        outcomes = _fit(X, y, trial, entries, sizes)
        repetitions = range(protocol.n_repetitions)
        scores = {("", 0): judge(None, trial, protocol, repetitions)}
        for entry, outcome in zip(entries, outcomes, strict=True):
            for m, columns in outcome.selections.items():
                scores[entry.name, m] = judge(columns, trial, protocol, repetitions)
    return scores
