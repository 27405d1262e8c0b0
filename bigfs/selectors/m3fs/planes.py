"""M3FS from all starts: rounds in lock-step with fused passes, or a task for each start."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path

import numpy as np

from bigfs.blocks.rowblocks import BlockReader, RowBlocks
from bigfs.core.cost import Shape
from bigfs.core.units import MIB
from bigfs.runtime.execute import at_most_at_once, run_tasks
from bigfs.runtime.progress import say_where, silenced, track
from bigfs.selectors.m3fs.passes import (
    MemoryRows,
    PlanePasses,
    Request,
    advance,
    finish_block,
    read_arrays,
    round_bytes,
    write_arrays,
)
from bigfs.selectors.m3fs.rowprograms import end_by_rows, is_long, may_use_rows
from bigfs.selectors.m3fs.state import Settings, Trajectory
from bigfs.selectors.m3fs.weighted import TOLERANCE, WeightedPlanes, is_weighted, weighted_bytes
from bigfs.solvers.cone import ConeProgram, programs_at_once, solve_cone
from bigfs.solvers.msupport import ConeSolution
from bigfs.store.location import Location, as_location, replaced_file
from bigfs.store.scratch import ArrayRef

_CHECKPOINT_SECONDS = 30.0
_SMALL_ARRAYS = ("V", "sigma", "planes", "bounds", "multipliers", "idle", "slopes", "best", "sizes")


def program_bytes(n_rows_of_v: int, n_columns: int, smooth: bool) -> int:
    """Return the bytes of a cone program: dozens of planes, and matrices of smoothness.

    Of these there are six where all features are active: as given, with a feature of zeros,
    doubled, and three of a step, or two with one column. Where few are active, there is little but
    the first.
    """
    planes = 8 * 64 * n_rows_of_v * n_columns
    matrices = 5 if n_columns == 1 else 6
    return 4 * planes + (8 * matrices * n_rows_of_v**2 if smooth else 0) + 16 * MIB


def resident_bytes(shape: Shape, n_rows_of_v: int, n_columns: int, smooth: bool) -> int:
    """Return the bytes of a start on resident rows: a round of all of them, in float64."""
    widened = 8 * shape.n_samples * shape.n_features if shape.itemsize < 8 else 0
    program = program_bytes(n_rows_of_v, n_columns, smooth)
    program += weighted_bytes(shape.n_samples, n_rows_of_v, n_columns)
    return round_bytes(shape, n_columns) + widened + program


def first_states(n_starts: int, settings: Settings) -> list[Trajectory]:
    """Return every start before its first pass."""
    V = np.zeros((settings.n_rows_of_v, settings.n_columns))
    share = settings.n_selected / settings.n_features
    sigma = np.full(settings.n_features, share)
    return [Trajectory(i, V.copy(), sigma.copy()) for i in range(n_starts)]


def run_resident(
    blocks: RowBlocks,
    labels: ArrayRef,
    clusters: ArrayRef,
    settings: Settings,
    mean: np.ndarray,
    smooth: np.ndarray | None,
    folder: Location,
) -> tuple[list[Trajectory], list[float]]:
    """Run data of one block, each start in a task of its own; see `run_streamed`."""
    shared = _share(folder, mean, smooth)
    n_starts = labels.shape[1]
    with _in_turn(settings):
        ended = run_tasks(
            _run_start,
            list(range(n_starts)),
            blocks.start_pass(n_starts),
            blocks.n_samples,
            labels,
            settings,
            shared,
            label="m3fs",
            unit="starts",
            notes=True,
        )
    for path in shared:
        as_location(path).unlink()
    clusters.write(0, np.column_stack([rows for _, rows, _ in ended]))
    return [state for state, _, _ in ended], [hinge for _, _, hinge in ended]


def _in_turn(settings: Settings) -> AbstractContextManager[None]:
    """Let the threads of a process solve their programs in turn, where that takes less time."""
    count = programs_at_once(settings.n_rows_of_v * settings.n_columns)
    return nullcontext() if count is None else at_most_at_once(count)


def _share(folder: Location, mean: np.ndarray, smooth: np.ndarray | None) -> tuple[str, ...]:
    """Store what all tasks read, each array in a file; return the paths."""
    paths = []
    for values in (mean, smooth):
        if values is not None:
            path = folder / f"shared-{uuid.uuid4().hex[:8]}.npy"
            with path.open("wb") as file:
                np.save(file, values)
            paths.append(str(path))
    return tuple(paths)


def _shared(paths: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the means, and the matrix of smoothness, mapped: a program reads few of its rows."""
    stored = []
    for path in paths:
        place = as_location(path)
        if isinstance(place, Path):
            stored.append(np.load(place, mmap_mode="r", allow_pickle=False))
        else:
            with place.open("rb") as file:
                stored.append(np.load(file, allow_pickle=False))
    return stored[0], stored[1] if len(stored) > 1 else None


def _run_start(
    number: int,
    reader: BlockReader,
    n: int,
    labels: ArrayRef,
    settings: Settings,
    shared: tuple[str, ...],
) -> tuple[Trajectory, np.ndarray, float]:
    """Run one start to its end; return it with its clusters and the sum of its losses."""
    mean, smooth = _shared(shared)
    X = np.asarray(reader.read(0, n), dtype=np.float64)
    state = first_states(number + 1, settings)[number]
    rows = MemoryRows()
    of_start = labels.load()[:, number]
    rows.put(number, "clusters", 0, of_start)
    small = is_weighted(n, settings, smooth)
    weighted = WeightedPlanes(X, of_start, settings, mean) if small else None
    by_rows = may_use_rows(n, settings)
    while not state.done:
        if by_rows and is_long(state):
            z = rows.get(number, "clusters", state.version)
            by_rows = end_by_rows(state, X, z, settings, mean, smooth)
            if by_rows:
                break
        if weighted is not None:
            if state.ids:
                state.solved(weighted.solve(state))
            state.absorb([weighted.step(state)], settings, n)
            weighted.keep(state)
        else:
            if state.ids and not state.refresh:
                state.solved(_solved(state.program(settings, mean, smooth), state.slopes))
            requested = Request.of(state, settings)
            state.absorb([advance(X, V, request, rows) for request, V in requested], settings, n)
        if state.history:
            where = f"round {len(state.history)}, objective {state.objective:.6g}"
            say_where(f"start {number}: {where}")
    if weighted is not None:
        state.V = weighted.rule()
    clusters, hinges = finish_block(X, [state.V])
    state.planes = np.empty(0)
    return state, clusters[:, 0], float(hinges[0])


def _solved(program: ConeProgram, start: np.ndarray) -> ConeSolution:
    return solve_cone(program, start=start if len(start) else None, tol=TOLERANCE)


def run_streamed(
    passes: PlanePasses,
    clusters: ArrayRef,
    settings: Settings,
    mean: np.ndarray,
    smooth: np.ndarray | None,
    checkpoint: Location | None,
) -> tuple[list[Trajectory], list[float]]:
    """Run all starts in lock-step: their cone programs side by side, then one pass for all.

    Parameters
    ----------
    passes : PlanePasses
    clusters : ArrayRef of shape (n_samples, n_starts), uint8
        Where the clusters go.
    settings : Settings
    mean : ndarray of shape (D,)
    smooth : ndarray of shape (D, D) or None
    checkpoint : Path, ObjectPath or None
        File that outlives this process: written every half minute, and continued from.

    Returns
    -------
    states : list of Trajectory
    hinges : list of float
        Sum of ``max(0, 1 - margin)`` over all rows at the end, for the certificate.
    """
    states = _load(checkpoint) or first_states(passes.labels.shape[1], settings)
    n = passes.blocks.n_samples
    shared = _share(passes.folder, mean, smooth)
    saved = time.monotonic()
    with track("m3fs", settings.max_iter, "rounds") as progress:
        progress.resume(max(state.n_rounds for state in states))
        while active := [state for state in states if not state.done]:
            with silenced():
                _solve_all(
                    [state for state in active if state.ids and not state.refresh],
                    passes.folder,
                    settings,
                    shared,
                )
                requested = [Request.of(state, settings) for state in active]
                requests, Vs = zip(*(pair for pairs in requested for pair in pairs), strict=True)
                totals = iter(passes.step(requests, Vs))
            for state, pairs in zip(active, requested, strict=True):
                state.absorb([next(totals) for _ in pairs], settings, n)
            best = min(state.objective for state in states)
            progress.advance(1, f"objective {best:.6g}" if np.isfinite(best) else None)
            if checkpoint is not None and time.monotonic() - saved > _CHECKPOINT_SECONDS:
                _save(checkpoint, states)
                saved = time.monotonic()
        hinges = passes.finish([state.V for state in states], clusters)
    return states, hinges


def _solve_all(
    states: list[Trajectory], folder: Location, settings: Settings, shared: tuple[str, ...]
) -> None:
    """Solve the cone programs of all starts, one task each."""
    items = []
    for state in states:
        path = folder / f"program-{state.number}-{uuid.uuid4().hex[:8]}.npz"
        write_arrays(path, planes=state.planes, bounds=state.bounds, slopes=state.slopes)
        items.append(str(path))
    with _in_turn(settings):
        solutions = run_tasks(_solve_task, items, settings, shared, label="m3fs solve")
    for state, item, solution in zip(states, items, solutions, strict=True):
        state.solved(solution)
        as_location(item).unlink()


def _solve_task(path: str, settings: Settings, shared: tuple[str, ...]) -> ConeSolution:
    (mean, smooth), stored = _shared(shared), read_arrays(path)
    program = ConeProgram(
        stored["planes"],
        stored["bounds"],
        mean,
        settings.balance,
        smooth,
        settings.C,
        settings.n_selected,
        settings.n_features,
    )
    return _solved(program, stored["slopes"])


def _save(path: Location, states: list[Trajectory]) -> None:
    """Write the checkpoint beside its name and rename it."""
    arrays, rest = {}, []
    for i, state in enumerate(states):
        values = asdict(state)
        for name in _SMALL_ARRAYS:
            arrays[f"{name}{i}"] = values.pop(name)
        rest.append(values)
    arrays["rest"] = np.frombuffer(json.dumps(rest).encode(), dtype=np.uint8)
    with replaced_file(path) as file:
        np.savez(file, **arrays)


def _load(path: Location | None) -> list[Trajectory] | None:
    """Return the stored states, or None where there are none."""
    if path is None or not path.exists():
        return None
    stored = read_arrays(str(path))
    states = []
    for i, values in enumerate(json.loads(stored["rest"].tobytes())):
        values["history"] = [tuple(entry) for entry in values["history"]]
        values |= {name: stored[f"{name}{i}"] for name in _SMALL_ARRAYS}
        states.append(Trajectory(**values))
    return states
