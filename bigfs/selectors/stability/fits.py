"""The stability stage: rows are drawn in one pass, then every fit is a task in one process."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.config import Selection
from bigfs.config.sections import Auto, StabilityConfig
from bigfs.core.cost import Shape, StageCost, Step, pass_over
from bigfs.core.errors import BigfsError, InputError, MemoryLimitError, StorageError
from bigfs.core.memory import format_limit, limit_for, task_budget
from bigfs.core.seeds import derive_seed
from bigfs.core.units import MIB, format_bytes
from bigfs.runtime.execute import run_tasks
from bigfs.runtime.scope import inline
from bigfs.selectors.curves import curves_stage
from bigfs.selectors.kept import hand_over, handed, load_state, save_state
from bigfs.selectors.number import (
    about_number,
    at_least,
    choose_number,
    is_by_fits,
    largest_number,
    rule_in_words,
)
from bigfs.selectors.redundancy import Redundancy, included, passed_over, with_redundancy
from bigfs.selectors.registry import METHODS
from bigfs.selectors.scoring import (
    check_settings,
    data_notes,
    preparation_notes,
    stages_of_selection,
    start_of,
    store_result,
)
from bigfs.selectors.stability.rows import Draw, DrawnRows, draw_rows
from bigfs.solvers.agreement import consensus_ranking
from bigfs.stages.curves import Curves, curve_sizes
from bigfs.stages.engine import Engine, TemporaryStages
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stability import Stability
from bigfs.stages.stage import Inputs, Stage
from bigfs.store.csr import rows_for
from bigfs.store.location import Location, as_location
from bigfs.store.scratch import ArrayRef, Scratch, block_rows, read_attributes

logger = logging.getLogger("bigfs")

# Rows of a fit in quick mode: see tests/bench/README.md, "Stability of selections".
QUICK_ROWS = 3000
# NumPy can draw only from fewer rows than this.
_ROW_LIMIT = 10**9


def stability_stage(
    selection: Selection, settings: StabilityConfig, *, quick: bool = False
) -> Stage:
    """Return the stage that fits a method to samples of the rows.

    Parameters
    ----------
    selection : Selection
    settings : StabilityConfig
    quick : bool, default=False
        True if the consensus of the fits is the result of the run.
    """
    used = {
        stage.name: {**stage.settings, "version": stage.version}
        for stage in _stages_of_fit(selection, quick)
    }
    size = settings.sample_size or (QUICK_ROWS if quick else None)
    used["stability"] = {"n_pairs": settings.n_pairs, "sample_size": size, "quick": quick}
    number = selection.n_features_to_select
    if quick and isinstance(number, Auto):
        used["stability"]["n_features_to_select"] = number.model_dump()
    choose = partial(
        choose_fits,
        selection=selection,
        n_pairs=settings.n_pairs,
        sample_size=size,
        quick=quick,
    )
    # The stage reads no other stage, so it stays valid if the graph is rebuilt.
    name = "result" if quick else "stability"
    return Stage(name, 10, used, choose, beside=not quick, sparse=True)


def _stages_of_fit(selection: Selection, quick: bool) -> list[Stage]:
    """Return the stages of a fit, with curves if the fit chooses the number of features."""
    number = selection.n_features_to_select
    chooses = quick and isinstance(number, Auto) and not is_by_fits(number)
    return [*stages_of_selection(selection), *([curves_stage(selection)] if chooses else [])]


def check_stability(
    selection: Selection,
    settings: StabilityConfig,
    n_samples: int | None,
    n_features: int,
    *,
    quick: bool = False,
) -> None:
    """Raise InputError for settings that the shape of the data does not allow.

    Parameters
    ----------
    selection : Selection
    settings : StabilityConfig
    n_samples : int or None
        None if it is not known yet.
    n_features : int
    quick : bool, default=False
        True if the consensus of the fits is the result of the run.
    """
    if selection.graph is not None and re.search(r"obs[mp]/", selection.graph.representation):
        raise InputError(
            "stability fits samples of the rows, for which graph.representation "
            f"'{selection.graph.representation}' is not available. Set it to 'pca:50' or 'raw'."
        )
    if n_samples is None:
        return
    if n_samples < 4:
        raise InputError(
            f"stability needs at least 4 rows, for two samples of two rows. X has {n_samples}."
        )
    if n_samples >= _ROW_LIMIT:
        raise InputError(
            f"stability supports fewer than {_ROW_LIMIT:,} rows. Got {n_samples:,}. Select some of "
            "them, for instance with input.rows."
        )
    most = n_samples // 2
    if settings.sample_size is not None and settings.sample_size > most:
        raise InputError(
            f"stability.sample_size must be at most {most:,}, half of the {n_samples:,} rows: the "
            f"two samples of a pair have no common rows. Got {settings.sample_size:,}."
        )
    size = settings.sample_size or (min(QUICK_ROWS, most) if quick else most)
    try:
        check_settings(selection, size, n_features)
    except InputError as error:
        error.add_note(f"Here X is one sample of {size:,} rows (stability.sample_size).")
        raise


def choose_fits(
    shape: Shape,
    selection: Selection,
    n_pairs: int,
    sample_size: int | None,
    *,
    quick: bool = False,
) -> SampledFits:
    """Return the strategy, of which there is only one.

    Raises
    ------
    MemoryLimitError
        If a fit does not fit into a worker's memory; the message names the largest sample that
        does.
    """
    size = max(2, min(sample_size or shape.n_samples, shape.n_samples // 2))
    auto = selection.n_features_to_select
    if isinstance(auto, Auto) and not quick:  # the largest number that the curves may choose
        most = largest_number(auto, shape.n_samples, shape.n_features)
        selection = selection.model_copy(update={"n_features_to_select": most})
    fits = SampledFits(shape, selection, n_pairs, size, quick)
    budget = task_budget(selection.memory_limit)
    if not fits.is_within(budget):
        low, high = 1, size
        while high - low > 1:
            middle = (low + high) // 2
            smaller = SampledFits(shape, selection, n_pairs, middle, quick)
            low, high = (middle, high) if smaller.is_within(budget) else (low, middle)
        needed = fits.fit_bytes()
        cure = f"stability.sample_size to {low:,} or less, or " if low > 1 else ""
        raise MemoryLimitError(
            f"Stage 'stability' needs {format_bytes(needed)} for a fit on {size:,} rows; a "
            f"memory_limit of {format_bytes(selection.memory_limit)} leaves {format_bytes(budget)} "
            f"to one task. Nothing has run. Set {cure}memory_limit to "
            f"'{format_limit(limit_for(needed))}' or more."
        )
    return fits


@dataclass(frozen=True)
class SampledFits:
    """Pairs of samples of the rows, and a fit of the method to each sample."""

    shape: Shape  # of the data with all rows
    selection: Selection
    n_pairs: int
    sample_size: int  # rows of each fit
    # True if the consensus is the result of the run. If the number of features is "auto", the
    # consensus then chooses it.
    quick: bool = False

    @property
    def draw(self) -> Draw:
        """The random draw of the rows of all samples."""
        seed = self.selection.random_state
        return Draw(self.shape.n_samples, self.sample_size, self.n_pairs, seed)

    @property
    def largest(self) -> int:
        """The largest number of features that a fit selects."""
        number = self.selection.n_features_to_select
        if isinstance(number, Auto):
            return largest_number(number, self.sample_size, self.shape.n_features)
        return number

    def cost(self) -> StageCost:
        """Return the cost of the pass, the fits and the consensus."""
        n_fits, d, costs = 2 * self.n_pairs, self.shape.n_features, self._costs()
        draw, shape = self.draw, self.shape
        # Row indices, and the positions of the rows of each sample.
        places = shape.rows * (24 + 12 * draw.n_deals)
        # If selections of different numbers are not nested, a fit stores all of them.
        own = METHODS[self.selection.method].one_fit_up_to(self.selection.parameters)
        selections = 2 * min(self.largest, int(own)) ** 2 if isfinite(own) else 0
        row_bytes = -(-shape.nbytes // shape.n_samples)
        drawn = draw.n_drawn * (row_bytes + 8) + 8 * n_fits * self.sample_size
        what, requests = f"a fit on {self.sample_size:,} rows", n_fits * shape.n_blocks
        seconds, rankings = sum(cost.seconds for cost in costs), n_fits * (d * 24 + 2 * selections)
        steps = (
            pass_over(shape, "a block and the rows drawn from it", places + 8 * MIB),
            Step(what, self.fit_bytes(), n_fits, requests=requests, seconds=n_fits * seconds),
            Step(f"the rankings of {n_fits} fits", rankings, by_client=True),
        )
        stored = 8 * d * (n_fits + 4) + n_fits * selections
        cost = StageCost(
            steps,
            drawn + 2 * stored,
            stored,
            compiles=any(cost.compiles for cost in costs),
            loads=tuple(dict.fromkeys(name for cost in costs for name in cost.loads)),
        )
        return with_redundancy(cost, self.redundancy(self.largest))

    def redundancy(self, n_selected: int) -> Redundancy | None:
        """Return the redundancy rule for the consensus, or None if it is not the result."""
        return Redundancy.of(self.selection, self.shape, n_selected) if self.quick else None

    @property
    def sample(self) -> Shape:
        """The shape of a sample; for CSR rows with an upper bound of its random number of entries.

        For k rows with m entries on average in all rows, it is ``k min(d, m (1 + 4 / sqrt(k)))``.
        """
        size, shape, d = self.sample_size, self.shape, self.shape.n_features
        if shape.n_entries is None:
            return self._dense
        mean = shape.n_entries / shape.n_samples
        rows = min(size, rows_for(mean, shape.itemsize))
        n_entries, largest = (int(min(d, mean * (1 + 4 / k**0.5)) * k) for k in (size, rows))
        return Shape(size, d, shape.itemsize, rows, rows, n_entries, largest)

    @property
    def _dense(self) -> Shape:
        """The shape of a sample in dense form."""
        d, itemsize = self.shape.n_features, self.shape.itemsize
        rows = block_rows(d, itemsize)
        return Shape(self.sample_size, d, itemsize, rows, rows)

    def _costs(self) -> list[StageCost]:
        """Return the cost of each stage of a fit."""
        sample = self.sample
        costs = [
            stage.choose(sample if stage.takes_entries(sample) else self._dense).cost()
            for stage in _stages_of_fit(self.selection, self.quick)
        ]
        return [cost for cost in costs if cost is not None]

    def fit_bytes(self) -> int:
        """Return the bytes of a fit in its process: its rows, and a block or the method's steps."""
        rows_bytes = self.sample.nbytes + 8 * self.sample_size
        if self.sample.n_entries is not None:
            rows_bytes *= 2  # the pieces from each block, and their concatenation
        most = max(cost.task_bytes + cost.client_bytes + cost.keeps_bytes for cost in self._costs())
        return rows_bytes + max(most, self.shape.block_bytes) + 8 * MIB

    def is_within(self, budget: int) -> bool:
        """Return True if a fit needs at most ``budget`` bytes."""
        try:
            return self.fit_bytes() <= budget
        except MemoryLimitError:
            return False

    def run(self, inputs: Inputs, out: Scratch) -> None:
        """Run the fits and store their consensus; fits finished by an earlier run are reused."""
        blocks, n_fits = inputs.blocks, 2 * self.n_pairs
        work = blocks.scratch.child(blocks.scratch.unique("stability"))
        kept = work.child("fits") if inputs.checkpoint is None else Scratch(inputs.checkpoint)
        missing = [fit for fit in range(n_fits) if load_state(_file(kept.path, fit)) is None]
        if len(missing) < n_fits:
            finished = n_fits - len(missing)
            logger.info(
                "stability: %d of %d fits were finished by an earlier run", finished, n_fits
            )
        if missing:
            rows = draw_rows(blocks, self.draw, missing, work.child("rows"))
            # Stored for the tasks to read, because there may be as many dropped rows as rows.
            dropped = work.put("dropped", np.asarray(blocks.source.dropped, dtype=np.int64))
            names = hand_over(work.path, blocks.source.feature_names or [])
            places = dropped, blocks.source.row_dimensions
            job = self, rows, places, names, str(kept.path)
            run_tasks(_fit_task, missing, *job, label="stability", unit="fits")
        outcomes = [load_state(_file(kept.path, fit)) for fit in range(n_fits)]
        forced = np.array(included(blocks.source, self.selection.include), dtype=np.int64)
        result, notes = _consensus(outcomes, self, forced)
        if self.quick:
            redundancy = self.redundancy(result.details["n_selected"])
            result = passed_over(result, blocks, self.selection, redundancy)
            notes = [*data_notes(blocks, self.selection.method), *notes, *result.notes]
        if self.n_pairs == 1:
            notes.append("stability: an interval needs more than one pair of samples.")
        n_selected = result.details["n_selected"]
        store_result(result, out, self.selection.method, n_selected, blocks, notes)
        work.close()


def _file(folder: Location, fit: int) -> Location:
    return folder / f"fit-{fit}.npz"


def _fit_task(
    fit: int,
    fits: SampledFits,
    rows: DrawnRows,
    places: tuple[ArrayRef, Any],
    names: Any,
    kept: str,
) -> None:
    """Fit the method to one sample, in this thread, and store its scores and selection."""
    with inline():
        X, numbers = rows.sample(fit)
        # A temporary folder for many small arrays that are read only here. In the run's folder, an
        # abandoned task would recreate files that were removed when its attempt ended.
        scratch = Scratch()
        n_samples = fits.shape.n_samples
        own = _of_sample(fits.selection, fit, n_samples, places, numbers)
        try:
            stages = _stages_of_fit(own, fits.quick)
            result, number, notes = _fitted(X, own, stages, scratch, handed(names))
        except BigfsError as error:
            error.add_note(
                f"Raised in stability fit {fit + 1} of {2 * fits.n_pairs}, on {X.shape[0]:,} of "
                f"{n_samples:,} rows. A larger stability.sample_size may help."
            )
            raise
        finally:
            scratch.close()
        supports = result.supports
        outcome = {
            "scores": result.scores,
            "ranking": result.ranking.astype(np.int32),
            "supports": np.array([] if supports is None else supports, dtype=np.int32),
            "number": number,
            "notes": notes,
        }
        save_state(_file(as_location(kept), fit), outcome)


def _fitted(
    X: Any, selection: Selection, stages: list[Stage], scratch: Scratch, names: list[str]
) -> tuple[FeatureScores, int, list[str]]:
    """Return a method's scores on rows in memory, the number of features chosen, and notes.

    The number is 0 if the fit chooses none or its curve has no plateau.
    """
    blocks = RowBlocks.from_any(X, scratch=scratch, transform=selection.preprocess, sparse=True)
    blocks.source.feature_names = names or None
    store = TemporaryStages(scratch.child("stages"))
    finished = Engine(store, blocks).run(stages)
    # Notes on the data are left out here; they are made once, for all rows.
    about = data_notes(blocks, selection.method)
    noted = [note for path in finished.values() for note in read_attributes(path).get("notes", [])]
    notes = [note for note in noted if note not in about]
    chosen = Curves.open(finished["curves"]).number if "curves" in finished else None
    number = chosen["n_features_to_select"] if chosen and chosen["has_plateau"] else 0
    return FeatureScores.open(finished["result"]), number, notes


def _of_sample(
    selection: Selection,
    fit: int,
    n_samples: int,
    places: tuple[ArrayRef, Any],
    numbers: np.ndarray,
) -> Selection:
    """Return the settings of a fit, with its own seed and the labels of its rows."""
    seed = derive_seed(selection.random_state, "stability fit", fit)
    selection = selection.model_copy(update={"random_state": seed})
    dropped, dimensions = places
    start = start_of(selection, n_samples, dropped.load().tolist(), dimensions)
    if start is None or isinstance(start, str) or len(start) != n_samples:
        return selection
    labels = METHODS[selection.method].labels
    return selection.with_parameters(**{labels: np.asarray(start)[numbers]})


def _consensus(
    read: Sequence[dict[str, Any] | None], fits: SampledFits, forced: np.ndarray
) -> tuple[FeatureScores, list[str]]:
    """Return the combined scores of all fits, with their stability, and notes.

    If the fits choose the number of features, it is at least the number of included features.

    Parameters
    ----------
    read : sequence of dict or None
        Stored outcomes of the fits; None for one that cannot be read.
    fits : SampledFits
    forced : ndarray of int64
        Features that are included in any case.

    Raises
    ------
    StorageError
        If an outcome cannot be read.
    """
    outcomes = [outcome for outcome in read if outcome is not None]
    if len(outcomes) < len(read):
        raise StorageError("Stability fits are missing or damaged. Run again.")
    rankings = np.array([outcome["ranking"] for outcome in outcomes])
    supports = np.array([outcome["supports"] for outcome in outcomes])
    scores = np.mean([outcome["scores"] for outcome in outcomes], axis=0)
    number, details = fits.selection.n_features_to_select, {}
    stability = Stability.of_fits(
        fits.largest,
        rankings,
        supports if supports.size else None,
        fits.sample_size,
        fits.draw.shared_rows,
        forced if 0 < len(forced) < rankings.shape[1] else None,
    )
    if fits.quick and isinstance(number, Auto):
        of_fits = [outcome["number"] for outcome in outcomes]
        details["number"] = at_least(_number(number, stability, of_fits), len(forced))
        stability = stability.at(details["number"]["n_features_to_select"])
    details |= stability.as_details()
    ranking = consensus_ranking(stability.frequencies, scores, rankings)
    # The preparation of counts is the same in all fits, and a full run has its own note on it.
    prepared = preparation_notes(fits.selection)
    noted = [[note for note in outcome["notes"] if note not in prepared] for outcome in outcomes]
    noted = [notes for notes in noted if notes]
    summary = prepared if fits.quick else []
    if noted:
        summary.append(
            f"{len(noted)} of {len(read)} stability fits reported notes, for example: {noted[0][0]}"
        )
    return FeatureScores(scores, ranking, details), summary


def _number(number: Auto, stability: Stability, of_fits: list[int]) -> dict[str, Any]:
    """Return the number of features that the fits choose, as the field ``number`` of `Curves`.

    It is chosen from the curve of the stability, or it is the median of the numbers chosen by the
    fits (``of_fits``, 0 for a fit whose curve has no plateau).
    """
    largest, chosen = stability.n_selected, [m for m in of_fits if m]
    if is_by_fits(number):
        sizes = curve_sizes(largest)
        return choose_number(number, sizes, *stability.curves(sizes), stability.sample_size)
    if not chosen:
        return about_number(number, 0, largest, "")
    others = f"; {len(of_fits) - len(chosen)} others have no plateau"
    rule = (
        f"the median over {len(chosen)} samples (range {min(chosen)} to {max(chosen)}"
        f"{others if len(chosen) < len(of_fits) else ''}) of {rule_in_words(number)}"
    )
    return about_number(number, int(np.median(chosen)), largest, rule)
