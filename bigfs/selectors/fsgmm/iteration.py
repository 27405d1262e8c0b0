"""FSGMM by fused passes: EM, components that drop out one after the other, checkpoints."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field, fields, replace

import numpy as np

from bigfs.blocks.rowblocks import BlockReader, RowBlocks
from bigfs.core.seeds import rng
from bigfs.runtime.execute import run_tasks
from bigfs.runtime.progress import silenced, track
from bigfs.selectors.fsgmm import FSGMMParameters
from bigfs.solvers.saliency import (
    Expectations,
    Mixture,
    expectation,
    maximization,
    message_length,
    tile_rows,
)
from bigfs.store.location import Location, replaced_file
from bigfs.store.scratch import ArrayRef, Scratch

_PARTS = tuple(part.name for part in fields(Mixture))


@dataclass
class MixtureState:
    """State of a fit: all that a checkpoint holds."""

    # What the next pass looks at, and the one of least message length so far.
    current: Mixture
    best: Mixture
    best_length: float = np.inf
    last_length: float = np.nan  # of the pass before, if nothing dropped out since; otherwise NaN
    # Message length and number of components, pass by pass.
    lengths: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    finished: bool = False


@dataclass(frozen=True)
class VaryingColumns:
    """The features that vary, and what standardizes them, as stored arrays."""

    kept: ArrayRef
    scaling: ArrayRef

    def standardized(self, X: np.ndarray, live: np.ndarray) -> np.ndarray:
        """Return the live ones of some rows, in float64."""
        columns = self.kept.load()[live]
        shift, scale = self.scaling.load()[:, live]
        Z = X[:, columns].astype(np.float64)
        Z -= shift
        Z *= scale
        return Z


def expectation_bytes(n_clusters: int, n_features: int) -> int:
    """Return the bytes that the E-step needs beside a block.

    The parameters with two partial sums, and the relevances of a tile.
    """
    sizes = 8 * n_features * (10 * n_clusters + 20)
    return sizes + 16 * n_clusters * n_features * 8 + 24 * 10**6


def maximization_bytes(n_clusters: int, n_features: int) -> int:
    """Return the bytes of the M-step: the sums, arrays of their size, and three mixtures."""
    return 8 * n_features * (20 * n_clusters + 40)


def begin(
    blocks: RowBlocks, columns: VaryingColumns, n_clusters: int, random_state: int
) -> MixtureState:
    """Return the start: rows at random as means, all else the same for all."""
    d = columns.kept.shape[0]
    chosen = rng(random_state, "fsgmm").choice(blocks.n_samples, n_clusters, replace=False)
    reader = blocks.start_pass(0)  # a few rows are no pass
    [mean] = run_tasks(_rows_task, [np.sort(chosen).tolist()], reader, columns, label="start")
    start = Mixture(
        np.full(n_clusters, 1 / n_clusters),
        mean,
        np.ones((n_clusters, d)),
        np.zeros(d),
        np.ones(d),
        np.full(d, 0.5),
        np.arange(d),
    )
    return MixtureState(start, start)


def fit(
    blocks: RowBlocks,
    columns: VaryingColumns,
    state: MixtureState,
    folder: Scratch,
    parameters: FSGMMParameters,
    file: Location | None,
) -> MixtureState:
    """Run EM from a state until the fewest components have settled, or for ``max_iter`` passes."""
    n, n_kept = blocks.n_samples, columns.kept.shape[0]
    with track("fsgmm", parameters.max_iter, "passes") as progress, silenced():
        progress.resume(len(state.lengths))
        while not state.finished:
            sums = one_pass(blocks, columns, state.current, folder)
            _advance(state, sums, n, n_kept, parameters)
            state.finished = state.finished or len(state.lengths) >= parameters.max_iter
            progress.advance(1, f"message length {state.lengths[-1]:.6g}")
            if file is not None:
                save(file, state)
    return state


def _advance(
    state: MixtureState,
    sums: Expectations,
    n_samples: int,
    n_features: int,
    parameters: FSGMMParameters,
) -> None:
    """Take the message length of the mixture of a pass, and put the next one in its place."""
    current, min_clusters = state.current, parameters.min_clusters
    length = message_length(sums.log_likelihood, current, n_samples, n_features)
    state.lengths.append(length)
    state.sizes.append(len(current.weights))
    if length < state.best_length:
        state.best, state.best_length = current, length
    settled = abs(state.last_length - length) <= parameters.tol * abs(length)
    if settled and len(current.weights) <= min_clusters:
        state.finished = True
        return
    if settled:
        after = current.without(int(current.weights.argmin()))
    else:
        after = maximization(sums, current, min_clusters, parameters.least_variance)
    same = len(after.weights) == len(current.weights) and len(after.live) == len(current.live)
    state.last_length = length if same else np.nan
    state.current = after
    # Where no feature tells anything apart nothing is left to fit.
    state.finished = len(after.live) == 0
    if state.finished:
        nothing = replace(
            after, weights=np.ones(1), mean=after.mean[:1], variance=after.variance[:1]
        )
        length = message_length(0.0, nothing, n_samples, n_features)
        if length < state.best_length:
            state.best, state.best_length = nothing, length


def one_pass(
    blocks: RowBlocks,
    columns: VaryingColumns,
    mixture: Mixture,
    folder: Scratch,
    labels: ArrayRef | None = None,
) -> Expectations:
    """Return the E-step's sums over all rows, and write the labels where they are wanted."""
    packed = folder.put(folder.unique("mixture"), _packed(mixture))
    sums: Expectations = blocks.reduce(
        _expectation_kernel, Expectations.add, columns, packed, mixture.weights.tolist(), labels,
        label="fsgmm",
    )  # fmt: skip
    folder.remove(packed)
    return sums


def write_labels(
    blocks: RowBlocks, columns: VaryingColumns, mixture: Mixture, folder: Scratch, labels: ArrayRef
) -> None:
    """Write the most likely component of every row."""
    if len(mixture.live):
        one_pass(blocks, columns, mixture, folder, labels)
        return
    for first, end in blocks.bounds:
        labels.write(first, np.zeros(end - first, dtype=np.int32))


def _packed(mixture: Mixture) -> np.ndarray:
    """Return all but the weights as one array: tasks read it from storage."""
    return np.vstack(
        [
            mixture.mean,
            mixture.variance,
            mixture.common_mean,
            mixture.common_variance,
            mixture.saliency,
            mixture.live,
        ]
    )


def _unpacked(values: np.ndarray, weights: list[float]) -> Mixture:
    k = len(weights)
    common_mean, common_variance, saliency, live = values[2 * k :]
    return Mixture(
        np.array(weights),
        values[:k],
        values[k : 2 * k],
        common_mean,
        common_variance,
        saliency,
        live.astype(np.int64),
    )


def _expectation_kernel(
    X: np.ndarray,
    first_row: int,
    columns: VaryingColumns,
    packed: ArrayRef,
    weights: list[float],
    labels: ArrayRef | None,
) -> Expectations:
    """Run the E-step on one block, by tiles."""
    mixture = _unpacked(packed.load(), weights)
    total: Expectations | None = None
    nearest = np.empty(len(X), dtype=np.int32)
    step = tile_rows(mixture)
    for at in range(0, len(X), step):
        Z = columns.standardized(X[at : at + step], mixture.live)
        sums, nearest[at : at + step] = expectation(Z, mixture)
        total = sums if total is None else total.add(sums)
    if labels is not None:
        labels.write(first_row, nearest)
    assert total is not None
    return total


def _rows_task(rows: list[int], reader: BlockReader, columns: VaryingColumns) -> np.ndarray:
    """Return some rows, standardized."""
    X = np.concatenate([reader.read(row, row + 1) for row in rows])
    return columns.standardized(X, np.arange(columns.kept.shape[0]))


def save(path: Location, state: MixtureState) -> None:
    """Write the checkpoint beside its name and rename it."""
    mixtures = {"current": state.current, "best": state.best}
    arrays = {f"{n}_{part}": getattr(m, part) for n, m in mixtures.items() for part in _PARTS}
    arrays["numbers"] = np.array([state.best_length, state.last_length, float(state.finished)])
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(path) as file:
        np.savez(file, lengths=np.array(state.lengths), sizes=np.array(state.sizes), **arrays)


def load(path: Location | None) -> MixtureState | None:
    """Return the stored state, or None where there is none that can be read."""
    if path is None or not path.exists():
        return None
    try:
        # A file of ours: numpy would leave it open where it is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            values = {name: stored[name] for name in stored.files}
        current, best = (
            Mixture(*(values[f"{name}_{part}"] for part in _PARTS)) for name in ("current", "best")
        )
        best_length, last_length, finished = values["numbers"].tolist()
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    lengths, sizes = values["lengths"].tolist(), values["sizes"].tolist()
    return MixtureState(current, best, best_length, last_length, lengths, sizes, bool(finished))
