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
from bigfs.runtime.progress import silenced, track
from bigfs.selectors.gfs_kmeans import GFSKMeansParameters
from bigfs.selectors.gfs_kmeans.search import HELD_BYTES, SearchedRows, search
from bigfs.selectors.lfs.held import HeldRows, kind_of_passes
from bigfs.selectors.lfs.kernels import (
    Assignment,
    Clusterings,
    Rules,
    most_candidates,
)
from bigfs.selectors.lfs.passes import (
    LOADS,
    PassSize,
    RowPasses,
    held_step,
    labels_step,
    sweep_size,
)
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


def choose(shape: Shape, selection: Selection) -> GlobalSearch:
    """Return the only strategy; how its passes go follows from the shape."""
    return GlobalSearch(shape, selection)


class GlobalSearch(Strategy):
    """The backward search on all rows."""

    @property
    def passes(self) -> type[RowPasses]:
        """The class of the passes of the search; rows that a restart holds are held once more."""
        few = self.shape.n_samples <= START_ROWS
        # Rows in memory need no covariance of all features to drop several at a time.
        held = few and (self.shape.n_blocks == 1 or self._many)
        return HeldRows if held else kind_of_passes(self.shape)

    @property
    def _many(self) -> bool:
        return bool(self.parameters.drops_many(self.shape.n_features))

    @property
    def _needs_gram(self) -> bool:
        """Say whether the covariance of all features is made: rows in memory may do without."""
        return not (self._many and self.passes is HeldRows)

    def cost(self) -> StageCost:
        """Return the cost of the covariances, of the search, and of the labels."""
        shape, parameters, passes = self.shape, self.parameters, self.passes
        k, d = largest_count(parameters.n_clusters), shape.n_features
        n_candidates = most_candidates(d, self._many)
        what = f"centers of {k} clusters for {n_candidates:,} candidates, and covariances of "
        what += f"{d:,} features"
        compared = search_bytes(k, d, n_candidates)
        steps = [moments_step(shape)]
        if self._needs_gram:
            steps.append(gram_step(shape, 0))
        if isinstance(parameters.init, str) and parameters.init == "k-means++":
            sample = sample_shape(shape, min(START_ROWS, shape.n_samples))
            held = HeldRows.step(sample, what, _size_of_sweep(HeldRows, k, d, n_candidates), 1)
            compared_here = held_search_bytes(sample.n_samples, d, self._many)
            restart = replace(held, task_bytes=held.task_bytes + compared_here)
            steps += restart_steps(shape, passes, restart, parameters.n_init)
        elif passes is not HeldRows:
            steps.append(pass_over(shape, "a block and the means of its labels"))
        size = _size_of_sweep(passes, k, d, n_candidates)
        times = parameters.max_iter * (passes.reads(1) + (d - 1) * passes.reads(n_candidates))
        step = passes.step(shape, what, size, times)
        if passes is HeldRows:
            compared = held_search_bytes(shape.n_samples, d, self._many)
            steps += [held_step(shape), replace(step, task_bytes=step.task_bytes + compared)]
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
            mean = blocks.moments().mean
            passes = self.passes(blocks, mean)
            rows = SearchedRows.of(passes, blocks.gram() if self._needs_gram else None)
            if given is not None:
                centers = given_centers(given, passes, n_clusters)
            else:
                centers = _best_start(passes, n_clusters, parameters, seed)
            with track("gfs_kmeans", int(usable.sum()) - 1, "features dropped of") as progress:
                with silenced():
                    clusterings, order, n_subsets = search(
                        rows, centers, usable, parameters, progress
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
            "cluster_centers": means + mean,
            "support": mask,
            "dropped": np.array(order, dtype=np.int64),
            "n_iter": n_subsets,
            "n_passes": blocks.passes - before,
        }
        return FeatureScores(scores, ranking, details | gap)


def _size_of_sweep(
    passes: type[RowPasses], n_clusters: int, n_features: int, n_candidates: int
) -> PassSize:
    """Return the size of a pass for all candidates; of rows in memory, for some at a time."""
    size = sweep_size(passes, n_clusters, n_features, n_candidates)
    return replace(size, result=min(size.result, HELD_BYTES // 2)) if passes.held else size


def search_bytes(n_clusters: int, n_features: int, n_candidates: int) -> int:
    """Return the bytes of the process that compares candidates, beside its passes."""
    # The Gram matrix, the covariance and those within the clusters, with slices that are solved.
    # Centers of all candidates: the start, the ends, sums twice; passes keep more on their way.
    square, candidates = 8 * n_features**2, 8 * n_clusters * n_features * n_candidates
    return 16 * MIB + 10 * square + 9 * candidates


def held_search_bytes(n_rows: int, n_features: int, many: bool) -> int:
    """Return the bytes of a search on rows in memory, beside these."""
    # Of several features at a time: the covariance of no more features than rows, which becomes its
    # factor, and the rows in these features.
    side = min(n_rows, n_features)
    return 16 * MIB + 8 * (2 * side**2 + n_rows * side if many else 10 * n_features**2)


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
        moments = blocks.moments()
        gram = None if parameters.drops_many(X.shape[1]) else blocks.gram()
        usable = usable_features(moments, "init")
        chosen = plus_plus(X[:, usable], n_clusters, rng(random_state, "gfs restart", restart))
        chosen = np.resize(chosen, n_clusters)  # fewer distinct rows than clusters
        passes = HeldRows(blocks, moments.mean, rows=X)
        rows, first = SearchedRows.of(passes, gram), X[chosen] - moments.mean
        with track("gfs_kmeans", None) as progress:
            clusterings = search(rows, first, usable, parameters, progress)[0]
        sums = _write_labels(passes, clusterings, None)
    counts = sums[:, 0]
    n, d = np.maximum(counts, 1)[:, None], X.shape[1]
    variances = sums[:, 1 + d :] / n - (sums[:, 1 : 1 + d] / n) ** 2
    masks = np.tile(clusterings.masks[0], (n_clusters, 1))
    means = clusterings.centers[0] + moments.mean
    return evidence(counts, variances, moments.variance, masks), means


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
