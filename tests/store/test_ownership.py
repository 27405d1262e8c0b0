"""Whose a folder is, and what of it a run may remove: nothing that its records do not name."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from bigfs.core.errors import ConfigError, InputError, StorageError
from bigfs.pipeline import compare
from bigfs.pipeline.run import run
from bigfs.pipeline.table import TABLES
from bigfs.results.result import open_result
from bigfs.store.ingest import ingest
from bigfs.store.location import Location, as_location, files_below, is_within
from bigfs.store.objects import ObjectPath
from bigfs.store.records import OUTPUTS
from bigfs.store.retention import finish_series
from bigfs.store.rundir import RunDirectory
from bigfs.store.source import Source
from tests._canary import check, own, plant
from tests.store._folder import VALUES, all_files, call, finish, settings

# Each of these plants what it looks after.
pytestmark = pytest.mark.usefixtures("bare")

# An input in the run directory


def test_an_input_in_its_own_run_directory_is_refused_and_stays(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(capsys, "run", "base.yaml")[0] == 0
    assert call(capsys, "ingest", "s.npy", "runs/a/cells.zarr")[0] == 0
    before = all_files(folder)
    for option in ((), ("--fresh",)):
        code, output = call(
            capsys, "run", "base.yaml", "--set", "input.uri=runs/a/cells.zarr", *option
        )
        assert code == 2 and "input.uri: runs/a/cells.zarr lies in the run directory" in output
        assert all_files(folder) == before
    for option in ((), ("--fresh",)):
        assert call(capsys, "run", "base.yaml", *option)[0] == 0
        assert call(capsys, "inspect", "runs/a/cells.zarr", "--verify")[0] == 0


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"input": {"uri": "runs/a/s.npy"}}, "input.uri"),
        ({"input": {"uri": "runs/../runs/a/s.npy"}}, "input.uri"),
        ({"input": {"uri": "link/s.npy"}}, "input.uri"),
        ({"run": "link", "input": {"uri": "runs/a/s.npy"}}, "input.uri"),
        ({"run": "runs", "input": {"uri": "file://runs/a/s.npy"}}, "input.uri"),
        ({"evaluate": {"labels": "runs/a/y.npy"}}, "evaluate.labels"),
        ({"evaluate": {"labels": "runs/a/y.csv::type"}}, "evaluate.labels"),
        ({"method": "ndfs", "ndfs": {"init": "runs/a/y.npy"}}, "ndfs.init"),
    ],
)
def test_whatever_a_run_reads_must_lie_elsewhere(
    folder: Path, changes: dict[str, Any], key: str
) -> None:
    (folder / "runs" / "a").mkdir(parents=True)
    for name in ("s.npy", "y.npy"):
        shutil.copy(name, folder / "runs" / "a" / name)
    (folder / "link").symlink_to("runs/a")
    before = all_files(folder)
    with pytest.raises(ConfigError, match=f"^{key}: .* lies in the run directory"):
        run(settings(**changes))
    assert all_files(folder) == before


def test_whatever_a_comparison_reads_must_lie_elsewhere(folder: Path) -> None:
    given = settings(methods=["max_variance"], n_features_to_select=[2])
    del given["method"]
    for changes, key in (
        ({"input": {"uri": "runs/a/s.npy"}, "evaluate": {"labels": "y.npy"}}, "input.uri"),
        ({"evaluate": {"labels": "runs/a/y.npy"}}, "evaluate.labels"),
    ):
        with pytest.raises(ConfigError, match=f"^{key}: .* lies in the run directory"):
            compare({**given, **changes})
    table = {
        "run": "runs/a", "title": "a paper", "protocol": "draws", "data": "runs", "scores": ["nmi"],
        "n_features_to_select": [2], "methods": ["max_variance"],
        "sets": [{"name": "ours", "uri": "a/set.npz", "paper": {}}],
    }  # fmt: skip
    (folder / "runs" / "a").mkdir(parents=True)
    np.savez("runs/a/set.npz", X=VALUES, y=np.load("y.npy"))
    with pytest.raises(ConfigError, match=r"^ours: .*set.npz lies in the run directory"):
        compare(table)
    assert list(all_files(folder / "runs")) == ["a/set.npz"]


def test_a_place_in_a_bucket_lies_within_another_by_its_address() -> None:
    lab = as_location("s3://lab/runs/a")
    assert is_within(as_location("s3://lab/runs/a/cells.zarr"), lab) and is_within(lab, lab)
    for other in ("s3://lab/runs/a.zarr", "s3://lab/runs", "gs://lab/runs/a/x", "runs/a/x"):
        assert not is_within(as_location(other), lab), other
    with pytest.raises(ConfigError, match="input.uri: s3://lab/runs/a/X.npy lies in the run"):
        run(settings(run="s3://lab/runs/a", input={"uri": "s3://lab/runs/a/X.npy"}))


# Folders that are no runs


def _attempts(place: Location) -> None:
    (place / "attempts" / "one").mkdir(parents=True)
    (place / "attempts" / "one" / "climb.txt").write_text("mine")


def _extension(place: Location) -> None:
    """A web extension has a manifest.json too."""
    (place / "checkpoints").mkdir(parents=True)
    (place / "manifest.json").write_text('{"manifest_version": 3, "name": "x"}')
    (place / "checkpoints" / "model.pt").write_text("mine")
    (place / "config.yaml").write_text("mine: true")


def _resembling(place: Location) -> None:
    """A manifest with all names of ours but one."""
    place.mkdir(parents=True)
    manifest = {"format": 1, "stages": {}, "status": "done", "attempt": "0" * 12}
    (place / "manifest.json").write_text(json.dumps({**manifest, "versions": {"other": "1"}}))
    (place / "config.yaml").write_text("mine: true")


def _lease(place: Location) -> None:
    place.mkdir(parents=True)
    (place / "lease.json").write_text('{"flat": "2nd floor"}')


@pytest.mark.parametrize("fill", [_attempts, _extension, _resembling, _lease])
def test_a_folder_without_a_mark_is_no_run(
    folder: Path, capsys: pytest.CaptureFixture[str], fill: Callable[[Location], None]
) -> None:
    fill(folder / "runs" / "a")
    before = all_files(folder)
    for option in ((), ("--fresh",)):
        code, output = call(capsys, "run", "base.yaml", *option)
        assert code == 2 and "runs/a holds files but is not a bigfs run" in output
        assert "--fresh" not in output
        assert all_files(folder) == before


@pytest.mark.parametrize("fill", [_attempts, _extension])
def test_a_place_in_a_bucket_without_a_mark_is_no_run(
    bucket: str, fill: Callable[[Location], None]
) -> None:
    place = as_location(f"{bucket}/runs/a")
    fill(place)
    before = files_below(place)
    for fresh in (False, True):
        with pytest.raises(InputError, match="not a bigfs run"):
            run(settings(run=str(place), input={"uri": "sklearn:iris"}), fresh=fresh)
        assert files_below(place) == before


def test_files_with_the_names_of_a_runs_own_are_not_replaced(folder: Path) -> None:
    place = folder / "runs" / "a"
    with pytest.raises(InputError, match="run"), RunDirectory(place).open():
        (place / "notes.txt").write_text("mine")
        raise InputError("of a run that has finished nothing")
    for name, text in (("features.csv", "mine"), ("config.yaml", "mine: true")):
        (place / name).write_text(text)
        before = all_files(folder)
        for fresh in (False, True):
            with pytest.raises(InputError, match=rf"{name} was not written by this run"):
                run(settings(), fresh=fresh)
            assert all_files(place)[name] == before[f"runs/a/{name}"]
        (place / name).unlink()
    (place / "table.csv").write_text("mine")
    (place / "lease.json").write_text('{"flat": "2nd floor"}')
    with pytest.raises(InputError, match=r"lease.json is not the lease of a bigfs run"):
        run(settings())
    os.utime(place / "lease.json", (0, 0))
    with pytest.raises(InputError, match=r"lease.json is not the lease of a bigfs run"):
        run(settings())
    assert (place / "lease.json").read_text() == '{"flat": "2nd floor"}'
    (place / "lease.json").unlink()
    run(settings())
    assert (place / "table.csv").read_text() == "mine"
    given = settings(methods=["max_variance"], n_features_to_select=[2])
    del given["method"]
    with pytest.raises(InputError, match=r"table.csv was not written by this run"):
        compare({**given, "evaluate": {"labels": "y.npy"}}, fresh=True)
    assert (place / "table.csv").read_text() == "mine"


def test_all_files_beside_the_stages_have_names_that_are_known() -> None:
    assert set(TABLES) < set(OUTPUTS)


# What stays in a run directory


@pytest.mark.parametrize("what", ["--performance-report", "output.metrics", "report -o"])
def test_a_file_of_others_is_never_replaced_by_what_a_command_writes(
    what: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(capsys, "run", "base.yaml")[0] == 0
    ingest(VALUES, folder / "other.zarr")
    Path("mine.html").write_text("years of work")
    Path("link.html").symlink_to("mine.html")
    os.mkfifo("pipe")
    before = all_files(folder / "runs"), all_files(folder / "other.zarr")
    places = ("s.npy", "base.yaml", "mine.html", "link.html", "pipe", "/dev/zero", "runs",
              "runs/a/features.csv", "runs/a/new.html", "other.zarr/new.html")  # fmt: skip
    for place in places:
        command = {
            "--performance-report": ("run", "base.yaml", "--performance-report", place),
            "output.metrics": ("run", "base.yaml", "--set", f"output.metrics={place}"),
            "report -o": ("report", "runs/a", "-o", place),
        }[what]
        code, output = call(capsys, *command)
        assert code == 2, (place, output)
        assert re.search("exists|is a folder|lies in", output), output
    assert (all_files(folder / "runs"), all_files(folder / "other.zarr")) == before
    assert Path("mine.html").read_text() == "years of work"
    np.testing.assert_array_equal(np.load("s.npy"), VALUES)


def test_metrics_are_written_where_a_link_leads(folder: Path) -> None:
    Path("textfiles").mkdir()
    Path("link.prom").symlink_to("textfiles/a.prom")
    for _ in range(2):
        run(settings(output={"metrics": "link.prom"}))
        assert Path("link.prom").is_symlink() and "bigfs_rows" in Path("link.prom").read_text()
    assert [path.name for path in Path("textfiles").iterdir()] == ["a.prom"]


@pytest.mark.parametrize("name", ["sub.zarr", "X/sub.zarr"])
def test_a_store_inside_its_own_source_is_refused(name: str, folder: Path) -> None:
    ingest(VALUES, folder / "ours.zarr")
    Path("link").symlink_to("ours.zarr")
    before = all_files(folder / "ours.zarr")
    for source in ("ours.zarr", "link", str(folder / "ours.zarr")):
        for dest in (f"ours.zarr/{name}", f"link/{name}"):
            with pytest.raises(InputError, match="lies in the"):
                ingest(source, dest)
    assert all_files(folder / "ours.zarr") == before


def test_what_is_not_the_runs_stays_whatever_its_name(folder: Path) -> None:
    first = run(settings(method="mcfs", mcfs={"n_clusters": 3}))
    plant(first.path)
    for changes, fresh in (
        ({}, True),
        ({}, False),
        ({"method": "mcfs", "mcfs": {"n_clusters": 4}}, True),
        ({"method": "mcfs", "mcfs": {"n_clusters": 5}}, False),
        ({"input": {"uri": "sklearn:iris"}}, True),
    ):
        run(settings(**changes), fresh=fresh)
        check(first.path)
    names = {".bigfs-run", "config.yaml", "manifest.json", "features.csv"}
    assert own(first.path) == names | {"data.zarr", "result.zarr", "curves.zarr"}


def test_a_stage_goes_elsewhere_where_its_name_is_taken(folder: Path) -> None:
    """Somebody put a store there that has the name of a stage to come, or of a former one."""
    undisturbed = run(settings(run="runs/whole", method="mcfs", mcfs={"n_clusters": 3}))
    run(settings())
    place = folder / "runs" / "a"
    ingest(VALUES, place / "graph.zarr")
    shutil.rmtree(place / "data.zarr")
    ingest(2 * VALUES, place / "data.zarr")
    (place / "spectral.zarr").symlink_to(folder / "nowhere")
    before = {name: all_files(place / name) for name in ("graph.zarr", "data.zarr")}
    for fresh in (True, False, True):
        result = run(settings(method="mcfs", mcfs={"n_clusters": 3}), fresh=fresh)
        assert result.scores.tobytes() == undisturbed.scores.tobytes()
        assert {name: all_files(place / name) for name in before} == before
        assert (place / "spectral.zarr").is_symlink()
        stages = result.stages
        for name in ("data", "graph", "spectral"):
            assert stages[name]["folder"] == f"{name}-{stages[name]['attempt']}.zarr"
        folders = [stages[name]["folder"] for name in ("data", "graph", "spectral")]
        ours = {"result.zarr", "curves.zarr", *folders}
        assert {name for name in own(place) if name.endswith(".zarr")} == {
            *before, "spectral.zarr", *ours,
        }  # fmt: skip


def test_a_leftover_of_a_killed_ingest_does_not_end_a_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(capsys, "run", "base.yaml")[0] == 0
    for name in ("c.zarr.partial-1a2b3c4d", "features.csv.partial-1a2b3c4d"):
        ingest(VALUES, folder / "runs" / "a" / name)
    before = all_files(folder / "runs" / "a" / "c.zarr.partial-1a2b3c4d")
    scores = open_result("runs/a").scores
    for option in ((), ("--fresh",), ()):
        code, output = call(capsys, "run", "base.yaml", *option)
        assert code == 0, output
        assert all_files(folder / "runs" / "a" / "c.zarr.partial-1a2b3c4d") == before
        np.testing.assert_array_equal(open_result("runs/a").scores, scores)


def test_a_fresh_run_that_cannot_begin_or_fails_leaves_the_result(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(capsys, "run", "base.yaml")[0] == 0
    scores = open_result("runs/a").scores
    # There are no workers to report on, which is known when Dask is asked.
    failing = ("--performance-report", "report.html")
    assert call(capsys, "run", "base.yaml", "--fresh", *failing)[0] == 2
    np.testing.assert_array_equal(open_result("runs/a").scores, scores)
    spoiled = VALUES.copy()
    spoiled[50, 3] = np.nan
    np.save("s.npy", spoiled)
    assert call(capsys, "run", "base.yaml", "--fresh")[0] == 2
    np.testing.assert_array_equal(open_result("runs/a").scores, scores)
    np.save("s.npy", VALUES)
    attempts = {record["attempt"] for record in open_result("runs/a").stages.values()}
    assert call(capsys, "run", "base.yaml")[0] == 0
    stages = open_result("runs/a").stages
    assert not attempts & {record["attempt"] for record in stages.values()}, "not fresh any more"


def test_keep_leaves_what_a_person_put_into_an_old_run(folder: Path) -> None:
    series = "nightly-{date}"
    for day in (1, 2, 3):
        result = run(settings(run=f"runs/{series}", date=f"2026-11-0{day}"))
        plant(result.path)
    ingest(VALUES, folder / "runs" / "nightly-2026-11-02" / "result-copy.zarr")
    old = [folder / "runs" / f"nightly-2026-11-0{day}" for day in (1, 2)]
    assert finish_series(result.path, series, 1) == [place.name for place in old]
    for place in old:
        check(place)
        names = {path.name for path in place.iterdir()}
        assert not names & {".bigfs-run", "manifest.json", "lease.json", "config.yaml"}
        assert not own(place) & {"data.zarr", "result.zarr", "features.csv"}
    assert (old[1] / "result-copy.zarr" / "zarr.json").exists()
    assert open_result(folder / "runs" / "nightly-latest").path.name == "nightly-latest"


# What an ingest replaces


class _Slow(Source):
    """A source during whose reading somebody else puts something at the destination."""

    uri, n_samples, n_features, dtype = "slow", 4, 2, np.dtype(np.float64)

    def __init__(self, meanwhile: Callable[[], Any]) -> None:
        self._meanwhile = meanwhile

    def iter_rows(self, rows: int) -> Iterator[np.ndarray]:
        self._meanwhile()
        yield np.ones((4, 2))


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_appears_while_an_ingest_runs_is_not_replaced(tmp_path: Path, overwrite: bool) -> None:
    dest = tmp_path / "X.zarr"

    def appear() -> None:
        dest.mkdir()
        (dest / "years").write_text("of work")

    with pytest.raises(InputError, match="exists" if not overwrite else "not a store that bigfs"):
        ingest(_Slow(appear), dest, overwrite=overwrite)
    assert all_files(tmp_path) == {"X.zarr/years": b"of work"}
    shutil.rmtree(dest)
    if not overwrite:
        with pytest.raises(InputError, match="already exists"):
            ingest(_Slow(lambda: ingest(VALUES, dest)), dest)
        assert [path.name for path in tmp_path.iterdir()] == ["X.zarr"]
        assert json.loads((dest / "X" / "zarr.json").read_text())["shape"] == [60, 8]


def test_a_store_that_holds_more_than_an_ingest_wrote_is_not_overwritten(place: Location) -> None:
    dest = place / "X.zarr"
    ingest(VALUES, dest)
    (dest / "obs").mkdir(parents=True, exist_ok=True)
    (dest / "obs" / "types").write_text("years of work")
    before = files_below(dest)
    with pytest.raises(InputError, match="X.zarr holds obs/types besides the matrix"):
        ingest(VALUES, dest, overwrite=True)
    assert files_below(dest) == before


def test_a_stage_of_a_run_and_a_link_are_not_overwritten(folder: Path) -> None:
    path = run(settings()).path
    before = all_files(folder)
    with pytest.raises(
        InputError, match=r"data.zarr holds \.bigfs-stage, checksums.json besides the m"
    ):
        ingest("s.npy", path / "data.zarr", overwrite=True)
    assert all_files(folder) == before
    ingest("s.npy", "store.zarr")
    (folder / "link.zarr").symlink_to("store.zarr")
    with pytest.raises(InputError, match=r"link.zarr is a link"):
        ingest("s.npy", "link.zarr", overwrite=True)


def test_a_store_in_a_bucket_is_not_replaced_by_itself(lab: ObjectPath) -> None:
    ingest(VALUES, lab / "X.zarr")
    before = files_below(lab)
    with pytest.raises(InputError, match="X.zarr is the input"):
        ingest(str(lab / "X.zarr"), lab / "X.zarr", overwrite=True, rows=10)
    assert files_below(lab) == before


def test_a_store_comes_back_if_another_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest = tmp_path / "X.zarr"
    ingest(VALUES, dest)
    before, rename = all_files(tmp_path), Path.rename

    def fail(self: Path, target: Path) -> Path:
        if target == dest and not self.name.endswith("-replaced"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        ingest(2 * VALUES, dest, overwrite=True)
    assert all_files(tmp_path) == before


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", ["note.txt", "X/note.txt", "figures/a.png"])
def test_files_put_into_a_stages_folder_are_refused_and_stay(
    folder: Path, fresh: bool, name: str
) -> None:
    config = settings()
    run(config)
    note = folder / "runs" / "a" / "data.zarr" / name
    note.parent.mkdir(exist_ok=True)
    note.write_text("mine")
    with pytest.raises(InputError, match=f"data.zarr holds {name}, which bigfs did not write"):
        run(config, fresh=fresh)
    assert note.read_text() == "mine"
    note.unlink()
    run(config, fresh=fresh)


def test_a_run_in_a_stages_folder_of_another_is_refused(folder: Path) -> None:
    run(settings())
    with pytest.raises(InputError, match="which a stage of another run made"):
        run({**settings(), "run": str(folder / "runs" / "a" / "data.zarr" / "sub")})


def test_a_store_that_leads_into_the_run_directory_by_a_link_is_refused(folder: Path) -> None:
    run(settings())
    store = folder / "linked.zarr"
    store.mkdir()
    shutil.copy(folder / "runs" / "a" / "data.zarr" / "zarr.json", store)
    (store / "X").symlink_to(folder / "runs" / "a" / "data.zarr" / "X")
    with pytest.raises(ConfigError, match="lies in the run directory"):
        run({**settings(), "input": {"uri": str(store)}}, fresh=True)
    run(settings())


def test_an_empty_mark_among_files_of_others_is_no_mark(folder: Path, bare: None) -> None:
    place = folder / "runs" / "a"
    place.mkdir(parents=True)
    (place / ".bigfs-run").touch()
    (place / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="is not a bigfs run"):
        run(settings())
    assert sorted(path.name for path in place.iterdir()) == [".bigfs-run", "thesis.txt"]


def test_an_array_beside_the_matrix_is_not_replaced(folder: Path) -> None:
    ingest("s.npy", "X.zarr")
    zarr.open_group("X.zarr", mode="a").create_array("y", data=VALUES[:, 0])
    before = all_files(folder)
    with pytest.raises(InputError, match="holds y/"):
        ingest("s.npy", "X.zarr", overwrite=True)
    assert all_files(folder) == before


def test_lists_put_into_a_store_are_not_replaced(folder: Path) -> None:
    ingest("s.npy", "X.zarr")
    for name, text in (("checksums.json", '["notes.txt"]'), ("notes.txt", "mine")):
        (folder / "X.zarr" / name).write_text(text)
    with pytest.raises(InputError, match="besides the matrix"):
        ingest("s.npy", "X.zarr", overwrite=True)
    assert (folder / "X.zarr" / "notes.txt").read_text() == "mine"


def test_a_file_put_into_a_stage_while_a_run_works_stays(folder: Path) -> None:
    place = folder / "runs" / "a"
    note = place / "graph.zarr" / "notes.txt"
    with RunDirectory(place).open() as directory:
        finish(directory, "graph", "first")
        note.write_text("mine")
        finish(directory, "graph", "second")
        assert note.read_text() == "mine"
        assert directory.stage_path("graph").name == f"graph-{directory.attempt}.zarr"
        assert directory.is_intact("graph")
    with RunDirectory(place).open() as directory:  # the folder is in no record any more
        directory.finish()
    assert note.read_text() == "mine"


@pytest.mark.parametrize("stage", ["data.zarr", "graph.zarr"])
def test_an_array_put_into_a_stage_is_refused_and_stays(folder: Path, stage: str) -> None:
    place = run(settings(method="mcfs", mcfs={"n_clusters": 3})).path
    zarr.open_group(str(place / stage), mode="a").create_array("y", data=VALUES[:, 0])
    for fresh in (False, True):
        with pytest.raises(InputError, match=f"{stage} holds y/"):
            run(settings(method="mcfs", mcfs={"n_clusters": 3}), fresh=fresh)
    np.testing.assert_array_equal(zarr.open_array(str(place / stage / "y"))[:], VALUES[:, 0])
