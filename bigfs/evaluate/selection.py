"""Evaluation of a selection: k-means and nearest neighbors on its columns, judged by labels."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from bigfs.blocks import kernels
from bigfs.blocks.rowblocks import BlockReader, RowBlocks
from bigfs.core.cost import Shape
from bigfs.core.errors import InputError
from bigfs.core.memory import task_budget
from bigfs.core.seeds import derive_seed, rng
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
from bigfs.evaluate.protocols import Protocol, clustering_scores, count_distinct, kmeans_scores
from bigfs.graph.representation import principal_rows
from bigfs.runtime.execute import map_reduce, run_tasks
from bigfs.runtime.progress import silenced, track
from bigfs.stages.scores import rank
from bigfs.store.csr import DENSE_LIMIT_BYTES, is_large
from bigfs.store.labels import load_labels, name_of
from bigfs.store.scratch import ArrayRef

logger = logging.getLogger("bigfs")
T = TypeVar("T")

_STRIPS = 4
# Random selections beside a run's, and rows up to which their nearest neighbors are searched too.
N_DRAWS, _NEAREST_OF_CHANCE = 10, 20_000
# Features, evenly spaced, whose correlations stand for those of more.
CORRELATED = 500
_PRODUCT_BYTES = 32 * 1024**2


@dataclass(frozen=True)
class _Measurement:
    """One task: a repetition of k-means, a strip of the nearest-neighbor search, or neither."""

    repetition: int | None = None
    strip: tuple[int, int] | None = None


# Rows of a selection for tasks: stored columns, or the data themselves.
Rows = ArrayRef | BlockReader


def compare_with_all(
    blocks: RowBlocks,
    selected: np.ndarray,
    labels: str | LabelValues,
    *,
    n_clusters: int | None = None,
    n_repetitions: int = 20,
    n_init: int = 1,
    init: str = "k-means++",
    nearest_neighbor: bool = True,
    n_components: int | None = 50,
    random_state: int,
    memory_limit: int | str,
) -> dict[str, Any]:
    """Return NMI, ACC, Rand index and 1-NN error of the selected, of all and of random features.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    selected : ndarray of shape (n_selected,), int64
    labels : str or LabelValues
        The known classes, or their URI.
    n_clusters : int or None, default=None
        Clusters k-means looks for; None: the number of classes.
    n_repetitions, n_init, init, nearest_neighbor, n_components, random_state
        As in `Protocol`.
    memory_limit : int or str
        Resident size promised for one worker process.

    Returns
    -------
    figures : dict
        JSON values: ``selected`` and ``all``, each as `measure_selection` returns it, ``chance``,
        as `measure_draws` does, where `chance_columns` are few enough; and the settings. There is
        no ``all`` where large sparse data would have to be made dense.

    Raises
    ------
    InputError
        If the labels cannot be read or do not fit the data.
    """
    source = blocks.source
    rows = source.row_dimensions
    y = load_labels(labels, blocks.n_samples, source.dropped, to_judge_by=True, rows=rows)
    protocol = Protocol(
        n_clusters or int(y.max()) + 1,
        n_repetitions,
        n_init,
        init,
        nearest_neighbor,
        n_components,
        random_state,
    )
    figures = {"selected": measure_selection(blocks, y, selected, protocol, memory_limit)}
    if can_judge_all(blocks, protocol):
        figures["all"] = measure_selection(blocks, y, None, protocol, memory_limit)
    if chance_columns(blocks.layout, len(selected)) is not None:
        few = nearest_neighbor and blocks.n_samples <= _NEAREST_OF_CHANCE
        chance = replace(protocol, nearest_neighbor=few)
        figures["chance"] = _chance(blocks, y, len(selected), chance, memory_limit)
    judged_by = n_components if protocol.by_components(len(selected)) else None
    return {
        **figures,
        "labels": name_of(labels),
        "n_clusters": protocol.n_clusters,
        "n_repetitions": n_repetitions,
        "n_init": n_init,
        "n_components": judged_by,
    }


def can_judge_all(blocks: RowBlocks, protocol: Protocol) -> bool:
    """Return whether all features can be judged: large sparse data only by components."""
    by_components = protocol.by_components(blocks.n_features)
    return by_components or not (blocks.sparse and is_large(blocks.layout))


def chance_columns(shape: Shape, width: int) -> Shape | None:
    """Return the shape of the columns of all random selections, which are stored by one pass.

    None if these are not judged: all features are selected, or they would be above 2 GiB.
    """
    if width >= shape.n_features:
        return None
    columns = dense_columns(shape, N_DRAWS * width)
    return columns if columns.nbytes <= DENSE_LIMIT_BYTES else None


def _chance(
    blocks: RowBlocks, y: np.ndarray, width: int, protocol: Protocol, memory_limit: int | str
) -> dict[str, float]:
    """Judge random selections of as many features, each on a copy of its columns."""
    stored = _store_columns(blocks, random_selections(blocks, width, protocol.random_state))
    scratch = blocks.scratch.child(blocks.scratch.unique("chance"))

    def judge(ref: ArrayRef, i: int) -> dict[str, float]:
        copy = RowBlocks.from_any(ref.path, scratch=scratch, rows=blocks.rows)
        return measure_selection(copy, y, None, _of_draw(protocol, N_DRAWS, i), memory_limit)

    try:
        return over_draws(stored, judge)
    finally:
        blocks.scratch.remove(*stored)
        scratch.close()


def random_selections(blocks: RowBlocks, width: int, random_state: int) -> list[np.ndarray]:
    """Return ten random selections, those that `RandomSelection` draws first."""
    constant = blocks.moments().constant
    seeded = [rng(random_state, "random selection", i) for i in range(N_DRAWS)]
    draws = [rank(np.where(constant, 0.0, row.random(len(constant))), constant) for row in seeded]
    return [np.sort(draw[:width]) for draw in draws]


def dense_columns(shape: Shape, width: int) -> Shape:
    """Return the shape of ``width`` columns, dense."""
    return replace(shape, n_features=width, n_entries=None, block_entries=None)


def in_memory_bytes(shape: Shape) -> int:
    """Return the bytes to cluster rows in one task: the rows, and the copies of k-means."""
    return 3 * shape.nbytes


@single_thread()
def measure_selection(
    blocks: RowBlocks,
    y: np.ndarray,
    selected: np.ndarray | None,
    protocol: Protocol,
    memory_limit: int | str,
) -> dict[str, float]:
    """Judge a selection by k-means, nearest neighbors and the correlations within it.

    More than 100 columns are judged by their principal components, if the protocol says so. What
    fits a worker three times over is clustered by scikit-learn, each repetition in a task with its
    own seed, so that the figures do not depend on the number of workers; larger columns by
    dask-ml, whose centers depend on the row blocks. The nearest neighbors are exact in either case.

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
        ...), ``nearest_neighbor_error`` if the protocol asks for it, and ``redundancy``; of
        columns judged by components that of 500 of them.

    Raises
    ------
    InputError
        If all columns of large CSR blocks are to be judged, and not by components.
    """
    width = blocks.n_features if selected is None else len(selected)
    if protocol.by_components(width):
        return _by_components(blocks, y, selected, protocol, memory_limit)
    if selected is None and blocks.sparse:
        if is_large(blocks.layout):
            raise InputError(
                f"{blocks.source.uri}: all {width:,} features of sparse data above "
                f"{format_bytes(DENSE_LIMIT_BYTES)} dense are judged by principal components only. "
                "Set evaluate.n_components to 50, or select fewer."
            )
        blocks = blocks.dense()
    scratch = blocks.scratch
    needed = in_memory_bytes(dense_columns(blocks.layout, width))
    labels = scratch.put(scratch.unique("labels"), y)
    stored = None if selected is None else _store_columns(blocks, [selected])[0]
    columns: Rows = blocks.start_pass() if stored is None else stored
    if needed <= task_budget(parse_bytes(memory_limit)):
        scores = _in_memory(columns, blocks.n_samples, labels, protocol)
    else:
        scores = _by_blocks(blocks, columns, width, labels, protocol)
    scratch.remove(labels, *([] if stored is None else [stored]))
    return scores


def _by_components(
    blocks: RowBlocks,
    y: np.ndarray,
    selected: np.ndarray | None,
    protocol: Protocol,
    memory_limit: int | str,
) -> dict[str, float]:
    """Judge many features by their principal components, and the correlations of some of them."""
    scratch, stored = blocks.scratch.child(blocks.scratch.unique("judged")), None
    try:
        if selected is not None:
            stored = _store_columns(blocks, [selected])[0]
            blocks = RowBlocks.from_any(stored.path, scratch=scratch, rows=blocks.rows)
        assert protocol.n_components is not None
        few = np.unique(np.linspace(0, blocks.n_features - 1, CORRELATED).astype(np.int64))
        products = _products(blocks, few, with_all=False)
        n_components = min(protocol.n_components, blocks.n_samples)
        rows, _, _ = principal_rows(blocks, n_components, protocol.random_state, scratch)
        own = replace(protocol, n_components=None)
        scores = measure_selection(rows, y, None, own, memory_limit)
        return {**scores, "redundancy": redundancy_of_products(products)}
    finally:
        scratch.remove(*([stored] if stored else []))
        scratch.close()


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

    def judge(draw: np.ndarray | None, i: int) -> dict[str, float]:
        return measure_selection(blocks, y, draw, _of_draw(protocol, len(draws), i), memory_limit)

    return over_draws(draws, judge)


def _of_draw(protocol: Protocol, n_draws: int, i: int) -> Protocol:
    """Return the protocol of one draw: its share of the repetitions, and a seed of its own."""
    share, seed = -(-protocol.n_repetitions // n_draws), protocol.random_state
    return replace(protocol, n_repetitions=share, random_state=derive_seed(seed, "draw", i))


def over_draws(draws: Sequence[T], judge: Callable[[T, int], dict[str, float]]) -> dict[str, float]:
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


@single_thread()
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
    fits = 4 * 8 * m * blocks.n_features <= task_budget(parse_bytes(memory_limit))
    total = _products(blocks, np.asarray(selected), with_all=fits)
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


def _products(blocks: RowBlocks, selected: np.ndarray, *, with_all: bool) -> np.ndarray:
    """Return the sums of `_products_with` over all rows."""
    moments, scratch = blocks.moments(), blocks.scratch
    center = moments.mean if blocks.offset is None else moments.mean - blocks.offset
    shared = [
        scratch.put(scratch.unique(name), values)
        for name, values in (("selected", selected), ("mean", center))
    ]
    total = blocks.reduce(_products_with, np.add, *shared, with_all, label="explained")
    scratch.remove(*shared)
    return np.asarray(total)


def _products_with(
    X: Any, first_row: int, selected: ArrayRef, mean: ArrayRef, with_all: bool
) -> np.ndarray:
    """Return the centered products of all, or of the selected, columns with the selected ones."""
    kept, center = selected.load(), mean.load()
    S = _columns(X, kept).astype(np.float64) - center[kept]
    return kernels.block_xtv(X, S, center) if with_all else S.T @ S


def _in_memory(
    columns: Rows, n_samples: int, labels: ArrayRef, protocol: Protocol
) -> dict[str, float]:
    edges = np.linspace(0, n_samples, _STRIPS + 1, dtype=int).tolist()
    strips = list(zip(edges[:-1], edges[1:], strict=True)) if protocol.nearest_neighbor else []
    tasks = [
        _Measurement(),
        *(_Measurement(strip=strip) for strip in strips),
        *(_Measurement(repetition=i) for i in range(protocol.n_repetitions)),
    ]
    shared = (columns, n_samples, labels, protocol)
    (correlated, n_distinct), *results = run_tasks(
        _measure, tasks, *shared, label="evaluation", unit="measurements"
    )
    if n_distinct < protocol.n_clusters:
        logger.warning(
            f"Only {n_distinct:,} rows of the judged features differ: k-means finds as many "
            f"clusters, not {protocol.n_clusters:,}."
        )
    return _summarize(correlated, results[: len(strips)], results[len(strips) :], n_samples)


def _store_columns(blocks: RowBlocks, selections: Sequence[np.ndarray]) -> list[ArrayRef]:
    """Store the columns of some selections, each by itself, in one pass."""
    scratch = blocks.scratch
    wanted = [
        scratch.put(scratch.unique("selected"), np.asarray(selected, dtype=np.int64))
        for selected in selections
    ]
    stored = [
        blocks.create_rows(scratch.unique("columns"), len(selected), blocks.dtype)
        for selected in selections
    ]
    blocks.map_blocks(_take_columns, wanted, stored, label="columns")
    scratch.remove(*wanted)
    return stored


def _take_columns(
    X: Any, first_row: int, wanted: Sequence[ArrayRef], out: Sequence[ArrayRef]
) -> None:
    # Without the offset of CSR blocks: no figure depends on where the origin is.
    for selected, stored in zip(wanted, out, strict=True):
        stored.write(first_row, _columns(X, selected.load()))


def _columns(X: Any, wanted: np.ndarray) -> np.ndarray:
    """Return some columns of a block, dense or CSR, as a dense array."""
    columns: Any = X[:, wanted]
    return np.asarray(columns.toarray() if hasattr(X, "indptr") else columns)


def _measure(
    task: _Measurement,
    columns: Rows,
    n_samples: int,
    labels: ArrayRef,
    protocol: Protocol,
) -> Any:
    """Return the scores of a repetition, errors of a strip, or redundancy and distinct rows."""
    X, y = columns.read(0, n_samples), labels.load()
    if task.strip is not None:
        return count_nearest_errors(X, y, *task.strip)
    if task.repetition is None:
        return redundancy(X), count_distinct(X, protocol.n_clusters)
    return kmeans_scores(
        X,
        y,
        n_clusters=protocol.n_clusters,
        n_init=protocol.n_init,
        init=protocol.init,
        seed=derive_seed(protocol.random_state, "evaluation", task.repetition),
    )


def _by_blocks(
    blocks: RowBlocks, columns: Rows, width: int, labels: ArrayRef, protocol: Protocol
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

    columns: Rows
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    ndim: int = 2

    def __getitem__(self, key: tuple[slice, Any]) -> np.ndarray:
        rows, columns = key
        start, stop, _ = rows.indices(self.shape[0])
        return np.asarray(self.columns.read(start, stop)[:, columns])

    def as_dask(self, rows: int) -> Any:
        """Return a Dask array in chunks of ``rows`` rows."""
        import dask.array as da

        name = f"bigfs-{uuid.uuid4().hex}"
        meta = np.empty((0, 0), self.dtype)
        return da.from_array(self, chunks=(rows, self.shape[1]), name=name, meta=meta)


def _block_products(bounds: tuple[int, int], columns: Rows) -> kernels.PartialGram:
    return kernels.block_gram(columns.read(*bounds), None)


def _block_range(bounds: tuple[int, int], columns: Rows) -> tuple[float, float]:
    X = columns.read(*bounds)
    return float(X.min()), float(X.max())


def _wrong_of_block(
    bounds: tuple[int, int],
    columns: Rows,
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
