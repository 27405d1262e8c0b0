"""The plan of a configuration: opens the input's header, asks every stage, looks at the workers.

Nothing is read of the data but their shape, nothing is written and no cluster is started.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigfs.blocks import preprocess
from bigfs.config import Config
from bigfs.core.cost import Shape, StageCost, Step
from bigfs.core.errors import MemoryLimitError
from bigfs.core.memory import LIMIT_STEP_BYTES, SMALLEST_LIMIT_BYTES, format_limit
from bigfs.core.units import MIB
from bigfs.pipeline.stages import check_labels, check_settings, stages_of
from bigfs.plan.plan import Place, Plan, make_plan
from bigfs.runtime import connect, scheduler_address, worker_limits
from bigfs.runtime.execute import worker_slots
from bigfs.selectors.costs import moments_step
from bigfs.store.chunking import block_rows, chunk_rows
from bigfs.store.location import as_location, files_below, free_bytes
from bigfs.store.source import RandomAccessSource, Source, is_store, open_matrix

logger = logging.getLogger("bigfs")

_LARGEST_LIMIT = 2**42
_MOST_CURES = 3


@dataclass(frozen=True)
class Header:
    """What the header of an input tells.

    Attributes
    ----------
    n_samples : int or None
        None where nothing tells, not even the size of the file.
    n_features, itemsize : int
    chunk_rows : int
        Of the store that the stages read.
    stored : bool
        Whether the input is a store already; else it is brought into one first.
    exact : bool
        Whether ``n_samples`` is the true number.
    """

    n_samples: int | None
    n_features: int
    itemsize: int
    chunk_rows: int
    stored: bool
    exact: bool

    def shape(self, rows: int | None) -> Shape | None:
        """Return the shape with so many rows in a block; None: as many as the stages choose."""
        if self.n_samples is None:
            return None
        rows = rows or block_rows(self.n_features, self.itemsize, self.chunk_rows)
        return Shape(self.n_samples, self.n_features, self.itemsize, rows, self.chunk_rows)


def header_of(source: Source, uri: str, missing: str = "error") -> Header:
    """Return what an opened input tells of itself."""
    stored = is_store(uri)
    itemsize = source.dtype.itemsize
    chunk = source.chunk_rows if stored and isinstance(source, RandomAccessSource) else None
    return Header(
        source.estimated_samples,
        source.n_features,
        itemsize,
        chunk or chunk_rows(source.n_features, itemsize),
        stored,
        source.n_samples is not None and missing != "drop_rows",
    )


def plan_run(config: Config, *, scheduler: str | None = None) -> Plan:
    """Return what a run of a configuration would cost, and whether it fits.

    Parameters
    ----------
    config : Config
    scheduler : str or None, default=None
        Address of a Dask scheduler whose workers are asked for their limits. None: what the
        configuration or the scope says, or this machine.

    Returns
    -------
    plan : Plan
        With settings that would make it fit, if it does not.

    Raises
    ------
    InputError
        If the input cannot be opened, or settings or labels do not go with it.
    ClusterError
        If the scheduler does not answer or has no workers.
    """
    given = config.input
    source = open_matrix(given.uri, variable=given.variable, header=given.header)
    with suppress(MemoryLimitError):  # the plan says what does not fit
        check_settings(config, source.n_samples, source.n_features)
    kept = None if config.input.missing == "drop_rows" else source.n_samples
    check_labels(config, kept)
    [plan] = _plans([config], scheduler)
    return plan


def check_plans(configs: Sequence[Config], *, scheduler: str | None = None) -> None:
    """Log the plans of configurations of the same data, and refuse what does not fit.

    Where the number of rows is only estimated, it is refused if half of them do not fit either;
    else once they are counted.

    Parameters
    ----------
    configs : sequence of Config
    scheduler : str or None, default=None
        As in `plan_run`.

    Raises
    ------
    MemoryLimitError
        With the smallest change that would make it fit.
    """
    for config, plan in zip(configs, _plans(configs, scheduler), strict=True):
        if plan.shape is not None and plan.unknown:
            half = dataclasses.replace(plan.shape, n_samples=plan.shape.n_samples // 2 + 1)
            plan_of(config, half, plan.place).check()
        else:
            plan.check()
        name = f"{config.method}: " if len(configs) > 1 else ""
        logger.info("%s%s", name, plan.line())


def _plans(configs: Sequence[Config], scheduler: str | None) -> list[Plan]:
    """Return the plans of configurations of the same data and cluster."""
    first = configs[0]
    given = first.input
    source = open_matrix(given.uri, variable=given.variable, header=given.header)
    header = header_of(source, given.uri, given.missing)
    place = place_of(first, scheduler)
    return [_plan_with_cures(config, header, place) for config in configs]


def _plan_with_cures(config: Config, header: Header, place: Place) -> Plan:
    plan = plan_for(config, header, place)
    return plan if plan.fits else dataclasses.replace(plan, cures=cures(config, header, place))


def plan_for(config: Config, header: Header, place: Place) -> Plan:
    """Return the plan for a header and a place, without looking for cures."""
    shape = header.shape(config.blocks.rows)
    place = dataclasses.replace(place, memory_limit=config.memory_limit)
    if shape is None:
        unknown = "The number of rows is known only once the input is read; so is all else."
        return make_plan([], None, place, [unknown])
    unknowns = []
    if not header.exact:
        why = "from the size of the input"
        if config.input.missing == "drop_rows":
            why += ", less those with NaN"
        unknowns.append(f"About {shape.n_samples:,} rows, {why}; the run counts them.")
    stages: list[tuple[str, Callable[[], StageCost]]] = []
    data = _data_cost(config, header, shape)
    if data is not None:
        stages.append(("data", lambda: data))
    for stage in stages_of(config):
        if stage.cost is not None:
            stages.append((stage.name, _bound(stage.cost, config, shape)))
    return make_plan(stages, shape, place, unknowns)


def _bound(
    cost: Callable[[Config, Shape], StageCost], config: Config, shape: Shape
) -> Callable[[], StageCost]:
    return lambda: cost(config, shape)


def _data_cost(config: Config, header: Header, shape: Shape) -> StageCost | None:
    """Return the cost of bringing the input into a store, and of what a transform needs."""
    steps, stored = [], 0
    if not header.stored:
        chunk = header.chunk_rows * shape.n_features * shape.itemsize
        reads = 2 if config.input.missing == "mean" else 1
        needed, requests = 4 * chunk + 32 * MIB, 2 * shape.n_chunks
        steps.append(Step("a chunk of the input", needed, 1, 1, requests, reads))
        stored = shape.nbytes
    if preprocess.needs_moments(config.preprocess):
        steps.append(moments_step(shape))
    return StageCost(tuple(steps), stored, stored) if steps else None


def place_of(config: Config, scheduler: str | None = None) -> Place:
    """Return where a run would take place, and what there is."""
    limit, free = config.memory_limit, free_scratch(config.run)
    address = scheduler_address(scheduler, config.cluster)
    if address is not None:
        with connect(address, config.cluster, limit):
            return _connected(limit, free)
    if config.cluster is not None:
        n_workers, threads = config.cluster.n_workers or 1, config.cluster.threads_per_worker or 1
        if config.cluster.kind != "local":
            return Place(limit, threads, free_scratch_bytes=free)
        return Place(limit, threads, _machine_bytes(), n_workers, free)
    return _connected(limit, free)


def _machine_bytes() -> dict[str, int]:
    from distributed.system import MEMORY_LIMIT

    return {"this machine": int(MEMORY_LIMIT)}


def _connected(limit: int, free: int | None) -> Place:
    """Return the place of the scheduler in scope, or of the threads of this process."""
    _, threads = worker_slots()
    return Place(limit, threads, worker_limits(), 1, free)


def plan_within(config: Config, shape: Shape) -> Plan:
    """Return the plan of a run that goes on where it is: its scheduler is in scope.

    Parameters
    ----------
    config : Config
    shape : Shape
        Of the data as they are stored.
    """
    return plan_of(config, shape, _connected(config.memory_limit, None))


def plan_of(config: Config, shape: Shape, place: Place) -> Plan:
    """Return the plan for stored data of a shape."""
    sizes = (shape.n_samples, shape.n_features, shape.itemsize, shape.chunk_rows)
    return _plan_with_cures(config, Header(*sizes, stored=True, exact=True), place)


def free_scratch(run: str) -> int | None:
    """Return the bytes that a run directory may take: what is free, and what it has already."""
    place = as_location(run)
    there: Any = place
    # Of os.path: a name that no file can have is only not there.
    while isinstance(there, Path) and not os.path.exists(there) and there != there.parent:
        there = there.parent
    free = free_bytes(there)
    if free is None or there != place or not there.is_dir():
        return free
    return free + sum(size for size, _ in files_below(place).values())


def cures(config: Config, header: Header, place: Place) -> tuple[str, ...]:
    """Return settings with which the plan fits, each found by making that plan."""
    found = []
    for name, variants in _candidates(config, header, place):
        for value, variant in variants:
            if plan_for(variant, header, place).fits:
                found.append(f"{name} to {value}")
                break
        if len(found) == _MOST_CURES:
            break
    return tuple(found)


def _candidates(
    config: Config, header: Header, place: Place
) -> Iterator[tuple[str, Iterator[tuple[str, Config]]]]:
    """Yield settings that could help, with values from the smallest change on."""
    if config.spectral is not None and config.spectral.solver in ("eigsh", "lobpcg"):
        yield "spectral.solver", _variants(config, "spectral", "solver", ["auto", "chebyshev"])
    if config.graph is not None and config.graph.algorithm != "auto":
        yield "graph.algorithm", _variants(config, "graph", "algorithm", ["auto"])
    shape = header.shape(config.blocks.rows)
    if shape is not None:
        smaller = []
        rows = shape.rows // 2 // header.chunk_rows * header.chunk_rows
        while rows >= header.chunk_rows and len(smaller) < 8:
            smaller.append(rows)
            rows = rows // 2 // header.chunk_rows * header.chunk_rows
        yield "blocks.rows", _variants(config, "blocks", "rows", smaller)
        if config.method == "m3fs" and config.m3fs is not None:
            sizes = [shape.n_samples // part for part in (2, 4, 8, 16, 32, 64, 128)]
            sizes = [size for size in sizes if size >= 1000]
            yield "m3fs.sample_size", _sampled(config, sizes)
    yield "memory_limit", _limits(config, header, place)


def _variants(config: Config, section: str, name: str, values: Any) -> Iterator[tuple[str, Config]]:
    """Yield a configuration for each value of a setting of a section."""
    for value in values:
        changed = getattr(config, section).model_copy(update={name: value})
        shown = f"'{value}'" if isinstance(value, str) else f"{value}"
        yield shown, config.model_copy(update={section: changed})


def _sampled(config: Config, sizes: list[int]) -> Iterator[tuple[str, Config]]:
    """Yield M3FS on fewer samples; its eigenvectors are then found where the sample is."""
    for shown, variant in _variants(config, "m3fs", "sample_size", sizes):
        yield shown, variant.model_copy(update={"spectral": None})


def _limits(config: Config, header: Header, place: Place) -> Iterator[tuple[str, Config]]:
    """Yield the smallest larger limit that fits, or else the largest smaller one."""

    def at(limit: int) -> tuple[str, Config]:
        return f"'{format_limit(limit)}'", config.model_copy(update={"memory_limit": limit})

    def fits(limit: int) -> bool:
        return plan_for(at(limit)[1], header, place).fits

    step, now = LIMIT_STEP_BYTES, max(config.memory_limit, SMALLEST_LIMIT_BYTES)
    low, high = now // step, -(-now // step) + 1
    while not fits(high * step) and high * step < _LARGEST_LIMIT:
        low, high = high, 2 * high
    if fits(high * step):
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle * step) else (middle, high)
        yield at(high * step)
        return
    for limit in range((now - 1) // step * step, SMALLEST_LIMIT_BYTES - 1, -step):
        yield at(limit)
