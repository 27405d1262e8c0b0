"""The plan: figures, verdicts against limits, refusals before anything is written, cures."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from scipy.sparse import csr_array, save_npz

from bigfs import MaxVariance
from bigfs.core.cost import Shape, StageCost, Step
from bigfs.core.errors import InputError, MemoryLimitError
from bigfs.core.memory import BUFFER_BYTES, baseline_bytes, task_budget
from bigfs.core.units import GIB, MIB, format_seconds, parse_bytes
from bigfs.evaluate.stage import stages_of
from bigfs.plan.plan import Place, make_plan
from bigfs.plan.planning import Header, cures, plan_of, plan_pipeline
from bigfs.selectors.registry import METHODS, make_config
from bigfs.stages.stage import Stage

SHAPE = Shape(1_000_000, 100, 4, 80_000, 40_000)


def _config(**settings: Any) -> Any:
    start = {"run": "runs/none", "input": {"uri": "none.npy"}, "n_features_to_select": 10}
    return make_config(**(start | settings))


def _header(n_samples: int, n_features: int, itemsize: int = 4) -> Header:
    chunk = max(1, 16 * 10**6 // (n_features * itemsize))
    return Header(n_samples, n_features, itemsize, chunk, stored=True, exact=True)


@dataclass(frozen=True)
class Priced:
    """A strategy of which only the cost matters."""

    priced: StageCost

    def cost(self) -> StageCost:
        return self.priced


def _stage(name: str, cost: StageCost) -> Stage:
    return Stage(name, 1, {}, lambda shape: Priced(cost))  # type: ignore[arg-type]


def _plan_of(needed: int, place: Place, *, tasks: int = 10, **cost: Any) -> Any:
    stage = StageCost((Step("an index", needed, tasks),), **cost)
    return make_plan([_stage("graph", stage)], SHAPE, place)


def test_a_peak_is_the_baseline_and_the_tasks_that_run_at_once():
    single = _plan_of(500 * MIB, Place(4 * GIB))
    assert single.stages[0].predicted_peak_bytes == baseline_bytes() + 500 * MIB + BUFFER_BYTES
    two = _plan_of(500 * MIB, Place(4 * GIB, threads=2))
    assert two.predicted_peak_bytes - single.predicted_peak_bytes == 500 * MIB
    alone = _plan_of(500 * MIB, Place(4 * GIB, threads=2), tasks=1)
    assert alone.predicted_peak_bytes == single.predicted_peak_bytes
    compiled = _plan_of(500 * MIB, Place(4 * GIB), compiles=True)
    assert compiled.predicted_peak_bytes - single.predicted_peak_bytes == 390 * MIB


def test_processes_stay_larger_after_a_stage_that_compiles():
    step = Step("x", 100 * MIB)
    stages = [
        _stage("graph", StageCost((step,), compiles=True)),
        _stage("spectral", StageCost((step,))),
    ]
    graph, spectral = make_plan(stages, SHAPE, Place(4 * GIB)).stages
    assert graph.predicted_peak_bytes == spectral.predicted_peak_bytes
    assert graph.predicted_peak_bytes == baseline_bytes(compiled=True) + 100 * MIB + BUFFER_BYTES


def test_what_is_kept_between_passes_takes_only_what_is_free():
    plan = _plan_of(500 * MIB, Place(2 * GIB), keeps_bytes=100 * GIB)
    assert plan.fits
    assert plan.predicted_peak_bytes == baseline_bytes() + task_budget(2 * GIB)


def test_nothing_is_kept_yet_beside_the_steps_before():
    def peak(first: int, kept: int) -> int:
        steps = (Step("a fold", first, before_kept=True), Step("a block", 100 * MIB))
        stage = _stage("result", StageCost(steps, keeps_bytes=kept))
        return make_plan([stage], SHAPE, Place(4 * GIB)).predicted_peak_bytes

    assert peak(500 * MIB, 300 * MIB) == baseline_bytes() + 500 * MIB + BUFFER_BYTES
    assert peak(500 * MIB, 700 * MIB) == baseline_bytes() + (100 + 700) * MIB + BUFFER_BYTES


def test_a_process_runs_fewer_tasks_at_once_where_they_would_not_fit():
    place = Place(4 * GIB, threads=8)
    plan = _plan_of(700 * MIB, place)
    assert plan.fits
    assert plan.stages[0].tasks_at_once == task_budget(4 * GIB) // (700 * MIB)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (Place(2 * GIB), "Stage 'graph' needs "),
        (
            Place(4 * GIB, limits={"tcp://a:1": GIB}),
            "Worker tcp://a:1 has 1 GiB, but stage 'graph'",
        ),
        (
            Place(4 * GIB, limits={"this machine": 2 * GIB}, shared=2),
            "This machine has 2 GiB, but stage 'graph' needs 1.37 GiB in each of 2 workers",
        ),
    ],
)
def test_refusals_name_who_is_too_small_and_the_figure(place, message):
    needed = 1000 * MIB
    with pytest.raises(MemoryLimitError) as caught:
        _plan_of(needed, place).check()
    assert str(caught.value).startswith(message)
    assert "Nothing has run." in str(caught.value)


def test_what_the_client_does_itself_is_no_part_of_a_worker():
    steps = (Step("sums", 10 * MIB), Step("matrices", 900 * MIB, by_client=True))
    stages = [_stage("result", StageCost(steps))]
    ours = make_plan(stages, SHAPE, Place(4 * GIB, limits={"this process": 64 * GIB}))
    workers = make_plan(stages, SHAPE, Place(4 * GIB, limits={"tcp://a:1": 4 * GIB}))
    assert ours.predicted_peak_bytes - workers.predicted_peak_bytes == 890 * MIB
    assert workers.fits
    message = make_plan(stages, SHAPE, Place(GIB)).refusals[0]
    assert message.startswith("Stage 'result' needs 900 MiB for matrices; a memory_limit of 1 GiB")


def test_a_worker_of_the_limit_is_never_refused_for_it():
    assert _plan_of(600 * MIB, Place(2 * GIB, limits={"a": 2 * GIB})).fits


def test_scratch_that_is_not_free_refuses_the_run():
    place = Place(4 * GIB, free_scratch_bytes=GIB)
    assert _plan_of(MIB, place, scratch_bytes=GIB).fits
    with pytest.raises(MemoryLimitError, match="needs about 2 GiB, but its file system has 1 GiB"):
        _plan_of(MIB, place, scratch_bytes=2 * GIB).check()


def test_scratch_of_a_stage_comes_on_top_of_finished_ones():
    stages = [
        _stage("graph", StageCost((Step("x", 1),), scratch_bytes=5 * GIB, stored_bytes=GIB)),
        _stage("result", StageCost((Step("x", 1),), scratch_bytes=3 * GIB, stored_bytes=GIB)),
    ]
    assert make_plan(stages, SHAPE, Place(4 * GIB)).scratch_bytes == 5 * GIB
    assert make_plan([*stages, *stages[:1]], SHAPE, Place(4 * GIB)).scratch_bytes == 7 * GIB


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("auto", [False, True])
def test_every_stage_of_every_method_states_its_cost(method, auto):
    field = METHODS[method].parameters.model_fields.get("n_clusters")
    chooses = field is not None and str in get_args(field.annotation)
    settings = {method: {"n_clusters": "auto"}} if auto and chooses else {}
    config = _config(method=method, memory_limit="4 GiB", **settings)
    plan = plan_of(config, _header(200_000, 60), Place(4 * GIB))
    assert plan.fits, plan.text()
    assert [stage.name for stage in plan.stages] == [stage.name for stage in stages_of(config)]
    for stage in plan.stages:
        assert baseline_bytes() < stage.predicted_peak_bytes < 4 * GIB
        assert stage.cost.tasks >= 1
        assert stage.cost.graph_bytes < 10 * 10**6
    result = plan.by_stage["result"]
    assert result.bytes_read == result.cost.passes * 200_000 * 60 * 4


# What refused itself only when its stage started.
TOO_WIDE = {
    "m3fs": ({"m3fs": {"n_clusters": 2}}, 20_000, 12_000),
    "gfs_kmeans": ({"gfs_kmeans": {"sample_size": 20_000}}, 20_000, 6_000),
    "q_alpha": ({}, 20_000, 12_000),
    "lfs": ({"lfs": {"n_clusters": 2, "sample_size": 20_000}}, 20_000, 3_000),
}


@pytest.mark.parametrize("method", sorted(TOO_WIDE))
def test_what_cannot_fit_is_refused_with_a_limit_that_would_do(method):
    settings, n_samples, n_features = TOO_WIDE[method]
    config = _config(method=method, memory_limit="1 GiB", **settings)
    header, place = _header(n_samples, n_features), Place(GIB)
    plan = plan_of(config, header, place)
    assert not plan.fits
    actual = cures(config, header, place)
    [limit] = [cure for cure in actual if cure.startswith("memory_limit to ")]
    wide = config.model_copy(update={"memory_limit": parse_bytes(limit.split("'")[1])})
    assert plan_of(wide, header, place).fits
    less = wide.model_copy(update={"memory_limit": wide.memory_limit - 256 * MIB})
    assert not plan_of(less, header, place).fits, "a smaller one would do as well"


def test_a_refusal_does_not_contradict_itself():
    """381 MiB of data with 1 GiB: what is too large is larger than what it may be."""
    config, header, place = _config(memory_limit="1 GiB"), _header(1_000_000, 100), Place(GIB)
    plan = plan_of(config, header, place)
    assert plan.refusals and cures(config, header, place) == ("memory_limit to '1.25 GiB'",)
    pattern = r"(\d+ MiB) exceeds (\d+)% of the memory_limit of 1 GiB: Dask pauses"
    for refusal in plan.refusals:
        size, share = re.search(pattern, refusal).groups()
        assert parse_bytes(size) > int(share) / 100 * GIB


def test_a_solver_that_does_not_fit_has_one_that_does_as_its_cure():
    config = _config(spectral={"solver": "eigsh"}, memory_limit="2 GiB")
    header, place = _header(1_000_000, 50), Place(2 * GIB)
    assert "solver 'eigsh'" in " ".join(plan_of(config, header, place).refusals)
    assert cures(config, header, place)[0] == "spectral.solver to 'auto'"


def test_large_blocks_have_smaller_ones_as_their_cure():
    config = _config(method="max_variance", blocks={"rows": 400_000}, memory_limit="1 GiB")
    header, place = _header(1_000_000, 1000), Place(GIB)
    assert not plan_of(config, header, place).fits
    assert cures(config, header, place)[0].startswith("blocks.rows to ")


def test_workers_that_are_smaller_than_the_limit_have_a_smaller_limit_as_their_cure():
    config = _config(memory_limit="8 GiB")
    header, place = _header(4_000_000, 300), Place(8 * GIB, limits={"tcp://a:1": 2 * GIB})
    plan = plan_of(config, header, place)
    assert "Worker tcp://a:1 has 2 GiB" in plan.refusals[0]
    [cure] = cures(config, header, place)
    limit = parse_bytes(cure.split("'")[1])
    assert limit < 8 * GIB
    assert plan_of(config.model_copy(update={"memory_limit": limit}), header, place).fits


def test_a_machine_too_small_for_its_workers_is_told(tmp_path: Path):
    config = _config(memory_limit="4 GiB", cluster={"n_workers": 400}, graph={"n_neighbors": 15})
    header = _header(3_000_000, 200)
    place = Place(4 * GIB, limits={"this machine": 16 * GIB}, shared=400)
    assert "in each of 400 workers" in plan_of(config, header, place).refusals[0]


def _npy(path: Path, rows: int, columns: int) -> Path:
    """Write a sparse file of zeros: only its header is ever read here."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, columns))
    del array
    return path


def test_the_plan_reads_the_header_only(tmp_path: Path):
    data = _npy(tmp_path / "X.npy", 3_000_000, 200)
    config = _config(run=str(tmp_path / "run"), input={"uri": str(data)}, memory_limit="2 GiB")
    plan = plan_pipeline(config)
    assert plan.shape.n_samples == 3_000_000
    names = ["data", "graph", "spectral", "result", "curves"]
    assert [stage.name for stage in plan.stages] == names
    assert plan.by_stage["graph"].cost.passes == 3
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("categories", ["one_hot", "numbers", "drop"])
def test_a_plan_says_which_columns_it_reads(categories: str, tmp_path: Path):
    lines = ["a,b,city", *(f"{i},{i % 7},{'Ulm' if i % 2 else 'Bonn'}" for i in range(40))]
    (tmp_path / "X.csv").write_text("\n".join(lines) + "\n")
    source = {"uri": str(tmp_path / "X.csv"), "categories": categories}
    plan = plan_pipeline(_config(input=source, method="max_variance", n_features_to_select=2))
    assert plan.shape.n_features == {"one_hot": 4, "numbers": 3, "drop": 2}[categories]
    sentence = "all rows of 'city' are read first to find their values"
    assert (sentence in plan.text()) == (categories != "drop")
    assert ("left out 'city'" in plan.text()) == (categories == "drop")
    assert plan.as_dict()["notes"] == list(plan.notes)


def test_rows_that_are_kept_of_sparse_data_are_planned_as_sparse(tmp_path: Path):
    n, d, each = 20_000, 30_000, 5
    rng = np.random.default_rng(0)
    entries = np.ones(n * each, np.float32), rng.integers(0, d, n * each), each * np.arange(n + 1)
    X = csr_array(entries, shape=(n, d))
    X.sum_duplicates()
    save_npz(tmp_path / "X.npz", X)
    plain = _config(input={"uri": str(tmp_path / "X.npz")}, method="max_variance")
    dense = n * d * 4
    for kept in ({"rows": {"every": 2}}, {"columns": ["1*"]}):
        source = {"uri": str(tmp_path / "X.npz"), **kept}
        plan = plan_pipeline(_config(input=source, method="max_variance"))
        assert plan.scratch_bytes <= 2 * plan_pipeline(plain).scratch_bytes < dense / 20
    # How the copy will be cut is not known yet.
    for rows in (1000, 65_536):
        blocks = {"blocks": {"rows": rows}, "method": "max_variance"}
        assert plan_pipeline(_config(input=source, **blocks)).shape.block_rows == rows
    with pytest.raises(InputError, match="blocks.rows must be a multiple of the "):
        plan_pipeline(_config(input={"uri": str(tmp_path / "X.npz")}, blocks={"rows": 1000}))


def test_values_in_names_of_folders_are_known_to_a_plan_without_rows(tmp_path: Path):
    for city in ("Ulm", "Bonn"):
        (tmp_path / "t" / f"city={city}").mkdir(parents=True)
        (tmp_path / "t" / f"city={city}" / "0.csv").write_text("a,b\n1,2\n3,4\n")
    source = {"uri": str(tmp_path / "t"), "categories": "one_hot"}
    plan = plan_pipeline(_config(input=source, method="max_variance", n_features_to_select=2))
    assert "2 columns of 0 and 1" in plan.text() and "are read first" not in plan.text()


def test_rows_of_a_text_are_estimated_and_that_is_said(tmp_path: Path):
    lines = ["a,b,c", *("0.25,0.5,1.75" for _ in range(5000))]
    (tmp_path / "X.csv").write_text("\n".join(lines) + "\n")
    config = _config(input={"uri": str(tmp_path / "X.csv")}, method="max_variance",
                     n_features_to_select=2)  # fmt: skip
    plan = plan_pipeline(config)
    assert abs(plan.shape.n_samples - 5000) <= 5
    assert "About 5,00" in plan.text()
    import gzip

    (tmp_path / "X.csv.gz").write_bytes(gzip.compress((tmp_path / "X.csv").read_bytes()))
    config = _config(input={"uri": str(tmp_path / "X.csv.gz")}, method="max_variance",
                     n_features_to_select=2)  # fmt: skip
    plan = plan_pipeline(config)
    assert "unknown until the input is read" in plan.text()
    assert "Fits" not in plan.text()
    assert plan.as_dict()["fits"] is None


def _yaml(tmp_path: Path, **settings: Any) -> Path:
    import yaml

    data = _npy(tmp_path / "X.npy", 60_000, 2500)
    start = {"run": str(tmp_path / "run"), "input": {"uri": str(data)}, "method": "lfs",
             "n_features_to_select": 5, "memory_limit": "1 GiB"}  # fmt: skip
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(start | settings))
    return path


def test_the_command_prints_a_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from bigfs.cli import main

    path = _yaml(tmp_path, method="max_variance")
    with pytest.raises(SystemExit) as end:
        main(["plan", str(path)])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "60,000 samples x 2,500 features, 572 MiB" in text
    assert "Fits a memory_limit of 1 GiB" in text
    with pytest.raises(SystemExit) as end:
        main(["plan", str(path), "--format", "json", "--set", "method=mcfs"])
    assert end.value.code == 0
    captured = json.loads(capsys.readouterr().out)
    assert captured["fits"]
    assert captured["stages"]["graph"]["passes"] >= 1


@pytest.mark.parametrize("command", ["plan", "run"])
def test_what_does_not_fit_ends_with_3_and_leaves_nothing(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from bigfs.cli import main

    data = _npy(tmp_path / "narrower.npy", 60_000, 800)
    own = {"cluster": {"n_workers": 2}, "lfs": {"sample_size": 60_000}}
    path = _yaml(tmp_path, input={"uri": str(data)}, **own)
    with pytest.raises(SystemExit) as end:
        main([command, str(path)])
    assert end.value.code == 3
    output = "".join(capsys.readouterr())
    assert "memory_limit to '" in output
    assert not (tmp_path / "run").exists()


def test_a_comparison_is_refused_before_its_first_method(tmp_path: Path):
    import bigfs

    data = _npy(tmp_path / "X.npy", 3000, 2500)
    np.save(tmp_path / "y.npy", np.arange(3000) % 3)
    settings = {
        "run": str(tmp_path / "run"), "input": {"uri": str(data)}, "memory_limit": "768 MiB",
        "methods": ["max_variance", {"method": "lfs", "lfs": {"sample_size": 3_000}}],
        "n_features_to_select": [5],
        "evaluate": {"labels": str(tmp_path / "y.npy")},
    }  # fmt: skip
    with pytest.raises(MemoryLimitError, match="memory_limit to '"):
        bigfs.compare(settings)
    assert not (tmp_path / "run").exists()


def test_a_run_keeps_predicted_and_measured_peaks(tmp_path: Path):
    import bigfs

    settings = {"run": str(tmp_path / "run"), "input": {"uri": "sklearn:digits"},
                "n_features_to_select": 5}  # fmt: skip
    result = bigfs.run(settings)
    for name in ("graph", "spectral", "result"):
        stage = result.stages[name]
        assert stage["baseline_bytes"] < stage["predicted_peak_bytes"]
        assert stage["baseline_bytes"] <= stage["measured_peak_bytes"] + 8 * MIB
    assert "predicted" in result.summary()


COUNTED = {
    "mcfs": ({"n_clusters": 3}, True),
    "q_alpha": ({"n_clusters": 2}, True),
    "ndfs": ({"n_clusters": 3, "max_iter": 4}, False),
    "fsgmm": ({"n_clusters": 3, "max_iter": 4}, False),
}


@pytest.mark.parametrize("method", sorted(COUNTED))
def test_passes_are_those_that_are_made(method: str, tmp_path: Path):
    import bigfs

    settings, exact = COUNTED[method]
    config = make_config(
        run=str(tmp_path / "run"),
        input={"uri": "sklearn:iris"},
        method=method,
        n_features_to_select=2,
        **{method: settings},
    )
    plan = plan_pipeline(config)
    for name, made in bigfs.run(config).stages.items():
        planned = plan.by_stage[name].cost
        assert made["passes"] <= planned.passes
        if exact:
            assert not planned.at_most
            assert made["passes"] == planned.passes


def test_an_evaluation_of_sparse_data_is_planned_with_the_passes_of_dense_data(tmp_path: Path):
    import bigfs

    X = np.random.default_rng(0).poisson(0.3, (400, 30)).astype(np.float32)
    save_npz(tmp_path / "X.npz", csr_array(X))
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", np.arange(400) % 3)
    planned = []
    for name in ("X.npy", "X.npz"):
        config = make_config(
            run=str(tmp_path / f"run-{name}"),
            input={"uri": str(tmp_path / name)},
            method="max_variance",
            n_features_to_select=5,
            evaluate={"labels": str(tmp_path / "y.npy")},
        )
        planned.append(plan_pipeline(config).by_stage["evaluation"].cost.passes)
        assert 0 < bigfs.run(config).stages["evaluation"]["passes"] <= planned[-1]
    assert planned[0] == planned[1]


@pytest.mark.cluster
def test_workers_too_small_for_the_plan_are_named(tmp_path: Path, cluster: str):
    data = _npy(tmp_path / "X.npy", 1_000_000, 500)
    config = _config(run=str(tmp_path / "run"), input={"uri": str(data)}, memory_limit="6 GiB")
    plan = plan_pipeline(config, scheduler=cluster)
    assert not plan.fits
    assert "Worker tcp://127.0.0.1:" in plan.refusals[0]
    assert "has 1.5 GiB" in plan.refusals[0]
    assert plan.cures


@pytest.mark.parametrize(
    ("method", "n", "d"),
    [("mcfs", 150, 3000), ("mcfs", 150, 11_000), ("column_subset", 3600, 3000),
     ("pivoted_qr", 3600, 3000)],
)  # fmt: skip
def test_what_fits_a_limit_fits_larger_ones(tmp_path: Path, method: str, n: int, d: int):
    data = _npy(tmp_path / "X.npy", n, d)
    limits = range(768, 1120, 32) if d == 3000 else (1024, 2048, 4096, 4608, 6144)
    fits = []
    for limit in limits:
        about = {"run": str(tmp_path / "run"), "input": {"uri": str(data)}, "method": method}
        fits.append(plan_pipeline(_config(**about, memory_limit=f"{limit} MiB")).fits)
    assert fits == sorted(fits) and fits[-1]


@pytest.mark.cluster
def test_workers_that_no_stage_fits_are_refused_as_by_a_run(tmp_path: Path):
    from distributed import Client, LocalCluster

    data = _npy(tmp_path / "X.npy", 100, 5)
    config = _config(run=str(tmp_path / "run"), input={"uri": str(data)}, memory_limit="768 MiB")
    options = {"processes": False, "dashboard_address": "127.0.0.1:0", "memory_limit": "600 MiB"}
    with LocalCluster(n_workers=1, **options) as small, Client(small):
        with pytest.raises(MemoryLimitError, match="no stage fits into less than 768 MiB"):
            plan_pipeline(config)
        with pytest.raises(MemoryLimitError, match="no stage fits into less than 768 MiB"):
            MaxVariance(2).fit(np.load(data))


def test_a_text_too_wide_is_refused_before_it_is_read(tmp_path: Path):
    import bigfs

    line = ",".join(["0.5"] * 3000)
    (tmp_path / "X.csv").write_text("\n".join([line] * 40) + "\n")
    settings = {"run": str(tmp_path / "run"), "input": {"uri": str(tmp_path / "X.csv")},
                "method": "m3fs", "n_features_to_select": 5,
                "memory_limit": "1 GiB"}  # fmt: skip
    with pytest.raises(MemoryLimitError, match="matrices of 3,001 x 3,001"):
        bigfs.run(settings)
    assert not (tmp_path / "run").exists()


def test_blocks_that_would_read_chunks_twice_are_refused_by_the_plan() -> None:
    config = _config(method="max_variance", blocks={"rows": 10_000})
    with pytest.raises(
        InputError, match="multiple of the 40000 rows of a chunk.*Got 10000; set it to 40000"
    ):
        plan_of(config, _header(60_000, 100), Place(GIB, 1))
    assert plan_of(config, _header(10_000, 100), Place(GIB, 1)).fits  # one block


def test_the_plan_estimates_the_processor_time_of_every_stage(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "run": str(tmp_path / "run"), "input": {"uri": "sklearn:digits"},
        "method": "mcfs", "n_features_to_select": 10,
    }  # fmt: skip
    seconds = []
    for n_repetitions in (20, 20_000):
        labels = {"labels": "sklearn:digits", "n_repetitions": n_repetitions}
        plan = plan_pipeline(make_config(**settings, evaluate=labels))
        stages = plan.as_dict()["stages"]
        assert set(stages) >= {"data", "graph", "spectral", "result", "curves", "evaluation"}
        assert all(stage["estimated_seconds"] > 0 for stage in stages.values())
        longest = f"{format_seconds(plan.by_stage['evaluation'].seconds)} of it for evaluation"
        assert f"processor time, estimated: at most {format_seconds(plan.seconds)}, {longest}" in (
            plan.line()
        )
        *_, total = next(x for x in plan.text().splitlines() if "total" in x).split("  ")
        assert total.strip() == format_seconds(plan.seconds)
        seconds.append(stages["evaluation"]["estimated_seconds"])
    assert 100 < seconds[1] / seconds[0] < 1000  # modules are loaded once


@pytest.mark.parametrize("method", METHODS)
def test_more_rows_take_longer(method: str) -> None:
    config = _config(method=method, memory_limit="8GiB")
    few, many = (plan_of(config, _header(n, 50), Place(8 * GIB, 1)) for n in (10**5, 10**6))
    ratio = many.seconds / few.seconds
    # A search on a sample takes as long for more rows; one block of rows is read once, several in
    # every round.
    least, most = {"lfs": (1, 5), "gfs_kmeans": (1, 5)}.get(method, (5, 60))
    assert least < ratio < most, method
