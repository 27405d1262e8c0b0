"""One trial of a paper's protocol inside one task: fit methods on some rows, judge what they keep.

The trials of a data set share a folder, where equal stages meet: a graph that one task has made
serves the others.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.comparison.fits import SharedFits, fits_for
from bigfs.config import Config
from bigfs.config.comparison import Entry
from bigfs.context import Context
from bigfs.core.execute import inline
from bigfs.core.paths import plain_name
from bigfs.core.seeds import derive_seed, rng
from bigfs.evaluate.metrics import nearest_neighbor_error
from bigfs.evaluate.protocols import Protocol, clustering_scores, kmeans_scores
from bigfs.scores import support_of
from bigfs.stages import Stage
from bigfs.store.location import Location, as_location, remove_tree, replaced_file
from bigfs.store.objects import ConflictError, ObjectPath
from bigfs.store.scratch import ArrayRef, Scratch

# A method that starts here starts from the known classes: the LFS paper's evaluation.
CLASSES = "classes"


@dataclass(frozen=True)
class Trial:
    """Some rows of a data set.

    Attributes
    ----------
    X, y : ArrayRef
        The data set, preprocessed.
    folder : str
        Where the trial's tasks keep what they share.
    classes : tuple of int or None
        Rows of these classes. None: all.
    """

    X: ArrayRef
    y: ArrayRef
    folder: str
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
    """What one configuration found in one trial.

    Attributes
    ----------
    selections : dict of int to tuple of int
        Per number of features: the selected ones, ascending.
    clusters : dict of str to float, or None
        `clustering_scores` of the method's own clusters, for the first number of features.
    """

    selections: dict[int, tuple[int, ...]]
    clusters: dict[str, float] | None


class _Folder:
    """Stores stages as a run directory does, for tasks that run at the same time."""

    def __init__(self, path: Location) -> None:
        self.path = path

    def stage_path(self, name: str) -> Location:
        if isinstance(self.path, ObjectPath):
            first = self.path / f"{name}.first"
            return self.path / plain_name(first.read_text(), first)
        return self.path / f"{name}.zarr"

    def run(self, context: Context, stage: Stage, name: str) -> None:
        """Run a stage unless one of the tasks has; whoever is first keeps it."""
        if isinstance(self.path, ObjectPath):
            self._run_first(context, stage, self.path / f"{name}.first")
            return
        final = self.path / f"{name}.zarr"
        if final.exists():
            return
        scratch = Scratch(self.path / f"{name}-{uuid.uuid4().hex[:12]}.partial")
        stage.run(context, scratch)
        try:
            scratch.path.rename(final)
        except OSError:
            if not final.exists():
                raise
            scratch.close()

    def _run_first(self, context: Context, stage: Stage, first: ObjectPath) -> None:
        """Run a stage in a bucket, without renames: an object says which task was first."""
        if first.is_file():
            return
        scratch = Scratch(first.with_name(f"{first.stem}-{uuid.uuid4().hex[:12]}.zarr"))
        stage.run(context, scratch)
        try:
            first.write_if(scratch.path.name, None)
        except ConflictError:
            if first.read_text() != scratch.path.name:  # else an answer was lost
                scratch.close()


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
    folder = _Folder(as_location(trial.folder))
    work = Scratch(folder.path / f"work-{uuid.uuid4().hex[:12]}")
    blocks = RowBlocks.from_any(X, scratch=work)
    blocks.keeps_gram = True
    fits = SharedFits(folder, folder.path, "", blocks, work, entries[0].config, folder.run)
    found = []
    classes = folder.path / f"classes-{uuid.uuid4().hex[:12]}.npy"
    with replaced_file(classes, sync=False) as file:
        np.save(file, y)
    for entry in entries:
        started = _started(entry.config, str(classes))
        selections: dict[int, tuple[int, ...]] = {}
        clusters = None
        wanted = [m for m in sizes if m <= X.shape[1]]
        if entry.everything:
            wanted = [X.shape[1]]
        for n_fit, served in fits_for(entry.config, wanted):
            config = started.model_copy(update={"n_features_to_select": n_fit})
            stored = folder.stage_path(fits.fit(config))
            selections |= {m: tuple(selection(stored, m).tolist()) for m in served}
            if wanted[0] in served and (stored / "labels").exists():
                clusters = clustering_scores(y, ArrayRef.at(stored / "labels").load())
        found.append(Found(selections, clusters))
    remove_tree(work.path)
    return found


def _started(config: Config, classes: str) -> Config:
    """Return the configuration with ``init: classes`` as a file with the known classes."""
    section = getattr(config, config.method, None)
    if getattr(section, "init", None) != CLASSES:
        return config
    return config.model_copy(update={config.method: section.model_copy(update={"init": classes})})


def selection(stored: Location, n_selected: int) -> np.ndarray:
    """Return the features that a stored result selects, ascending."""
    ranking = ArrayRef.at(stored / "ranking").load()
    supports = stored / "supports"
    return support_of(
        ranking, ArrayRef.at(supports).load() if supports.exists() else None, n_selected
    )


def judge(
    columns: tuple[int, ...] | None, trial: Trial, protocol: Protocol, repetitions: range
) -> list[dict[str, float]]:
    """Return the scores of k-means on the columns (None: all), for each repetition."""
    X, y = trial.load()
    part = X if columns is None else X[:, list(columns)]
    # Single precision halves the time of k-means; the starts and the figures are as good.
    part = np.ascontiguousarray(part, dtype=np.float32)
    found = [
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
        found = [{**one, "nearest_neighbor_error": error} for one in found]
    return found


def fit_and_judge(
    trial: Trial, entries: list[Entry], sizes: list[int], protocol: Protocol
) -> dict[tuple[str, int], list[dict[str, float]]]:
    """Return the scores of every method and number of features, and of all features, in a trial.

    All features are named ``""`` and 0.
    """
    with inline():
        X, y = trial.load()
        found = _fit(X, y, trial, entries, sizes)
        repetitions = range(protocol.n_repetitions)
        scores = {("", 0): judge(None, trial, protocol, repetitions)}
        for entry, one in zip(entries, found, strict=True):
            for m, columns in one.selections.items():
                scores[entry.name, m] = judge(columns, trial, protocol, repetitions)
    return scores
