"""The plan of a configuration, and the settings that would make it fit."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from bigfs.blocks import RowBlocks
from bigfs.config import Config
from bigfs.core.errors import MemoryLimitError
from bigfs.core.memory import LIMIT_STEP_BYTES, SMALLEST_LIMIT_BYTES, format_limit
from bigfs.evaluate.stage import check_labels, check_shape, stages_of
from bigfs.plan.header import Header, header_of, place_of
from bigfs.plan.plan import Place, Plan, make_plan
from bigfs.selectors.stages import check_form, resolved
from bigfs.stages.data import data_stage
from bigfs.store.source import Source, open_matrix

logger = logging.getLogger("bigfs")

_LARGEST_LIMIT = 2**42
_MOST_CURES = 3


def plan_pipeline(config: Config, *, scheduler: str | None = None) -> Plan:
    """Return the cost of a run of a configuration, and whether it fits.

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
    source = open_matrix(config.input.uri, **config.opening)
    config = resolved(config, source)
    check_config(config, source)
    plan = plan_input(config, source, place_of(config, scheduler))
    return dataclasses.replace(plan, notes=tuple(source.notes))


def check_config(config: Config, source: Source) -> None:
    """Raise InputError for settings or labels that do not go with an opened input."""
    check_form(stages_of(config), config, source)
    with suppress(MemoryLimitError):  # the plan says what does not fit
        check_shape(config, source.n_samples, source.n_features)
    kept = None if config.input.missing == "drop_rows" else source.n_samples
    check_labels(config, kept)


def plan_input(config: Config, source: Source, place: Place) -> Plan:
    """Return the plan for an opened input and a place, with cures if it does not fit."""
    return _with_cures(config, header_of(source, config.input.uri, config.input.missing), place)


def plan_for(config: Config, plan: Plan, blocks: RowBlocks) -> Plan:
    """Return the plan for stored data: another one if their rows were only estimated before.

    Raises
    ------
    MemoryLimitError
        If the data do not fit.
    """
    if plan.shape == blocks.layout:
        return plan
    header = header_of(blocks.source, str(blocks.source.uri))
    plan = _with_cures(config, dataclasses.replace(header, stored=True), plan.place)
    plan.check()
    return plan


def check_plan(config: Config, plan: Plan, name: str = "") -> None:
    """Log a plan, and refuse what does not fit.

    Where the number of rows is only estimated, it is refused if half of them do not fit either;
    else once they are counted.

    Raises
    ------
    MemoryLimitError
        With the smallest change that would make it fit.
    """
    if plan.shape is not None and plan.unknown:
        shape = plan.shape
        sizes = (shape.n_samples // 2 + 1, shape.n_features, shape.itemsize, shape.chunk_rows)
        _with_cures(config, Header(*sizes, stored=True, exact=True), plan.place).check()
    else:
        plan.check()
    logger.info("%s%s", name, plan.line())


def _with_cures(config: Config, header: Header, place: Place) -> Plan:
    plan = plan_of(config, header, place)
    return plan if plan.fits else dataclasses.replace(plan, cures=cures(config, header, place))


def plan_of(config: Config, header: Header, place: Place) -> Plan:
    """Return the plan for a header and a place, without looking for cures."""
    shape = header.shape(config.blocks.rows, sparse=True)
    place = dataclasses.replace(place, memory_limit=config.memory_limit)
    if shape is None:
        unknown = "The number of rows is unknown until the input is read, and so are the costs."
        return make_plan([], None, place, [unknown])
    unknowns = []
    if not header.exact:
        why = "from the size of the input"
        if config.input.missing == "drop_rows":
            why += ", less those with NaN"
        unknowns.append(f"About {shape.n_samples:,} rows, {why}; the run counts them.")
    held = {"held_bytes": header.held_bytes, "temporary_bytes": header.temporary_bytes}
    data = data_stage(config.input, config.preprocess, header.stored, **held)
    dense = header.shape(config.blocks.rows)
    return make_plan([data, *stages_of(config)], shape, place, unknowns, dense)


def cures(config: Config, header: Header, place: Place) -> tuple[str, ...]:
    """Return settings with which the plan fits, each found by making that plan."""
    settings = []
    for name, variants in _candidates(config, header, place):
        for value, variant in variants:
            if plan_of(variant, header, place).fits:
                settings.append(f"{name} to {value}")
                break
        if len(settings) == _MOST_CURES:
            break
    return tuple(settings)


def _candidates(
    config: Config, header: Header, place: Place
) -> Iterator[tuple[str, Iterator[tuple[str, Config]]]]:
    """Yield settings that could help, with values from the smallest change on."""
    if config.spectral is not None and config.spectral.solver in ("eigsh", "lobpcg"):
        yield "spectral.solver", _variants(config, "spectral", "solver", ["auto", "chebyshev"])
    if config.graph is not None and config.graph.algorithm != "auto":
        yield "graph.algorithm", _variants(config, "graph", "algorithm", ["auto"])
    shape = header.shape(config.blocks.rows)
    if shape is not None and config.stability is not None:
        yield "stability.sample_size", _samples(config, header, place, shape.n_samples // 2)
    if shape is not None:
        smaller: list[int] = []
        rows = shape.rows // 2 // header.chunk_rows * header.chunk_rows
        # The blocks of a sparse store are as small as they get.
        while header.csr is None and rows >= header.chunk_rows and len(smaller) < 8:
            smaller.append(rows)
            rows = rows // 2 // header.chunk_rows * header.chunk_rows
        yield "blocks.rows", _variants(config, "blocks", "rows", smaller)
        if "sample_size" in type(config.parameters).model_fields:
            sizes = [shape.n_samples // part for part in (2, 4, 8, 16, 32, 64, 128)]
            sizes = [size for size in sizes if size >= 1000]
            name = f"{config.method}.sample_size"
            yield name, _variants(config, config.method, "sample_size", sizes)
    yield "memory_limit", _limits(config, header, place)


def _variants(config: Config, section: str, name: str, values: Any) -> Iterator[tuple[str, Config]]:
    """Yield a configuration for each value of a setting of a section."""
    for value in values:
        changed = getattr(config, section).model_copy(update={name: value})
        shown = f"'{value}'" if isinstance(value, str) else f"{value}"
        yield shown, config.model_copy(update={section: changed})


def _samples(
    config: Config, header: Header, place: Place, most: int
) -> Iterator[tuple[str, Config]]:
    """Yield the largest sample of a fit that fits, to two digits; none if not even two rows do."""

    def at(size: int) -> tuple[str, Config]:
        return next(_variants(config, "stability", "sample_size", [size]))

    low, high = 2, max(2, most)
    if not plan_of(at(low)[1], header, place).fits:
        return
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if plan_of(at(middle)[1], header, place).fits else (low, middle)
    digits = 10 ** max(0, len(str(low)) - 2)
    yield at(low // digits * digits)


def _limits(config: Config, header: Header, place: Place) -> Iterator[tuple[str, Config]]:
    """Yield the smallest larger limit that fits, or else the largest smaller one."""

    def at(limit: int) -> tuple[str, Config]:
        return f"'{format_limit(limit)}'", config.model_copy(update={"memory_limit": limit})

    def fits(limit: int) -> bool:
        return plan_of(at(limit)[1], header, place).fits

    step, limit_now = LIMIT_STEP_BYTES, max(config.memory_limit, SMALLEST_LIMIT_BYTES)
    low, high = limit_now // step, -(-limit_now // step) + 1
    while not fits(high * step) and high * step < _LARGEST_LIMIT:
        low, high = high, 2 * high
    if fits(high * step):
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle * step) else (middle, high)
        yield at(high * step)
        return
    for limit in range((limit_now - 1) // step * step, SMALLEST_LIMIT_BYTES - 1, -step):
        yield at(limit)
