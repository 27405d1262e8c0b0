"""The sum of the stages' costs, and the decision whether a run fits.

Only sizes and computed costs are used: no data, no method, no cluster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bigfs.core.cost import Shape, StageCost, StagePlan, Step
from bigfs.core.errors import MemoryLimitError
from bigfs.core.memory import (
    BUFFER_BYTES,
    ENDED_FRACTION,
    KERNEL_BYTES,
    PAUSED_FRACTION,
    USABLE_FRACTION,
    baseline_bytes,
    task_budget,
)
from bigfs.core.text import aligned
from bigfs.core.units import format_bytes, format_seconds
from bigfs.stages.stage import Stage, StageStrategy

# Counts from this number on are shown in millions.
_SHOWN_TASKS = 10**6


@dataclass(frozen=True)
class Place:
    """Limits of the machine or cluster that a run would use."""

    memory_limit: int  # resident size promised for one worker process, in bytes
    threads: int = 1  # most tasks that a process runs at once; fewer if memory is short
    # Actual memory of each worker, or of the machine that they share, in bytes by its name.
    limits: dict[str, int] = field(default_factory=dict)
    shared: int = 1  # number of worker processes that share one of these limits (on one machine)
    # Free bytes at the run directory. None: unknown or unlimited.
    free_scratch_bytes: int | None = None


@dataclass(frozen=True)
class Plan:
    """The cost of a run, and whether it fits.

    Attributes
    ----------
    shape : Shape or None
        None if the number of rows is not known.
    place : Place
    stages : tuple of StagePlan
    unknown : tuple of str
        Sentences on what is not known before the run.
    cures : tuple of str
        Changes of settings with which the run would fit, the smallest change first.
    notes : tuple of str
        Sentences on the input, such as how columns that are not numbers are read, and on ``quick``.
    """

    shape: Shape | None
    place: Place
    stages: tuple[StagePlan, ...]
    unknown: tuple[str, ...] = ()
    cures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def refusals(self) -> list[str]:
        """Reasons why the run does not fit; empty if it fits."""
        reasons = [stage.refusal for stage in self.stages if stage.refusal]
        free = self.place.free_scratch_bytes
        if free is not None and self.scratch_bytes > free:
            reasons.append(
                f"The run directory needs about {format_bytes(self.scratch_bytes)}, but its file "
                f"system has {format_bytes(free)} free. Free space there, or put the run "
                "directory on a larger disk."
            )
        return reasons

    @property
    def fits(self) -> bool:
        """True if the run is accepted."""
        return not self.refusals

    @property
    def predicted_peak_bytes(self) -> int:
        """The largest resident size of a worker process in any stage."""
        return max((stage.predicted_peak_bytes for stage in self.stages), default=0)

    @property
    def _costs(self) -> list[StageCost]:
        return [stage.cost for stage in self.stages if stage.cost is not None]

    @property
    def scratch_bytes(self) -> int:
        """Largest size of the run directory: results of finished stages plus a stage's scratch."""
        most = kept = 0
        for cost in self._costs:
            most = max(most, kept + cost.scratch_bytes)
            kept += cost.stored_bytes
        return most

    @property
    def bytes_read(self) -> int:
        """Bytes of X that all stages together read."""
        return sum(stage.bytes_read for stage in self.stages)

    @property
    def seconds(self) -> float:
        """Processor time of all stages in seconds, estimated from measured rates."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def by_stage(self) -> dict[str, StagePlan]:
        """The planned stages by their names."""
        return {stage.name: stage for stage in self.stages}

    def check(self) -> None:
        """Raise MemoryLimitError unless the run fits; the message names changes that would help."""
        if not self.fits:
            text = " ".join([*self.refusals, "Nothing has run.", *self._cure_lines()])
            raise MemoryLimitError(text)

    def _cure_lines(self) -> list[str]:
        return [f"Set {' or '.join(self.cures)}."] if self.cures else []

    def line(self) -> str:
        """Return the plan in one line."""
        bound = "at most " if any(cost.at_most for cost in self._costs) else ""
        top = max(self.stages, key=lambda stage: stage.seconds, default=None)
        longest = "" if top is None else f", {format_seconds(top.seconds)} of it for {top.name}"
        return (
            f"plan: {len(self.stages)} stages, at most {format_bytes(self.predicted_peak_bytes)} "
            f"in a worker, {bound}{format_bytes(self.bytes_read)} read, "
            f"{_count(sum(cost.tasks for cost in self._costs))} tasks, "
            f"{format_bytes(self.scratch_bytes)} in the run directory; processor time, "
            f"estimated: {bound}{format_seconds(self.seconds)}{longest}"
        )

    def text(self) -> str:
        """Return the plan as a table with totals and the verdict."""
        lines = []
        if self.shape is not None:
            s = self.shape
            entries = "" if s.n_entries is None else f"{s.n_entries:,} entries, "
            lines.append(
                f"{s.n_samples:,} samples x {s.n_features:,} features, {entries}"
                f"{format_bytes(s.nbytes)}, {s.n_blocks:,} blocks of {s.rows:,} rows"
            )
        lines += [*self.unknown, *self.notes]
        head = ("stage", "peak", "read of X", "passes", "tasks", "graph", "requests", "scratch",
                "processor time")  # fmt: skip
        known = [stage for stage in self.stages if stage.cost is not None]
        if known:
            lines += aligned([head, *map(_cells, [*known, self._total()])], "<", "  ")
        for stage in self.stages:
            if stage.cost is not None:
                lines.append(f"{stage.name}: largest task {stage.cost.largest.what}")
        return "\n".join([*lines, *self._verdict()])

    def _total(self) -> StagePlan:
        """Return the total over all stages, as a row of the table."""
        steps = tuple(step for cost in self._costs for step in cost.steps)
        cost = StageCost(steps, self.scratch_bytes)
        return StagePlan("total", None, cost, self.predicted_peak_bytes, self.bytes_read)

    def _verdict(self) -> list[str]:
        place = self.place
        if self.shape is None and self.fits:
            return ["Whether it fits is checked once the input is read, before any other stage."]
        base, larger = format_bytes(baseline_bytes()), format_bytes(baseline_bytes(True))
        lines = [
            f"Peaks include {base} for a worker before its tasks, or {larger} once it has loaded "
            "pynndescent; <= marks upper bounds of iterations. Processor time is estimated from "
            "measured rates."
        ]
        if not self.fits:
            return [*lines, "Does not fit. " + " ".join(self.refusals), *self._cure_lines()]
        limits = f"a memory_limit of {format_bytes(place.memory_limit)}"
        if place.limits:
            least = min(place.limits.values())
            ours = place.shared > 1 or "this process" in place.limits
            whose = "this machine" if ours else "the smallest worker"
            limits += f", {whose} of {format_bytes(least)}"
        if place.free_scratch_bytes is not None:
            limits += f" and {format_bytes(place.free_scratch_bytes)} of free scratch"
        return [*lines, f"Fits {limits}."]

    def as_dict(self) -> dict[str, Any]:
        """Return the whole plan as JSON values."""
        shape, sizes = self.shape, ("n_samples", "n_features", "n_entries")
        figures = ("predicted_peak_bytes", "bytes_read", "scratch_bytes")
        return {
            "fits": None if self.shape is None and self.fits else self.fits,
            "refusals": self.refusals,
            **{name: list(getattr(self, name)) for name in ("cures", "unknown", "notes")},
            "memory_limit_bytes": self.place.memory_limit,
            "worker_limits_bytes": self.place.limits,
            "free_scratch_bytes": self.place.free_scratch_bytes,
            **{name: getattr(shape, name, None) for name in sizes},
            "bytes_of_X": getattr(shape, "nbytes", None),
            **{name: getattr(self, name) for name in figures},
            "stages": {stage.name: _stage_dict(stage) for stage in self.stages},
        }


def _count(number: int) -> str:
    return f"{number:,}" if number < _SHOWN_TASKS else f"{number / 10**6:,.0f} M"


def _cells(stage: StagePlan) -> tuple[str, ...]:
    cost = stage.cost
    assert cost is not None
    bound = "<= " if cost.at_most else ""
    return (
        stage.name,
        format_bytes(stage.predicted_peak_bytes),
        f"{bound}{format_bytes(stage.bytes_read)}" if stage.bytes_read else "-",
        f"{bound}{cost.passes:,}" if cost.passes else "-",
        f"{bound}{_count(cost.tasks)}",
        format_bytes(cost.graph_bytes),
        f"{bound}{_count(cost.requests)}",
        format_bytes(cost.scratch_bytes) if cost.scratch_bytes else "-",
        f"{bound}{format_seconds(stage.seconds)}",
    )


def _stage_dict(stage: StagePlan) -> dict[str, Any]:
    cost = stage.cost
    if cost is None:
        return {"refusal": stage.refusal}
    of_stage = ("predicted_peak_bytes", "tasks_at_once", "bytes_read", "refusal")
    of_cost = ("task_bytes", "passes", "tasks", "graph_bytes", "requests", "scratch_bytes")
    return {
        **{name: getattr(stage, name) for name in of_stage},
        **{name: getattr(cost, name) for name in (*of_cost, "stored_bytes", "at_most")},
        "largest": cost.largest.what,
        "estimated_seconds": stage.seconds,
    }


def make_plan(
    stages: Sequence[Stage],
    shape: Shape | None,
    place: Place,
    unknown: Sequence[str] = (),
    dense: Shape | None = None,
) -> Plan:
    """Return the plan of the stages in order, each with the strategy that it chooses.

    Parameters
    ----------
    stages : sequence of Stage
        Stages without a cost are left out.
    shape : Shape or None
    place : Place
    unknown : sequence of str
    dense : Shape or None, default=None
        The shape that stages see which convert sparse blocks to dense ones. None: the data are
        dense.
    """
    planned: list[StagePlan] = []
    compiled = loaded = False
    for stage in stages:
        entries = dense is None or shape is None or stage.takes_entries(shape)
        form = shape if entries else dense
        try:
            strategy = stage.choose(form)
            cost = strategy.cost()
        except MemoryLimitError as error:
            # The plan looks for the remedy itself.
            message = str(error).partition(" Nothing has run.")[0].partition(" Set memory_limit")[0]
            planned.append(StagePlan(stage.name, None, None, refusal=message))
            continue
        if cost is None:
            continue
        compiled, loaded = compiled or cost.compiles, loaded or bool(cost.loads)
        base = baseline_bytes(compiled) + (KERNEL_BYTES if compiled and loaded else 0)
        planned.append(_plan_stage(stage.name, strategy, cost, base, form, place))
    return Plan(shape, place, tuple(planned), tuple(unknown))


def _plan_stage(
    name: str,
    strategy: StageStrategy,
    cost: StageCost,
    base: int,
    shape: Shape | None,
    place: Place,
) -> StagePlan:
    """Return the plan of a stage; ``base`` is the resident size of its processes before it."""
    limit, budget = place.memory_limit, task_budget(place.memory_limit)
    at_once = _tasks_at_once(cost, place.threads, budget)
    needed = _tasks_bytes(cost.by_workers, at_once)
    client = cost.client_bytes if "this process" in place.limits else 0
    beside_kept = [step for step in cost.by_workers if not step.before_kept]
    with_kept = max(_tasks_bytes(beside_kept, at_once), client)
    with_kept += min(cost.keeps_bytes, max(0, budget - BUFFER_BYTES - with_kept))
    used = max(needed, with_kept) + BUFFER_BYTES
    peak = base + used
    if cost.client_bytes > budget:
        what = next(s.what for s in cost.steps if s.task_bytes == cost.client_bytes)
        refusal = (
            f"Stage '{name}' needs {format_bytes(cost.client_bytes)} for {what}; a memory_limit of "
            f"{format_bytes(limit)} leaves {format_bytes(max(0, budget))} for it."
        )
    elif needed > budget:
        refusal = (
            f"Stage '{name}' needs {format_bytes(needed)} for its tasks, besides the process; "
            f"a memory_limit of {format_bytes(limit)} leaves {format_bytes(max(0, budget))}: "
            f"{USABLE_FRACTION:.0%} of it, since Dask spills above 70%, minus "
            f"{format_bytes(baseline_bytes())} for imports. Largest part: "
            f"{format_bytes(cost.task_bytes)} for {cost.largest.what}."
        )
    elif peak > ENDED_FRACTION * limit or base > PAUSED_FRACTION * limit:
        share, size = (
            (PAUSED_FRACTION, base) if base > PAUSED_FRACTION * limit else (ENDED_FRACTION, peak)
        )
        refusal = (
            f"Stage '{name}' needs {format_bytes(peak)} in a worker, {format_bytes(base)} of it "
            f"before its tasks. {format_bytes(size)} exceeds {share:.0%} of the memory_limit of "
            f"{format_bytes(limit)}: Dask pauses workers above {PAUSED_FRACTION:.0%} and ends them "
            f"at {ENDED_FRACTION:.0%}."
        )
    else:
        refusal = _real_limits(name, peak, place)
    read = 0 if shape is None else cost.passes * shape.nbytes
    return StagePlan(name, strategy, cost, peak, read, used, at_once, refusal)


def _tasks_bytes(steps: Sequence[Step], at_once: int) -> int:
    """Return the largest number of bytes that concurrent tasks of a process need together."""
    return max((min(at_once, step.tasks) * step.task_bytes for step in steps), default=0)


def _tasks_at_once(cost: StageCost, threads: int, budget: int) -> int:
    """Return the number of tasks that a process may run at once: one per thread, or fewer."""
    at_once = threads
    for step in cost.by_workers:
        if min(at_once, step.tasks) * step.task_bytes > budget:
            at_once = max(1, budget // step.task_bytes)
    return at_once


def _real_limits(name: str, peak: int, place: Place) -> str:
    """Return a refusal if a worker, or the machine that workers share, is too small; else ""."""
    for worker, limit in place.limits.items():
        promised = place.shared * place.memory_limit <= limit
        if promised or place.shared * peak <= ENDED_FRACTION * limit:
            continue
        if worker == "this process" or place.shared > 1:
            who = f"This machine has {format_bytes(limit)}"
            count = f" in each of {place.shared} workers" if place.shared > 1 else ""
        else:
            who, count = f"Worker {worker} has {format_bytes(limit)}", ""
        needed = math.ceil(place.shared * peak / ENDED_FRACTION)
        return (
            f"{who}, but stage '{name}' needs {format_bytes(peak)}{count}. Provide at least "
            f"{format_bytes(needed)}, or use fewer workers or a smaller memory_limit."
        )
    return ""
