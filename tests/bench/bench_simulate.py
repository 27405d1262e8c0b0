"""Seconds, tasks and requests of a run too large to try, from rates that small runs have.

    python -m tests.bench.bench_simulate FOLDER --rates 500000 --check 250000 1000000 4000000
    python -m tests.bench.bench_simulate FOLDER --features 1000 --rates 200000 \
        --rows 100000000 --workers 100 --memory "16 GiB"

Runs are those of `bench_mcfs_large` in FOLDER, all of one width, on two workers of 1.5 GiB; those
that are missing are made. Each part of a run has a count of its work and, from the run of --rates,
the seconds that a worker takes for one; a run of 5,000 rows says what a stage takes that has
nothing to do. Rates of the eigensolver come from the graph of that run.
Tasks, requests and partitions of another size are those of `bigfs plan`. --check sets what is said
of real runs beside what they took. --rows says it of a size that is not run, with the data and the
run directory in a bucket: its seconds a request, bytes a second and requests a second are assumed,
not measured.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bigfs.core.cost import DESCRIPTOR_BYTES
from bigfs.core.units import GIB, format_bytes, parse_bytes
from bigfs.graph import AffinityMatrix
from bigfs.plan.plan import Place, Plan
from bigfs.plan.planning import Header, plan_of
from bigfs.runtime.connection import local_cluster
from bigfs.runtime.execute import run_tasks
from bigfs.selectors.registry import make_config
from bigfs.spectral.chebyshev import solve_chebyshev
from bigfs.spectral.choice import choose_solver
from bigfs.spectral.iteration import block_width
from bigfs.store.scratch import ArrayRef, Scratch, chunk_rows, read_attributes
from tests.bench import bench_mcfs_large

# The runs that rates come from.
_WORKERS, _MEMORY, _CLUSTERS, _NEIGHBORS = 2, "1.5 GiB", 20, 10
# Tasks without work, by which the scheduler is measured.
_EMPTY_TASKS = 4_000
# Entries of W for each neighbor, as the manifold's graph has them.
_ENTRIES = 1.5
# What a client is assumed to have.
_CLIENT_BYTES = 16 * GIB
STAGES = ("data", "components", "graph", "spectral", "result", "curves")


@dataclass(frozen=True)
class Work:
    """The counts that work grows with, of one run."""

    n: int
    d: int
    partitions: int
    copies: float  # rows searched over rows
    products: int  # of W with one vector
    panels: int  # of the eigensolver: as many of its tasks run at a time
    workers: int

    def units(self) -> dict[str, tuple[float, float]]:
        """Return for each part its count, and the workers that share it in the mean."""
        searched, shared = self.n * self.copies, float(self.workers)
        in_turn = self.partitions / math.ceil(self.partitions / self.workers)
        values = self.n * self.d
        return {
            "data": (values, 1.0),
            "components": (values, shared),
            "graph sample": (values, shared),
            "graph partition": (self.partitions * self.d, 1.0),
            "graph distribute": (searched * self.d, shared),
            "graph neighbors": (searched * math.log2(searched / self.partitions), in_turn),
            "graph merge": (searched, shared),
            "graph recall": (values, shared),
            "graph edges": (self.n, shared),
            "spectral": (self.n * self.products, min(shared, float(self.panels))),
            "result": (values, shared),
            "curves": (values, shared),
        }  # fmt: skip


def seconds_of(run: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the seconds of each part of a finished run, and what its graph says of itself."""
    stages = json.loads((run / "manifest.json").read_text())["stages"]
    graph = json.loads((run / "graph.zarr" / "zarr.json").read_text())["attributes"]["graph"]
    # Components are a stage only where rows are compared by them.
    seconds = dict.fromkeys(STAGES, 0.0) | {name: stages[name]["seconds"] for name in stages}
    del seconds["graph"]
    parts = graph.get("seconds", {})
    seconds |= {f"graph {name}": taken for name, taken in parts.items()}
    seconds["graph edges"] = stages["graph"]["seconds"] - sum(parts.values())
    return seconds, graph


class Rates:
    """Seconds of a worker for one unit of each part, and of a stage without work."""

    def __init__(self, folder: Path, rows: int, features: int) -> None:
        run = folder / f"run-{rows}"
        seconds, graph = seconds_of(run)
        empty, _ = seconds_of(folder / "warm")
        self.empty = {name: empty[name] for name in STAGES if name != "graph"}
        self.empty["graph"] = empty["graph edges"]
        stored = json.loads((run / "spectral.zarr" / "zarr.json").read_text())["attributes"]
        self.products, parts = int(stored["n_products"]), graph["n_partitions"]
        self.copies = graph["rows_searched"] / rows
        self.representation = str(graph["representation"])
        work = Work(rows, features, parts, self.copies, self.products, _panels(rows), _WORKERS)
        with local_cluster(_WORKERS, 1, parse_bytes(_MEMORY)) as cluster, cluster.get_client():
            self.task = _seconds_of_a_task()
            seconds["spectral"], solution = _spread(run, rows)
        self.products_of = solution["n_products"]
        counts = {**work.units(), **replace(work, products=self.products_of).units()}
        self.rates = {}
        for part, (count, workers) in counts.items():
            rest = seconds.get(part, 0.0) - self.empty.get(part.partition(" ")[0], 0.0) * (
                part in (*STAGES, "graph edges")
            )
            self.rates[part] = max(0.0, rest) * workers / count

    def predict(self, work: Work) -> dict[str, float]:
        """Return the seconds of each stage."""
        said = {name: self.empty[name] for name in STAGES}
        for part, (count, workers) in work.units().items():
            said[part.partition(" ")[0]] += self.rates[part] * count / workers
        return said


def _seconds_of_a_task() -> float:
    """Return the seconds that a task without work takes, beside others."""
    run_tasks(_nothing, range(100), label="empty")
    began = time.perf_counter()
    run_tasks(_nothing, range(_EMPTY_TASKS), label="empty")
    return (time.perf_counter() - began) / _EMPTY_TASKS


def _nothing(item: int) -> None:
    """Do nothing."""


def _panels(rows: int) -> int:
    """Return how many panels the eigensolver has in the runs of the rates."""
    entries = int(_ENTRIES * _NEIGHBORS * rows)
    storage = choose_solver(
        "chebyshev", rows, entries, _CLUSTERS, parse_bytes(_MEMORY), True
    ).storage
    return -(-4 * block_width(_CLUSTERS) // storage.row_bytes)


def _spread(run: Path, rows: int) -> tuple[float, dict[str, Any]]:
    """Return the seconds of the eigensolver as many tasks, and its solution."""
    path = run / "graph.zarr"
    about = read_attributes(path)
    partitions = ArrayRef.at(path / "partitions")
    W = AffinityMatrix.open(path / "affinity", about["affinity"], partitions)
    choice = choose_solver("chebyshev", rows, W.nnz, _CLUSTERS, parse_bytes(_MEMORY), True)
    scratch = Scratch()
    out = scratch.create("embedding", (rows, _CLUSTERS), "float64", chunk_rows(_CLUSTERS, 8))
    began = time.perf_counter()
    solution = solve_chebyshev(
        W, _CLUSTERS, out, scratch.child("work"), choice.storage, tol=1e-3, random_state=0
    )
    seconds = time.perf_counter() - began
    scratch.close()
    return seconds, solution


def plan(
    rows: int, features: int, memory: int, representation: str, run: str = "simulated"
) -> tuple[Plan, int]:
    """Return the plan of a run of so many rows, and the panels of its eigensolver."""
    config = make_config(
        run=run,
        input={"uri": "simulated.zarr"},
        n_features_to_select=50,
        mcfs={"n_clusters": _CLUSTERS},
        graph={"n_neighbors": _NEIGHBORS, "representation": representation},
        memory_limit=memory,
    )
    header = Header(rows, features, 4, chunk_rows(features, 4), stored=True, exact=True)
    entries = int(_ENTRIES * _NEIGHBORS * rows)
    storage = choose_solver("auto", rows, entries, _CLUSTERS, memory, True).storage
    panels = -(-4 * block_width(_CLUSTERS) // storage.row_bytes)
    return plan_of(config, header, Place(memory)), panels


def work_of(planned: Plan, panels: int, rates: Rates, workers: int) -> Work:
    """Return the counts of a planned run."""
    shape = planned.shape
    assert shape is not None
    steps = planned.by_stage["graph"].cost.steps  # type: ignore[union-attr]
    partitions = next(step.tasks for step in steps if "partition of at most" in step.what)
    copies = 1.0 if partitions == 1 else max(rates.copies, 1.5)
    products = rates.products_of
    return Work(shape.n_samples, shape.n_features, partitions, copies, products, panels, workers)


def check(folder: Path, rates: Rates, rows: list[int], features: int) -> list[dict[str, Any]]:
    """Print what is said of real runs beside what they took."""
    print("      rows  panels  " + "".join(f"{name:>16}" for name in (*STAGES, "in all")))
    results = []
    for n in rows:
        seconds, _ = seconds_of(folder / f"run-{n}")
        took = {name: sum(s for part, s in seconds.items() if part.split()[0] == name)
                for name in STAGES}  # fmt: skip
        planned, panels = plan(n, features, parse_bytes(_MEMORY), rates.representation)
        said = rates.predict(work_of(planned, panels, rates, _WORKERS))
        said["in all"], took["in all"] = sum(said.values()), sum(took.values())
        cells = "".join(f"{said[name]:>8.1f} /{took[name]:>6.1f}" for name in said)
        print(f"{n:>10,}  {panels:<6}{cells}   {said['in all'] / took['in all']:.2f}", flush=True)
        results.append({"rows": n, "said": said, "took": took})
    return results


def simulate(options: argparse.Namespace, rates: Rates) -> dict[str, Any]:
    """Print the seconds, tasks and requests of each stage, and what is nearest to its limit."""
    memory = parse_bytes(options.memory)
    planned, panels = plan(
        options.rows, options.features, memory, rates.representation, "s3://bucket/simulated"
    )
    work = work_of(planned, panels, rates, options.workers)
    compute = rates.predict(work)
    rate = parse_bytes(options.bandwidth) * options.workers
    print(
        f"{options.rows:,} x {options.features:,} on {options.workers} workers of "
        f"{format_bytes(memory)}: {work.partitions} partitions, eigenvectors in {panels} panels"
    )
    print(
        "stage     computing s     bytes s  requests s  scheduler s  in all s      tasks   requests"
    )
    total, stages = 0.0, {}
    for stage in planned.stages:
        assert stage.cost is not None
        tasks, requests = stage.cost.tasks, stage.cost.requests
        moved: float = stage.bytes_read + 2 * stage.cost.scratch_bytes
        parts = (
            compute[stage.name], moved / rate, requests * options.request_seconds / options.workers
        )  # fmt: skip
        scheduler = tasks * rates.task
        seconds = max(sum(parts), scheduler)
        total += seconds
        print(
            f"{stage.name:<9}" + "".join(f"{value:>12,.0f}" for value in parts)
            + f"{scheduler:>13,.0f}{seconds:>10,.0f}{tasks:>11,}{requests:>11,}"
        )  # fmt: skip
        stages[stage.name] = {"seconds": seconds, "tasks": tasks, "requests": requests}
    print(f"in all {total:,.0f} s, {total / 3600:.1f} hours")
    limits = _limits(planned, stages, rates, options)
    for what, share, words in limits:
        print(f"{share:>6.2f} of what there is: {what} ({words})")
    return {"seconds": total, "stages": stages, "first": limits[0][0]}


def _limits(
    planned: Plan, stages: dict[str, Any], rates: Rates, options: argparse.Namespace
) -> list[tuple[str, float, str]]:
    """Return what would break, nearest to its limit first."""
    limits = []
    for name, stage in stages.items():
        needed = stage["requests"] / stage["seconds"]
        words = f"{needed:,.0f} a second of {options.request_rate:,}"
        limits.append((f"requests of {name}", needed / options.request_rate, words))
        used = stage["tasks"] * rates.task / stage["seconds"]
        words = f"{stage['tasks'] / stage['seconds']:,.1f} tasks a second of {1 / rates.task:,.0f}"
        limits.append((f"the scheduler in {name}", used, words))
    graph = max(stage.cost.graph_bytes for stage in planned.stages if stage.cost)
    words = f"{graph // DESCRIPTOR_BYTES:,} tasks at a time, {format_bytes(graph)}"
    limits.append(("the client's memory", graph / _CLIENT_BYTES, words))
    peak, memory = planned.predicted_peak_bytes, parse_bytes(options.memory)
    limits.append(("a worker's memory", peak / memory, f"{format_bytes(peak)} at the most"))
    return sorted(limits, key=lambda limit: -limit[1])[:6]


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure rates, check them or say what a larger run would take."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rates", type=int, default=500_000, help="rows of the run of the rates")
    parser.add_argument("--check", type=int, nargs="*", default=[], help="rows of real runs")
    parser.add_argument("--rows", type=int, help="rows of a run that is not made")
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--memory", default="16 GiB")
    parser.add_argument("--bandwidth", default="100 MB", help="of a worker, a second")
    parser.add_argument("--request-seconds", type=float, default=0.03)
    parser.add_argument("--request-rate", type=int, default=5_500, help="of the bucket, a second")
    options = parser.parse_args(arguments)
    missing = [
        rows for rows in (options.rates, *options.check)
        if not (options.folder / f"run-{rows}.json").exists()
    ]  # fmt: skip
    if missing:
        sizes = ["--rows", *map(str, missing), "--features", str(options.features)]
        bench_mcfs_large.main([str(options.folder), *sizes])
    rates = Rates(options.folder, options.rates, options.features)
    checked = check(options.folder, rates, options.check, options.features) if options.check else []
    said = simulate(options, rates) if options.rows else None
    return {"checked": checked, "simulated": said}


if __name__ == "__main__":
    main()
