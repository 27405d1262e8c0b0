"""The search of GFS-k-means, in the passes of LFS: no pass beyond those of k-means is needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.kmeans import plus_plus
from bigfs.blocks.rowblocks import gram_step, moments_step
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost, Step, pass_over
from bigfs.core.seeds import rng
from bigfs.core.threads import single_thread
from bigfs.core.units import MIB
from bigfs.runtime.execute import inline, run_tasks
from bigfs.runtime.progress import Work, silenced, track
from bigfs.selectors.gfs_kmeans import GFSKMeansParameters
from bigfs.selectors.gfs_kmeans.compare import CandidateComparison, variances_within
from bigfs.selectors.lfs.held import HeldRows, kind_of_passes
from bigfs.selectors.lfs.kernels import Assignment, Clusterings, Rules, Sweep
from bigfs.selectors.lfs.passes import (
    LOADS,
    PassSize,
    RowPasses,
    held_step,
    labels_step,
    sweep_size,
)
from bigfs.selectors.lfs.search import converge
from bigfs.selectors.lfs.start import (
    START_ROWS,
    check_start,
    given_centers,
    restart_steps,
    rows_of_restarts,
    sample_shape,
    usable_features,
)
from bigfs.selectors.method import Strategy
from bigfs.selectors.stages import start_of
from bigfs.solvers.separability import DIGITS, evidence, feature_separability
from bigfs.spectral.choice import largest_count
from bigfs.stages.scores import FeatureScores, rank
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import ArrayRef, Scratch

# Centers and sums of the candidates that are tried at a time on rows in memory.
_HELD_BYTES = 16 * MIB


def choose(shape: Shape, selection: Selection) -> GlobalSearch:
    """Return the only strategy; how its passes go follows from the shape."""
    return GlobalSearch(shape, selection)


class GlobalSearch(Strategy):
    """The backward search on all rows."""

    @property
    def passes(self) -> type[RowPasses]:
        """The class of the passes of the search; rows that a restart holds are held once more."""
        held = self.shape.n_blocks == 1 and self.shape.n_samples <= START_ROWS
        return HeldRows if held else kind_of_passes(self.shape)

    def cost(self) -> StageCost:
        """Return the cost of the covariances, of the search, and of the labels."""
        shape, parameters, passes = self.shape, self.parameters, self.passes
        k, d = largest_count(parameters.n_clusters), shape.n_features
        what = f"centers of {k} clusters for {d:,} candidates, and covariances of {d:,} features"
        compared, held_compared = search_bytes(k, d, False), search_bytes(k, d, True)
        steps = [moments_step(shape), gram_step(shape, 0)]
        if isinstance(parameters.init, str) and parameters.init == "k-means++":
            sample = sample_shape(shape, min(START_ROWS, shape.n_samples))
            held = HeldRows.step(sample, what, _size_of_sweep(HeldRows, k, d), 1)
            restart = replace(held, task_bytes=held.task_bytes + held_compared)
            steps += restart_steps(shape, passes, restart, parameters.n_init)
        elif passes is not HeldRows:
            steps.append(pass_over(shape, "a block and the means of its labels"))
        size = _size_of_sweep(passes, k, d)
        times = parameters.max_iter * (passes.reads(1) + (d - 1) * passes.reads(d))
        step = passes.step(shape, what, size, times)
        if passes is HeldRows:
            steps += [held_step(shape), replace(step, task_bytes=step.task_bytes + held_compared)]
        else:
            steps += [step, Step(what, compared, by_client=True), labels_step(shape)]
        stored = 4 * shape.n_samples
        drawn = d * shape.itemsize * START_ROWS
        return StageCost(tuple(steps), 2 * drawn + stored, stored, loads=LOADS, at_most=True)

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return how long the search keeps each feature; details as `GFSKMeans` says."""
        blocks, parameters = inputs.blocks, self.parameters
        seed = self.selection.random_state
        n_clusters, gap = inputs.n_clusters(parameters.n_clusters)
        start = start_of(self.selection, blocks.n_samples, blocks.source.dropped)
        given = check_start(start, n_clusters, blocks.n_samples, blocks.n_features)
        labels = out.create("labels", (blocks.n_samples,), np.int32, blocks.rows)
        before = blocks.passes
        usable = usable_features(blocks.moments(), blocks.source.uri)
        with single_thread():
            gram = blocks.gram()
            total = gram.gram / gram.count
            passes = self.passes(blocks, gram.mean)
            if given is not None:
                centers = given_centers(given, passes, n_clusters)
            else:
                centers = _best_start(passes, n_clusters, parameters, seed)
            with track("gfs_kmeans", int(usable.sum()) - 1, "features dropped of") as progress:
                with silenced():
                    clusterings, order = _search(
                        passes, centers, usable, total, parameters, progress
                    )
            sums = _write_labels(passes, clusterings, labels)
        mask, means = clusterings.masks[0], clusterings.centers[0]
        # Dropped first, scored least; what is kept shares the best score, constants have none.
        scores = mask.astype(np.float64)
        scores[order] = (np.arange(len(order)) + 1) / (len(order) + 1)
        own, squares = np.hsplit(sums[:, 1:], 2)
        centers = own / np.maximum(sums[:, :1], 1)
        within = (squares - own * centers).sum(axis=0) / blocks.n_samples
        alone = feature_separability(sums[:, 0], centers, within)
        ranking = rank(scores, ~usable, alone)
        details = {
            "labels": labels,
            "cluster_centers": means + gram.mean,
            "support": mask,
            "dropped": np.array(order, dtype=np.int64),
            "n_iter": len(order) + 1,
            "n_passes": blocks.passes - before,
        }
        return FeatureScores(scores, ranking, details | gap)


def _size_of_sweep(passes: type[RowPasses], n_clusters: int, n_features: int) -> PassSize:
    """Return the size of a pass for all candidates; of rows in memory, for some at a time."""
    size = sweep_size(passes, n_clusters, n_features)
    return replace(size, result=min(size.result, _HELD_BYTES // 2)) if passes.held else size


def search_bytes(n_clusters: int, n_features: int, held: bool) -> int:
    """Return the bytes of the process that compares candidates, beside its passes."""
    square, candidates = 8 * n_features**2, 8 * n_clusters * n_features**2
    # The Gram matrix, the covariance and those within the clusters, with slices that are solved.
    # Centers of all candidates: the start, the ends, sums twice; passes keep more on their way. A
    # process that holds the rows has some candidates at a time.
    return 16 * MIB + 10 * square + (0 if held else 9) * candidates


def _search(
    passes: RowPasses,
    centers: np.ndarray,
    usable: np.ndarray,
    total: np.ndarray,
    parameters: GFSKMeansParameters,
    progress: Work,
) -> tuple[Clusterings, list[int]]:
    """Drop the feature without which the clusters are most separate, while they are no less so."""
    k, d = centers.shape
    rules = Rules(Clusterings(np.zeros((k, k, d)), np.zeros((k, d), dtype=bool)), np.full(k, -1))
    current, swept = converge(passes, Clusterings(centers[None], usable[None]), rules, parameters)
    order: list[int] = []
    while current.masks[0].sum() > 1:
        kept = np.flatnonzero(current.masks[0])
        means = _means(swept, 0, current.centers[0])
        # Without the others the clusters stay the same: the ratio is one.
        moving = np.flatnonzero(passes.moving(means, kept, current.labels))
        variances = variances_within(swept.counts[0], means, total.diagonal())
        alone = feature_separability(swept.counts[0], means, variances)[kept]
        values, best_of = np.zeros(len(kept)), {}
        comparison = CandidateComparison(swept, kept, total)
        together = max(1, _HELD_BYTES // (2 * means.nbytes)) if passes.held else d
        for begin in range(0, len(moving), together):
            some = moving[begin : begin + together]
            masks = np.tile(current.masks[0], (len(some), 1))
            masks[np.arange(len(some)), kept[some]] = False
            start = Clusterings(np.broadcast_to(means, (len(some), *means.shape)), masks)
            candidates, tried = converge(passes, start, rules, parameters)
            values[some] = comparison.log_ratios(tried, some)
            place = _best(values[some], alone[some])
            best_of[int(some[place])] = candidates.take([place]), tried.take([place])
        best = _best(values, alone)
        if not values[best] >= 0:
            break
        order.append(int(kept[best]))
        if best in best_of:
            current, swept = best_of[best]
        else:
            mask = current.masks[0].copy()
            mask[kept[best]] = False
            current = Clusterings(means[None], mask[None], current.labels)
        progress.advance(1, f"log ratio of the criterion {values[best]:.3g}")
    return Clusterings(_means(swept, 0, current.centers[0])[None], current.masks), order


def _best(values: np.ndarray, alone: np.ndarray) -> int:
    """Return the place of the largest value; of equal ones, of the least separate feature."""
    return int(rank(values, np.zeros(len(values), dtype=bool), -alone)[0])


def _means(swept: Sweep, place: int, otherwise: np.ndarray) -> np.ndarray:
    """Return the means of one clustering; an empty cluster keeps its center."""
    counts = swept.counts[place][:, None]
    return np.where(counts > 0, swept.sums[place] / np.maximum(counts, 1), otherwise)


def _best_start(
    passes: RowPasses, n_clusters: int, parameters: GFSKMeansParameters, random_state: int
) -> np.ndarray:
    """Return the centers of the best of several searches from k-means++, on a sample of rows."""
    rows = rows_of_restarts(passes, random_state)
    restarts = run_tasks(
        _restart_task, list(range(parameters.n_init)), rows, n_clusters, parameters, random_state,
        label="gfs restarts", unit="restarts",
    )  # fmt: skip
    passes.blocks.scratch.remove(rows)
    best = int(np.argmax([round(score, DIGITS) for score, _ in restarts]))
    return np.asarray(restarts[best][1] - passes.origin)


def _restart_task(
    restart: int,
    data: ArrayRef,
    n_clusters: int,
    parameters: GFSKMeansParameters,
    random_state: int,
) -> tuple[float, np.ndarray]:
    """Search from one draw of k-means++; return its evidence and its centers in all features."""
    X = data.load()
    with inline():
        blocks = RowBlocks.from_any(X, rows=len(X))
        moments, gram = blocks.moments(), blocks.gram()
        usable = usable_features(moments, "init")
        chosen = plus_plus(X[:, usable], n_clusters, rng(random_state, "gfs restart", restart))
        chosen = np.resize(chosen, n_clusters)  # fewer distinct rows than clusters
        passes = HeldRows(blocks, gram.mean, rows=X)
        with track("gfs_kmeans", None) as progress:
            clusterings, _ = _search(
                passes, X[chosen] - gram.mean, usable, gram.gram / gram.count, parameters, progress
            )
        sums = _write_labels(passes, clusterings, None)
    counts = sums[:, 0]
    n, d = np.maximum(counts, 1)[:, None], X.shape[1]
    variances = sums[:, 1 + d :] / n - (sums[:, 1 : 1 + d] / n) ** 2
    masks = np.tile(clusterings.masks[0], (n_clusters, 1))
    return evidence(counts, variances, moments.variance, masks), clusterings.centers[0] + gram.mean


def _write_labels(
    passes: RowPasses, clusterings: Clusterings, labels: ArrayRef | None
) -> np.ndarray:
    """Label all rows by the nearest center; return the sums of the labels' rows."""
    k = clusterings.centers.shape[1]
    rules = Rules(clusterings.take(np.zeros(k, dtype=np.int64)), np.arange(k))
    masks = np.tile(clusterings.masks[0], (k, 1))
    with silenced():
        rule = Assignment(rules, clusterings.centers[0], masks, np.ones(k))
        return passes.assign(rule, False, labels)
