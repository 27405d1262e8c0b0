"""Two ways to the clusters and subsets of LFS: a search on all rows, or on a sample of them."""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import replace

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.kernels import Moments
from bigfs.blocks.rowblocks import moments_step
from bigfs.blocks.sample import gather_steps
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost, Step, pass_over
from bigfs.core.errors import InputError
from bigfs.core.memory import task_budget
from bigfs.core.threads import single_thread
from bigfs.core.units import MIB
from bigfs.runtime.progress import silenced, track
from bigfs.selectors.lfs import LFSParameters
from bigfs.selectors.lfs.held import HeldRows, kind_of_passes
from bigfs.selectors.lfs.kernels import TILE_ENTRIES, most_candidates
from bigfs.selectors.lfs.passes import (
    LOADS,
    PassSize,
    RowPasses,
    block_bytes,
    held_step,
    labels_step,
    result_copies,
    search_size,
    sweep_size,
)
from bigfs.selectors.lfs.search import begin, held_search_bytes, most_reads, search, search_bytes
from bigfs.selectors.lfs.start import (
    START_ROWS,
    assignment,
    best_restart,
    check_start,
    draw_rows,
    given_centers,
    restart_steps,
    sample_shape,
    score_of,
    usable_features,
)
from bigfs.selectors.lfs.state import SearchState, load_state, save_state
from bigfs.selectors.method import Strategy
from bigfs.selectors.stages import start_of
from bigfs.solvers.separability import feature_separability
from bigfs.spectral.choice import largest_count
from bigfs.stages.scores import FeatureScores, rank
from bigfs.stages.stage import Inputs
from bigfs.store.location import Location
from bigfs.store.scratch import Scratch

CHECKPOINT_SECONDS = 10.0
# The most that products of candidates take in a task, where there is room.
_PRODUCT_BYTES = 256 * MIB


def choose(shape: Shape, selection: Selection) -> LocalSearch:
    """Return the search on a sample where one is asked for, else that on all rows."""
    size = selection.parameters.sample_size
    sampled = size is not None and size < shape.n_samples
    return SearchOfSample(shape, selection) if sampled else SearchOfAll(shape, selection)


class LocalSearch(Strategy):
    """The search of LFS on some rows, and the labels of all."""

    @property
    @abstractmethod
    def searched(self) -> Shape:
        """Shape of the rows that the search runs on."""

    @abstractmethod
    def _rows(self, blocks: RowBlocks) -> RowBlocks:
        """Return the rows that the search runs on."""

    @abstractmethod
    def _label_passes(
        self, blocks: RowBlocks, searched: RowPasses, origin: np.ndarray
    ) -> RowPasses:
        """Return passes over all rows, about the origin of the search."""

    @property
    def passes(self) -> type[RowPasses]:
        """The class of the passes of the search."""
        return kind_of_passes(self.searched)

    @property
    def product_bytes(self) -> int:
        """Memory for the products of one pass: the rest of the budget, 256 MiB at most."""
        k, d = self._sizes
        room = task_budget(self.selection.memory_limit) - block_bytes(self.searched)
        room -= search_bytes(k, d, self._many)
        room -= sweep_size(self.passes, k, d, most_candidates(d, self._many)).work
        # Products are counted as three copies of a result; workers may have more of them.
        copies = result_copies(self.searched.n_blocks)
        return max(0, min(_PRODUCT_BYTES, room * 3 // copies))

    @property
    def _sizes(self) -> tuple[int, int]:
        return largest_count(self.parameters.n_clusters), self.shape.n_features

    @property
    def _many(self) -> bool:
        return bool(self.parameters.drops_many(self.shape.n_features))

    @property
    def _ends_with_restarts(self) -> bool:
        """True if restarts see all rows, so that the best of them is the solution."""
        few = self.searched.n_samples <= START_ROWS
        return few and self._starts_from_draws

    @property
    def _starts_from_draws(self) -> bool:
        return isinstance(self.parameters.init, str) and self.parameters.init == "k-means++"

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the fraction of rows whose cluster keeps a feature; details as `LFS` says."""
        blocks, parameters = inputs.blocks, self.parameters
        n_clusters, gap = inputs.n_clusters(parameters.n_clusters)
        parameters.check_sample_size(n_clusters)
        start = start_of(self.selection, blocks.n_samples, blocks.source.dropped)
        given = check_start(start, n_clusters, blocks.n_samples, blocks.n_features)
        if given is not None and given.ndim == 1 and parameters.sample_size is not None:
            raise InputError(
                "init: labels are of all rows and sample_size searches on some of them; give the "
                "labels' class means as centroids, or remove sample_size."
            )
        before = blocks.passes
        moments = blocks.moments()
        labels = out.create("labels", (blocks.n_samples,), np.int32, blocks.rows)
        checkpoint = inputs.checkpoint
        file = Scratch(checkpoint).path / "lfs.npz" if checkpoint else None
        with single_thread():
            state = load_state(file) if file else None
            rows = self._rows(blocks)
            passes = self.passes(rows, rows.moments().mean, self.product_bytes)
            if state is None:
                state = self._start(passes, n_clusters, given)
            _search(passes, state, parameters, file)
            k = len(state.subsets)
            inside = out.create("membership", (blocks.n_samples, k), np.bool_, blocks.rows)
            rule = assignment(state)
            labeling = self._label_passes(blocks, passes, state.origin)
            with silenced():
                sums = labeling.assign(rule, parameters.unassigned == "leave", labels, inside)
        scores = sums[:, 0] @ state.subsets / blocks.n_samples
        evidence = score_of(sums, state, moments.variance)
        details = {
            "labels": labels,
            "membership": inside,
            "cluster_centers": rule.centers + state.origin,
            "origin": state.origin,
            "feature_masks": state.subsets,
            "variances": rule.variances,
            "rule_centers": state.rules.clusterings.centers,
            "rule_masks": state.rules.clusterings.masks,
            "rule_members": state.rules.members,
            "trace": state.trace,
            "evidence": evidence if np.isfinite(evidence) else None,
            "n_iter": max(1, state.round),
            "n_passes": blocks.passes - before,
            **gap,
        }
        fewer = f"n_clusters is {k}, not {n_clusters}: X has {k} rows that differ."
        notes = (fewer,) if k < n_clusters else ()
        return FeatureScores(scores, _ranking(scores, state, moments), details, notes=notes)

    def _start(self, passes: RowPasses, n_clusters: int, given: np.ndarray | None) -> SearchState:
        """Return the first solution: the start's clusters with all features, or a finished one."""
        parameters, seed = self.parameters, self.selection.random_state
        usable = usable_features(passes.blocks.moments(), passes.blocks.source.uri)
        if given is not None:
            centers = given_centers(given, passes, n_clusters)
        else:
            best = best_restart(passes, n_clusters, parameters, seed)
            if self._ends_with_restarts:
                return best
            centers = best.sums.means + best.origin - passes.origin
        with silenced():
            return begin(passes, centers, usable, parameters)

    def _search_steps(self) -> list[Step]:
        """Return the steps from the rows of the search to its solution."""
        rows, passes, products = self.searched, self.passes, self.product_bytes
        k, d = self._sizes
        what = f"the covariances of {k} clusters in {d:,} features"
        few = sample_shape(rows, min(START_ROWS, rows.n_samples))
        restart = HeldRows.step(few, what, self._held_size(few.n_samples), 1)
        steps = [moments_step(rows)]
        if passes is HeldRows:
            steps.append(held_step(rows))
        if self._starts_from_draws:
            steps += restart_steps(rows, passes, restart, self.parameters.n_init)
        elif passes is not HeldRows:
            steps.append(pass_over(rows, "a block and the means of its labels"))
        if self._ends_with_restarts:
            return steps
        if passes is HeldRows:
            return [*steps, HeldRows.step(rows, what, self._held_size(rows.n_samples), 1)]
        size = search_size(passes, k, d, self._many, products)
        step = passes.step(rows, what, size, most_reads(passes, k, d, products, self.parameters))
        compared = search_bytes(k, d, self._many) + 3 * size.result
        return [*steps, step, Step(what, compared, by_client=True)]

    def _held_size(self, n_rows: int) -> PassSize:
        """Return the size of a search on so many rows in memory."""
        k, d = self._sizes
        searched = held_search_bytes(n_rows, k, d, self._many)
        tile = 24 * max(min(TILE_ENTRIES, n_rows * k**2), 64 * k**2)
        return PassSize(searched + tile, 0)

    def _stored_bytes(self) -> int:
        return self.shape.n_samples * (4 + self._sizes[0])


class SearchOfAll(LocalSearch):
    """The search on all rows."""

    @property
    def searched(self) -> Shape:
        """Shape of all rows."""
        return self.shape

    def cost(self) -> StageCost:
        """Return the cost of the search, and of the labels."""
        labels = () if self.passes is HeldRows else (labels_step(self.shape),)
        stored = self._stored_bytes()
        drawn = self.shape.n_features * self.shape.itemsize * START_ROWS
        steps = (*self._search_steps(), *labels)
        return StageCost(steps, 2 * drawn + stored, stored, loads=LOADS, at_most=True)

    def _rows(self, blocks: RowBlocks) -> RowBlocks:
        return blocks

    def _label_passes(
        self, blocks: RowBlocks, searched: RowPasses, origin: np.ndarray
    ) -> RowPasses:
        return searched.about(origin)


class SearchOfSample(LocalSearch):
    """The search on a sample that is drawn in one pass; another one labels all rows."""

    @property
    def searched(self) -> Shape:
        """Shape of the sample."""
        size = self.parameters.sample_size
        assert size is not None
        return sample_shape(self.shape, size)

    def cost(self) -> StageCost:
        """Return the cost of the sample, of the search on it, and of the labels."""
        sample = self.searched
        search_steps = [replace(step, passes=0) for step in self._search_steps()]
        all_held = kind_of_passes(self.shape) is HeldRows
        labels = held_step(self.shape) if all_held else labels_step(self.shape)
        draw = gather_steps(self.shape, sample.n_samples)
        stored = self._stored_bytes()
        return StageCost(
            (moments_step(self.shape), *draw, *search_steps, labels),
            3 * sample.nbytes + stored,
            stored,
            loads=LOADS,
            at_most=True,
        )

    def _rows(self, blocks: RowBlocks) -> RowBlocks:
        size, seed = self.searched.n_samples, self.selection.random_state
        sample = draw_rows(blocks, size, seed)
        return RowBlocks.from_any(sample.path, scratch=blocks.scratch)

    def _label_passes(
        self, blocks: RowBlocks, searched: RowPasses, origin: np.ndarray
    ) -> RowPasses:
        return kind_of_passes(self.shape)(blocks, origin)


def _search(
    passes: RowPasses, state: SearchState, parameters: LFSParameters, file: Location | None
) -> None:
    """Run the search with progress, and a checkpoint every ten seconds and at the end."""
    saved = time.monotonic()

    def save(now: SearchState) -> None:
        nonlocal saved
        if file is not None and (now.finished or time.monotonic() - saved > CHECKPOINT_SECONDS):
            save_state(file, now)
            saved = time.monotonic()

    total = int(state.subsets.sum()) - len(state.subsets)
    with track("lfs", total, "features dropped of") as progress, silenced():
        search(passes, state, parameters, progress, save)


def _ranking(scores: np.ndarray, state: SearchState, moments: Moments) -> np.ndarray:
    """Return the order by score; of equals the more separate one comes first, constants last.

    Which of several features go, without which the clusters stay the same, depends on their
    places: so when they went says nothing.
    """
    sums = state.sums
    share = sums.counts / sums.counts.sum()
    within = share @ sums.variances
    alone = feature_separability(sums.counts, sums.means, within)
    return rank(scores, moments.constant, alone)
