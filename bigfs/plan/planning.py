"""The plan of a pipeline, from the header of its data; nothing is written or started."""

from __future__ import annotations

import dataclasses
import logging
import os
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigfs.blocks import RowBlocks
from bigfs.config import Config
from bigfs.config.sections import StabilityConfig
from bigfs.core.cost import Shape
from bigfs.core.errors import MemoryLimitError
from bigfs.core.memory import LIMIT_STEP_BYTES, SMALLEST_LIMIT_BYTES, format_limit, machine_bytes
from bigfs.evaluate.stage import check_labels, check_shape, stages_of
from bigfs.plan.plan import Place, Plan, make_plan
from bigfs.runtime.connection import connect, scheduler_address
from bigfs.runtime.scope import active_client, worker_slots
from bigfs.runtime.workers import check_sizes, worker_limits
from bigfs.selectors.number import is_by_fits
from bigfs.selectors.scoring import check_form, labels_of_start, resolved
from bigfs.selectors.stability.fits import QUICK_ROWS
from bigfs.stages.data import data_stage
from bigfs.store.columns import note_on_names
from bigfs.store.labels import check_order
from bigfs.store.location import as_location, files_below, free_bytes
from bigfs.store.records import MARK
from bigfs.store.scratch import block_rows, check_block_rows, chunk_rows, copied_rows
from bigfs.store.source import CSRLayout, RandomAccessSource, Source, is_store, open_matrix

logger = logging.getLogger("bigfs")
_LARGEST_LIMIT = 2**42
_MOST_CURES = 3


@dataclass(frozen=True)
class Header:
    """The header of an input: its size and layout, without its values."""

    n_samples: int | None  # None if it cannot even be estimated from the size of the file
    n_features: int
    itemsize: int
    chunk_rows: int  # rows per chunk of the store that the stages read
    stored: bool  # True if the input is already a store; otherwise it is copied into one first
    exact: bool  # True if ``n_samples`` is the true number and not an estimate
    # Layout of a sparse input in blocks. None: it is dense.
    csr: CSRLayout | None = None
    held_bytes: int = 0  # memory that reading the input needs besides its blocks
    temporary_bytes: int = 0  # temporary disk space that reading the input needs
    is_cut: bool = True  # True if ``csr`` is the actual layout of the input, False for an estimate

    def shape(self, rows: int | None, *, sparse: bool = False) -> Shape | None:
        """Return the shape of the data with ``rows`` rows per block.

        None if the number of samples is not known.

        Parameters
        ----------
        rows : int or None
            Rows per block. None: the number that the stages choose.
        sparse : bool, default=False
            Whether blocks of a sparse input are in CSR form; otherwise they are dense.

        Raises
        ------
        InputError
            If such blocks would read chunks of the input, or of its copy, more than once.
        """
        if self.n_samples is None:
            return None
        if self.csr is not None and sparse:
            csr, rows = self.csr, rows or self.csr.rows
            if self.is_cut:
                check_block_rows(rows, csr.rows, self.n_samples)
            largest = min(csr.n_entries, -(-rows // csr.rows) * csr.block_entries)
            sizes = (self.n_samples, self.n_features, self.itemsize, rows)
            return Shape(*sizes, csr.rows, csr.n_entries, largest)
        chunk = self.chunk_rows
        if not self.stored and self.csr is None:
            chunk = copied_rows(self.n_samples, rows, chunk)
        rows = rows or block_rows(self.n_features, self.itemsize, chunk)
        if self.csr is None:  # dense blocks of a sparse input may have any number of rows
            check_block_rows(rows, chunk, self.n_samples)
        return Shape(self.n_samples, self.n_features, self.itemsize, rows, chunk)


def header_of(source: Source, uri: str, missing: str = "error") -> Header:
    """Return the header of an opened input."""
    stored = source.checked and is_store(uri)
    itemsize = source.dtype.itemsize
    chunk = None
    if stored and isinstance(source, RandomAccessSource) and not source.sparse:
        chunk = source.chunk_rows
    return Header(
        source.estimated_samples,
        source.n_features,
        itemsize,
        chunk or chunk_rows(source.n_features, itemsize),
        stored,
        source.n_samples is not None and missing != "drop_rows",
        source.planned_layout,
        source.held_bytes,
        source.temporary_bytes,
        source.layout is not None,
    )


def place_of(config: Config, scheduler: str | None = None) -> Place:
    """Return the limits of the machine or cluster that a run would use."""
    limit, free, cluster = config.memory_limit, free_scratch(config.run), config.cluster
    address = scheduler_address(scheduler, cluster)
    if address is None and cluster is not None:
        n_workers, threads = cluster.n_workers or 1, cluster.threads_per_worker or 1
        if cluster.kind != "local":
            return Place(limit, threads, free_scratch_bytes=free)
        return Place(limit, threads, {"this machine": machine_bytes()}, n_workers, free)
    # The scheduler at the address, or the one in scope, or the threads of this process.
    with connect(address, cluster, limit):
        (_, threads), limits = worker_slots(), worker_limits()
        if active_client() is not None:
            check_sizes(limits)
        return Place(limit, threads, limits, 1, free)


def free_scratch(run: str) -> int | None:
    """Return the bytes that a run directory may use: free space plus its present size.

    None if unknown or unlimited.
    """
    place = as_location(run)
    folder: Any = place
    # `os.path.exists` also returns False for invalid file names, for which `Path.exists` raises.
    while isinstance(folder, Path) and not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    free = free_bytes(folder)
    if free is None or folder != place or not (place / MARK).is_file():
        return free
    return free + sum(size for size, _ in files_below(place).values())


def plan_pipeline(config: Config, *, scheduler: str | None = None) -> Plan:
    """Return the predicted cost of a run, and whether it fits.

    Parameters
    ----------
    config : Config
    scheduler : str or None, default=None
        Address of a Dask scheduler whose workers are asked for their limits. None: the scheduler of
        the configuration or of the current scope, or this machine.

    Returns
    -------
    plan : Plan
        If the run does not fit, the plan has settings with which it would.

    Raises
    ------
    InputError
        If the input cannot be opened, or settings or labels do not match it.
    ClusterError
        If the scheduler does not answer or has no workers.
    """
    source, place = open_matrix(config.input.uri, **config.opening), place_of(config, scheduler)
    config, why = whole_if_cheaper(resolved(config, source), source, place)
    check_config(config, source)
    plan = plan_input(config, source, place)
    notes = (*source.notes, note_on_names(source), why)
    return dataclasses.replace(plan, notes=tuple(note for note in notes if note))


def whole_if_cheaper(config: Config, source: Source, place: Place) -> tuple[Config, str]:
    """Return the configuration of the full run, and the reason, if ``quick`` would take longer.

    That is the case if the fits on samples together would read at least as many rows as the input
    has. The configuration is returned unchanged, with an empty reason, if the full run does not
    fit, or if settings of the fits were given.
    """
    number, fits = config.n_features_to_select, config.stability
    default = StabilityConfig()
    if not config.quick or fits != default or is_by_fits(number):
        return config, ""
    n_samples = source.counted_samples
    if n_samples is None:
        return config, ""
    n_read = 2 * default.n_pairs * min(QUICK_ROWS, n_samples // 2)
    unsampled = config.model_copy(update={"quick": False, "stability": None})
    is_counted = source.n_samples is not None or n_samples != source.estimated_samples
    if n_samples > n_read or not plan_input(unsampled, source, place).fits:
        return config, ""
    return unsampled, (
        f"quick would fit {2 * default.n_pairs} samples of {n_read:,} rows in total; the full run "
        f"reads only {'' if is_counted else 'about '}{n_samples:,} rows, so it is run instead. "
        "To force sampling, set stability.n_pairs."
    )


def check_config(config: Config, source: Source) -> None:
    """Raise InputError for settings or labels that do not match an opened input."""
    check_form(stages_of(config), config, source)
    with suppress(MemoryLimitError):  # the plan reports what does not fit
        check_shape(config, source.n_samples, source.n_features)
    kept = None if config.input.missing == "drop_rows" else source.n_samples
    check_labels(config, kept, source.dropped, source.row_dimensions)
    judged = None if config.evaluate is None else config.evaluate.labels
    for labels in (judged, labels_of_start(config)):
        if labels is not None:
            check_order(labels, source)


def plan_input(config: Config, source: Source, place: Place) -> Plan:
    """Return the plan for an opened input and a place, with remedies if it does not fit."""
    return _with_cures(config, header_of(source, config.input.uri, config.input.missing), place)


def plan_for(config: Config, plan: Plan, blocks: RowBlocks) -> Plan:
    """Return the plan for stored data: a new one if their number of rows had been estimated.

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
    """Log a plan, and raise MemoryLimitError if it does not fit.

    If the number of rows is only an estimate, the plan is refused here only if half of the rows
    would not fit either; otherwise the check is repeated once the rows are counted.

    Raises
    ------
    MemoryLimitError
        If the run does not fit; the message names the smallest changes that would make it fit.
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
    """Return the plan for a header and a place, without searching for remedies."""
    shape = header.shape(config.blocks.rows, sparse=True)
    place = dataclasses.replace(place, memory_limit=config.memory_limit)
    if shape is None:
        unknown = "The number of rows is unknown until the input is read, and so are the costs."
        return make_plan([], None, place, [unknown])
    unknowns = []
    if not header.exact:
        why = "estimated from the size of the input"
        if config.input.missing == "drop_rows":
            why += ", minus those with NaN"
        unknowns.append(f"About {shape.n_samples:,} rows, {why}; the run counts them.")
    held = {"held_bytes": header.held_bytes, "temporary_bytes": header.temporary_bytes}
    data = data_stage(config.input, config.preprocess, header.stored, **held)
    dense = header.shape(config.blocks.rows)
    return make_plan([data, *stages_of(config)], shape, place, unknowns, dense)


def cures(config: Config, header: Header, place: Place) -> tuple[str, ...]:
    """Return changes of settings with which the plan fits, each verified by making that plan."""
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
    """Yield settings that could help, each with its values, the smallest change first."""
    if config.spectral is not None and config.spectral.solver == "eigsh":
        yield "spectral.solver", _variants(config, "spectral", "solver", ["auto", "chebyshev"])
    if config.graph is not None and config.graph.algorithm != "auto":
        yield "graph.algorithm", _variants(config, "graph", "algorithm", ["auto"])
    shape = header.shape(config.blocks.rows)
    if shape is not None and config.stability is not None:
        yield "stability.sample_size", _samples(config, header, place, shape.n_samples // 2)
    if shape is not None:
        chunk = header.chunk_rows
        halves = [shape.rows // 2**part // chunk * chunk for part in range(1, 9)]
        # Blocks of a sparse store cannot be smaller.
        smaller = [rows for rows in halves if rows and header.csr is None]
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
    """Yield the largest sample size that fits, to two digits; nothing if not even two rows fit."""

    def at(size: int) -> tuple[str, Config]:
        return next(_variants(config, "stability", "sample_size", [size]))

    def is_beyond(size: int) -> bool:
        return not plan_of(at(size)[1], header, place).fits

    if not is_beyond(2):
        largest = 2 + bisect_left(range(3, max(3, most)), True, key=is_beyond)
        digits = 10 ** max(0, len(str(largest)) - 2)
        yield at(largest // digits * digits)


def _limits(config: Config, header: Header, place: Place) -> Iterator[tuple[str, Config]]:
    """Yield the smallest larger limit that fits, or else smaller limits in descending order."""

    def at(limit: int) -> tuple[str, Config]:
        return f"'{format_limit(limit)}'", config.model_copy(update={"memory_limit": limit})

    def fits(limit: int) -> bool:
        return plan_of(at(limit)[1], header, place).fits

    step, limit_now = LIMIT_STEP_BYTES, max(config.memory_limit, SMALLEST_LIMIT_BYTES)
    low, high = limit_now // step, -(-limit_now // step) + 1
    while not fits(high * step) and high * step < _LARGEST_LIMIT:
        low, high = high, 2 * high
    if fits(high * step):
        limits = range((low + 1) * step, high * step, step)
        yield at((low + 1 + bisect_left(limits, True, key=fits)) * step)
        return
    for limit in range((limit_now - 1) // step * step, SMALLEST_LIMIT_BYTES - 1, -step):
        yield at(limit)
