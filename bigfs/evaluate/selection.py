"""Evaluation of a selection: k-means and nearest neighbors on its columns, judged by labels."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigfs.blocks import kernels
from bigfs.blocks.rowblocks import BlockReader, RowBlocks
from bigfs.core.cost import Shape
from bigfs.core.errors import InputError
from bigfs.core.memory import task_budget
from bigfs.core.seeds import derive_seed
from bigfs.core.threads import single_thread
from bigfs.core.units import format_bytes, parse_bytes
from bigfs.core.uris import LabelValues
from bigfs.evaluate.compat import dask_kmeans
from bigfs.evaluate.metrics import (
    Frame,
    PreparedRows,
    count_nearest_errors,
    nearest_rows,
    redundancy,
    redundancy_of_products,
)
from bigfs.evaluate.protocols import Protocol, clustering_scores, kmeans_scores
from bigfs.runtime.execute import map_reduce, run_tasks
from bigfs.runtime.progress import silenced, track
from bigfs.store.csr import DENSE_LIMIT_BYTES
from bigfs.store.labels import load_labels, name_of
from bigfs.store.scratch import ArrayRef

_STRIPS = 4
_PRODUCT_BYTES = 32 * 1024**2


@dataclass(frozen=True)
class _Measurement:
    """One task: a repetition of k-means, a strip of the nearest-neighbor search, or neither."""

    repetition: int | None = None
    strip: tuple[int, int] | None = None


@dataclass(frozen=True)
class _SelectionReader:
    """Source of a selection's rows for tasks: stored columns, or the data themselves."""

    reader: BlockReader
    stored: ArrayRef | None

    def read(self, start: int, stop: int) -> np.ndarray:
        if self.stored is not None:
            return self.stored.read(start, stop)
        return self.reader.read(start, stop)


def compare_with_all(
    blocks: RowBlocks,
    selected: np.ndarray,
    labels: str | LabelValues,
    *,
    n_clusters: int | None = None,
    n_repetitions: int = 20,
    n_init: int = 10,
    init: str = "k-means++",
    nearest_neighbor: bool = True,
    random_state: int,
    memory_limit: int | str,
) -> dict[str, Any]:
    """Return NMI, ACC, Rand index and 1-NN error of the selected and of all features.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    selected : ndarray of shape (n_selected,), int64
    labels : str or LabelValues
        The known classes, or their URI.
    n_clusters : int or None, default=None
        Clusters k-means looks for; None: the number of classes.
    n_repetitions, n_init, init, nearest_neighbor, random_state
        As in `Protocol`.
    memory_limit : int or str
        Resident size promised for one worker process.

    Returns
    -------
    figures : dict
        JSON values: ``selected`` and ``all``, each as `measure_selection` returns it; and the
        settings. Of CSR blocks there is no ``all``, which would make them dense.

    Raises
    ------
    InputError
        If the labels cannot be read or do not fit the data.
    """
    y = load_labels(labels, blocks.n_samples, blocks.source.dropped, to_judge_by=True)
    protocol = Protocol(
        n_clusters or int(y.max()) + 1, n_repetitions, n_init, init, nearest_neighbor, random_state
    )
    judged = {"selected": selected} if blocks.sparse else {"selected": selected, "all": None}
    return {
        **{
            name: measure_selection(blocks, y, columns, protocol, memory_limit)
            for name, columns in judged.items()
        },
        "labels": name_of(labels),
        "n_clusters": protocol.n_clusters,
        "n_repetitions": n_repetitions,
        "n_init": n_init,
    }


def dense_columns(shape: Shape, width: int) -> Shape:
    """Return the shape of so many columns, dense."""
    return replace(shape, n_features=width, n_entries=None, block_entries=None)


def in_memory_bytes(shape: Shape) -> int:
    """Return the bytes to cluster rows in one task: the rows, and the copies of k-means."""
    return 3 * shape.nbytes


def measure_selection(
    blocks: RowBlocks,
    y: np.ndarray,
    selected: np.ndarray | None,
    protocol: Protocol,
    memory_limit: int | str,
) -> dict[str, float]:
    """Judge a selection by k-means, nearest neighbors and the correlations within it.

    Columns that fit a worker three times over are clustered by scikit-learn, each repetition in
    a task with its own seed, so that the figures do not depend on the number of workers; larger
    ones by dask-ml, whose centers depend on the row blocks. The nearest neighbors are exact in
    either case.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    y : ndarray of shape (n_samples,), int64
        Known classes.
    selected : ndarray of shape (n_selected,), int64, or None
        None: all features.
    protocol : Protocol
    memory_limit : int or str
        Resident size promised for one worker process.

    Returns
    -------
    scores : dict of str to float
        Mean and deviation of every score of `clustering_scores` (``nmi_mean``, ``nmi_std``,
        ...), ``nearest_neighbor_error`` if the protocol asks for it, and ``redundancy``.

    Raises
    ------
    InputError
        If all columns of CSR blocks are to be judged.
    """
    if selected is None and blocks.sparse:
        raise InputError(
            f"{blocks.source.uri}: all {blocks.n_features:,} features of sparse data above "
            f"{format_bytes(DENSE_LIMIT_BYTES)} dense are not judged. Select fewer."
        )
    n, width = blocks.n_samples, blocks.n_features if selected is None else len(selected)
    needed = in_memory_bytes(dense_columns(blocks.layout, width))
    scratch = blocks.scratch
    labels = scratch.put(scratch.unique("labels"), y)
    columns = _store_columns(blocks, selected)
    if needed <= task_budget(parse_bytes(memory_limit)):
        scores = _in_memory(columns, n, labels, protocol)
    else:
        scores = _by_blocks(blocks, columns, width, labels, protocol)
    scratch.remove(labels, *([columns.stored] if columns.stored else []))
    return scores


def measure_draws(
    blocks: RowBlocks,
    y: np.ndarray,
    draws: Sequence[np.ndarray | None],
    protocol: Protocol,
    memory_limit: int | str,
) -> dict[str, float]:
    """Evaluate random selections: the mean of their scores and the spread of single draws.

    Parameters
    ----------
    blocks, y, protocol, memory_limit
        As in `measure_selection`. The repetitions are shared out among the draws: all draws take
        as many runs of k-means as one selection, at least one each, with seeds of their own.
    draws : sequence of ndarray or None
        At least two selections of one size.

    Returns
    -------
    scores : dict of str to float
        For every score of `measure_selection`: ``SCORE_mean`` and ``SCORE_std`` over the draws
        (divisor n - 1), and ``SCORE_low`` and ``SCORE_high``, which a further draw is between
        with a probability of 95 %: ``mean +- t std sqrt(1 + 1/n)``, with t the 0.975 quantile
        of Student's distribution with n - 1 degrees of freedom.
    """
    share = -(-protocol.n_repetitions // len(draws))

    def judge(draw: np.ndarray | None, i: int) -> dict[str, float]:
        seed = derive_seed(protocol.random_state, "draw", i)
        own = replace(protocol, n_repetitions=share, random_state=seed)
        return measure_selection(blocks, y, draw, own, memory_limit)

    return over_draws(draws, judge)


def over_draws(
    draws: Sequence[np.ndarray | None],
    judge: Callable[[np.ndarray | None, int], dict[str, float]],
) -> dict[str, float]:
    """Return mean, deviation and interval of the scores ``judge(draw, i)``; see `measure_draws`."""
    from scipy.special import stdtrit

    n = len(draws)
    scores: dict[str, list[float]] = {}
    with track("chance", n, "draws") as progress:
        for i, draw in enumerate(draws):
            with silenced():
                judged = judge(draw, i)
            for name, value in judged.items():
                if not name.endswith("_std"):
                    scores.setdefault(name.removesuffix("_mean"), []).append(value)
            progress.advance(1)
    summary: dict[str, float] = {}
    for name, values in scores.items():
        mean, std = float(np.mean(values)), float(np.std(values, ddof=1))
        reach = float(stdtrit(n - 1, 0.975)) * std * float(np.sqrt(1 + 1 / n))
        summary |= {f"{name}_mean": mean, f"{name}_std": std}
        summary |= {f"{name}_low": mean - reach, f"{name}_high": mean + reach}
    return summary


def measure_unlabeled(
    blocks: RowBlocks, selected: np.ndarray | None, memory_limit: int | str
) -> dict[str, float]:
    """Judge a selection without labels, in one pass: ``X'X_S`` of the centered columns.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    selected : ndarray of shape (n_selected,), int64, or None
        None: all features.
    memory_limit : int or str
        Resident size promised for one worker process.

    Returns
    -------
    scores : dict of str to float
        ``explained``: the share of a feature's variance that a linear regression on the selected
        ones explains, the mean over the features that vary; left out where the products do not
        fit. ``redundancy``: the mean absolute correlation of two selected features.
    """
    if selected is None:
        return {"explained": 1.0}
    moments, m = blocks.moments(), len(selected)
    center = moments.mean if blocks.offset is None else moments.mean - blocks.offset
    fits = 4 * 8 * m * blocks.n_features <= task_budget(parse_bytes(memory_limit))
    scratch = blocks.scratch
    shared = [
        scratch.put(scratch.unique(name), values)
        for name, values in (("selected", np.asarray(selected)), ("mean", center))
    ]
    total = blocks.reduce(_products_with, np.add, *shared, fits, label="explained")
    scratch.remove(*shared)
    gram = total[selected] if fits else total
    scores = {"redundancy": redundancy_of_products(gram)}
    if not fits:
        return scores
    spread = np.sqrt(np.maximum(gram.diagonal(), np.finfo(float).tiny))
    inverse = np.linalg.pinv(gram / spread / spread[:, None], rcond=1e-10, hermitian=True)
    scaled = total / spread
    explained = np.einsum("ij,jk,ik->i", scaled, inverse, scaled, optimize=True)
    varies = ~moments.constant & (moments.squares > 0)
    shares = np.clip(explained[varies] / moments.squares[varies], 0.0, 1.0)
    return {"explained": float(shares.mean()) if len(shares) else 0.0, **scores}


def _products_with(
    X: Any, first_row: int, selected: ArrayRef, mean: ArrayRef, with_all: bool
) -> np.ndarray:
    """Return the centered products of all, or of the selected, columns with the selected ones."""
    kept, center = selected.load(), mean.load()
    S = _columns(X, kept).astype(np.float64) - center[kept]
    return kernels.block_xtv(X, S, center) if with_all else S.T @ S


def _in_memory(
    columns: _SelectionReader, n_samples: int, labels: ArrayRef, protocol: Protocol
) -> dict[str, float]:
    edges = np.linspace(0, n_samples, _STRIPS + 1, dtype=int).tolist()
    strips = list(zip(edges[:-1], edges[1:], strict=True)) if protocol.nearest_neighbor else []
    tasks = [
        _Measurement(),
        *(_Measurement(strip=strip) for strip in strips),
        *(_Measurement(repetition=i) for i in range(protocol.n_repetitions)),
    ]
    shared = (columns, n_samples, labels, protocol)
    correlated, *results = run_tasks(
        _measure, tasks, *shared, label="evaluation", unit="measurements"
    )
    return _summarize(correlated, results[: len(strips)], results[len(strips) :], n_samples)


def _store_columns(blocks: RowBlocks, selected: np.ndarray | None) -> _SelectionReader:
    if selected is None:
        return _SelectionReader(blocks.start_pass(), None)
    scratch = blocks.scratch
    wanted = scratch.put(scratch.unique("selected"), np.asarray(selected, dtype=np.int64))
    stored = blocks.create_rows(scratch.unique("columns"), len(selected), blocks.dtype)
    blocks.map_blocks(_take_columns, wanted, stored, label="columns")
    scratch.remove(wanted)
    return _SelectionReader(blocks.start_pass(), stored)


def _take_columns(X: Any, first_row: int, wanted: ArrayRef, out: ArrayRef) -> None:
    # Without the offset of CSR blocks: no figure depends on where the origin is.
    out.write(first_row, _columns(X, wanted.load()))


def _columns(X: Any, wanted: np.ndarray) -> np.ndarray:
    """Return some columns of a block, dense or CSR, as a dense array."""
    columns: Any = X[:, wanted]
    return np.asarray(columns.toarray() if hasattr(X, "indptr") else columns)


def _measure(
    task: _Measurement,
    columns: _SelectionReader,
    n_samples: int,
    labels: ArrayRef,
    protocol: Protocol,
) -> Any:
    """Return the scores of one repetition, the errors of a strip, or the redundancy."""
    X, y = columns.read(0, n_samples), labels.load()
    if task.strip is not None:
        return count_nearest_errors(X, y, *task.strip)
    if task.repetition is None:
        return redundancy(X)
    return kmeans_scores(
        X,
        y,
        n_clusters=protocol.n_clusters,
        n_init=protocol.n_init,
        init=protocol.init,
        seed=derive_seed(protocol.random_state, "evaluation", task.repetition),
    )


def _by_blocks(
    blocks: RowBlocks, columns: _SelectionReader, width: int, labels: ArrayRef, protocol: Protocol
) -> dict[str, float]:
    """Evaluate columns larger than a worker: dask-ml's k-means, neighbors by pairs of blocks."""
    y, n = labels.load(), blocks.n_samples
    rows = _ColumnsArray(columns, (n, width), blocks.dtype).as_dask(blocks.rows)
    scores = []
    with track("evaluation", protocol.n_repetitions, "repetitions") as progress, single_thread():
        for i in range(protocol.n_repetitions):
            clusters, _ = dask_kmeans(
                rows,
                protocol.n_clusters,
                init=protocol.init,
                n_init=protocol.n_init,
                random_state=derive_seed(protocol.random_state, "evaluation", i),
            )
            scores.append(clustering_scores(y, clusters))
            progress.advance(1)
    total = map_reduce(_block_products, blocks.bounds, kernels.merge_gram, columns, label="gram")
    wrong = []
    if protocol.nearest_neighbor:
        ends = run_tasks(_block_range, blocks.bounds, columns, label="ranges", unit="blocks")
        frame = Frame.around(total.mean, min(e[0] for e in ends), max(e[1] for e in ends))
        shared = (columns, labels, tuple(blocks.bounds), frame)
        wrong = run_tasks(_wrong_of_block, blocks.bounds, *shared, label="1-NN", unit="blocks")
    gram = kernels.complete_gram(total, width).gram
    return _summarize(redundancy_of_products(gram), wrong, scores, n)


@dataclass(frozen=True)
class _ColumnsArray:
    """Array-like view of some columns for Dask: shape, type and rows on demand."""

    columns: _SelectionReader
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    ndim: int = 2

    def __getitem__(self, key: tuple[slice, Any]) -> np.ndarray:
        rows, columns = key
        start, stop, _ = rows.indices(self.shape[0])
        return np.asarray(self.columns.read(start, stop)[:, columns])

    def as_dask(self, rows: int) -> Any:
        """Return a Dask array in chunks of so many rows."""
        import dask.array as da

        name = f"bigfs-{uuid.uuid4().hex}"
        meta = np.empty((0, 0), self.dtype)
        return da.from_array(self, chunks=(rows, self.shape[1]), name=name, meta=meta)


def _block_products(bounds: tuple[int, int], columns: _SelectionReader) -> kernels.PartialGram:
    return kernels.block_gram(columns.read(*bounds), None)


def _block_range(bounds: tuple[int, int], columns: _SelectionReader) -> tuple[float, float]:
    X = columns.read(*bounds)
    return float(X.min()), float(X.max())


def _wrong_of_block(
    bounds: tuple[int, int],
    columns: _SelectionReader,
    labels: ArrayRef,
    others: tuple[tuple[int, int], ...],
    frame: Frame,
) -> int:
    """Return how many rows of a block have a nearest other row of another class."""
    y = labels.load()
    queries = PreparedRows.of(columns.read(*bounds), frame)
    n = bounds[1] - bounds[0]
    nearest, squared = np.zeros(n, dtype=np.int64), np.full(n, np.inf)
    for first, last in others:
        base = PreparedRows.of(columns.read(first, last), frame)
        step = max(1, _PRODUCT_BYTES // (4 * (last - first)))
        for begin in range(0, n, step):
            end = min(begin + step, n)
            own = begin if first == bounds[0] else None
            candidates, distance = nearest_rows(queries.part(begin, end), base, own)
            # Blocks come in order: a tie stays with the lower row.
            closer = distance < squared[begin:end]
            nearest[begin:end][closer] = candidates[closer] + first
            squared[begin:end][closer] = distance[closer]
    return int((y[nearest] != y[bounds[0] : bounds[1]]).sum())


def _summarize(
    correlated: float, wrong: list[int], scores: list[dict[str, float]], n_samples: int
) -> dict[str, float]:
    summary: dict[str, float] = {}
    for name in scores[0]:
        values = np.array([score[name] for score in scores])
        summary[f"{name}_mean"], summary[f"{name}_std"] = float(values.mean()), float(values.std())
    if wrong:
        summary["nearest_neighbor_error"] = sum(wrong) / n_samples
    summary["redundancy"] = correlated
    return summary
