"""Whose a folder is, and what of it a run may remove: nothing that its records do not name."""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.cli import main
from bigfs.core.errors import ConfigError, InputError, StorageError
from bigfs.graph.knn import KNNGraph
from bigfs.pipeline import compare
from bigfs.pipeline.run import run
from bigfs.pipeline.table import TABLES
from bigfs.results.result import open_result
from bigfs.spectral.storedblock import Record
from bigfs.store import lease, objects
from bigfs.store.ingest import ingest
from bigfs.store.location import Location, as_location, files_below, is_within, new_file
from bigfs.store.objects import ObjectPath
from bigfs.store.records import OUTPUTS, STAMP
from bigfs.store.retention import finish_series, followed
from bigfs.store.rundir import RunDirectory
from bigfs.store.source import Source
from tests._canary import check, own, plant
from tests._s3 import Proxy

# Each of these plants what it looks after.
pytestmark = pytest.mark.usefixtures("bare")

_X = np.random.default_rng(0).normal(size=(60, 8))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with data and a pipeline whose run directory is runs/a."""
    monkeypatch.chdir(tmp_path)
    np.save("s.npy", _X)
    np.save("y.npy", np.repeat([0, 1, 2], 20))
    (tmp_path / "base.yaml").write_text(json.dumps(_config()))
    return tmp_path


def _config(**changes: Any) -> dict[str, Any]:
    return {
        "run": "runs/a",
        "input": {"uri": "s.npy"},
        "method": "max_variance",
        "n_features_to_select": 3,
        **changes,
    }


def _call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main([*arguments])
    found = capsys.readouterr()
    assert "Traceback" not in found.err
    return int(end.value.code or 0), found.out + found.err


def _all(folder: Path) -> dict[str, bytes]:
    """Return what every file of a folder holds, and where its links lead."""
    return {
        str(path.relative_to(folder)): os.readlink(path).encode()
        if path.is_symlink()
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def _finish(directory: RunDirectory, name: str, key: str) -> None:
    directory.stage_scratch(name).put("values", np.arange(3.0))
    directory.commit(name, key, {"seconds": 1.0, "version": 1, "settings": {}})


# An input in the run directory


def test_an_input_in_its_own_run_directory_is_refused_and_stays(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _call(capsys, "run", "base.yaml")[0] == 0
    assert _call(capsys, "ingest", "s.npy", "runs/a/cells.zarr")[0] == 0
    before = _all(folder)
    for option in ((), ("--fresh",)):
        code, said = _call(
            capsys, "run", "base.yaml", "--set", "input.uri=runs/a/cells.zarr", *option
        )
        assert code == 2 and "input.uri: runs/a/cells.zarr lies in the run directory" in said
        assert _all(folder) == before
    for option in ((), ("--fresh",)):
        assert _call(capsys, "run", "base.yaml", *option)[0] == 0
        assert _call(capsys, "inspect", "runs/a/cells.zarr", "--verify")[0] == 0


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
    before = _all(folder)
    with pytest.raises(ConfigError, match=f"^{key}: .* lies in the run directory"):
        run(_config(**changes))
    assert _all(folder) == before


def test_whatever_a_comparison_reads_must_lie_elsewhere(folder: Path) -> None:
    given = _config(methods=["max_variance"], n_features_to_select=[2])
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
    np.savez("runs/a/set.npz", X=_X, y=np.load("y.npy"))
    with pytest.raises(ConfigError, match=r"^ours: .*set.npz lies in the run directory"):
        compare(table)
    assert list(_all(folder / "runs")) == ["a/set.npz"]


def test_a_place_in_a_bucket_lies_within_another_by_its_address() -> None:
    lab = as_location("s3://lab/runs/a")
    assert is_within(as_location("s3://lab/runs/a/cells.zarr"), lab) and is_within(lab, lab)
    for other in ("s3://lab/runs/a.zarr", "s3://lab/runs", "gs://lab/runs/a/x", "runs/a/x"):
        assert not is_within(as_location(other), lab), other
    with pytest.raises(ConfigError, match="input.uri: s3://lab/runs/a/X.npy lies in the run"):
        run(_config(run="s3://lab/runs/a", input={"uri": "s3://lab/runs/a/X.npy"}))


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
    before = _all(folder)
    for option in ((), ("--fresh",)):
        code, said = _call(capsys, "run", "base.yaml", *option)
        assert code == 2 and "runs/a holds files and is not a bigfs run" in said
        assert "--fresh" not in said
        assert _all(folder) == before


@pytest.mark.parametrize("fill", [_attempts, _extension])
def test_a_place_in_a_bucket_without_a_mark_is_no_run(
    bucket: str, fill: Callable[[Location], None]
) -> None:
    place = as_location(f"{bucket}/runs/a")
    fill(place)
    before = files_below(place)
    for fresh in (False, True):
        with pytest.raises(InputError, match="not a bigfs run"):
            run(_config(run=str(place), input={"uri": "sklearn:iris"}), fresh=fresh)
        assert files_below(place) == before


def test_files_with_the_names_of_a_runs_own_are_not_replaced(folder: Path) -> None:
    place = folder / "runs" / "a"
    with pytest.raises(InputError, match="run"), RunDirectory(place).open():
        (place / "notes.txt").write_text("mine")
        raise InputError("of a run that has finished nothing")
    for name, text in (("features.csv", "mine"), ("config.yaml", "mine: true")):
        (place / name).write_text(text)
        before = _all(folder)
        for fresh in (False, True):
            with pytest.raises(InputError, match=rf"{name} was not written by this run"):
                run(_config(), fresh=fresh)
            assert _all(place)[name] == before[f"runs/a/{name}"]
        (place / name).unlink()
    (place / "table.csv").write_text("mine")
    (place / "lease.json").write_text('{"flat": "2nd floor"}')
    with pytest.raises(InputError, match=r"lease.json is not the lease of a bigfs run"):
        run(_config())
    os.utime(place / "lease.json", (0, 0))
    with pytest.raises(InputError, match=r"lease.json is not the lease of a bigfs run"):
        run(_config())
    assert (place / "lease.json").read_text() == '{"flat": "2nd floor"}'
    (place / "lease.json").unlink()
    run(_config())
    assert (place / "table.csv").read_text() == "mine"
    given = _config(methods=["max_variance"], n_features_to_select=[2])
    del given["method"]
    with pytest.raises(InputError, match=r"table.csv was not written by this run"):
        compare({**given, "evaluate": {"labels": "y.npy"}})
    assert (place / "table.csv").read_text() == "mine"


def test_all_files_beside_the_stages_have_names_that_are_known() -> None:
    assert set(TABLES) < set(OUTPUTS)


# What stays in a run directory


def test_what_is_not_the_runs_stays_whatever_its_name(folder: Path) -> None:
    first = run(_config(method="mcfs", mcfs={"n_clusters": 3}))
    plant(first.path)
    for changes, fresh in (
        ({}, False),
        ({}, True),
        ({"method": "mcfs", "mcfs": {"n_clusters": 4}}, False),
        ({"method": "mcfs", "mcfs": {"n_clusters": 4}}, True),
        ({"input": {"uri": "sklearn:iris"}}, False),
    ):
        run(_config(**changes), fresh=fresh)
        check(first.path)
    names = {".bigfs-run", "config.yaml", "manifest.json", "features.csv"}
    assert own(first.path) == names | {"data.zarr", "result.zarr"}


def test_a_stage_goes_elsewhere_where_its_name_is_taken(folder: Path) -> None:
    """Somebody put a store there that has the name of a stage to come, or of a former one."""
    whole = run(_config(run="runs/whole", method="mcfs", mcfs={"n_clusters": 3}))
    run(_config())
    place = folder / "runs" / "a"
    ingest(_X, place / "graph.zarr")
    shutil.rmtree(place / "data.zarr")
    ingest(2 * _X, place / "data.zarr")
    (place / "spectral.zarr").symlink_to(folder / "nowhere")
    before = {name: _all(place / name) for name in ("graph.zarr", "data.zarr")}
    for fresh in (False, True, False):
        found = run(_config(method="mcfs", mcfs={"n_clusters": 3}), fresh=fresh)
        assert found.scores.tobytes() == whole.scores.tobytes()
        assert {name: _all(place / name) for name in before} == before
        assert (place / "spectral.zarr").is_symlink()
        stages = found.stages
        for name in ("data", "graph", "spectral"):
            assert stages[name]["folder"] == f"{name}-{stages[name]['attempt']}.zarr"
        ours = {"result.zarr", *(stages[name]["folder"] for name in ("data", "graph", "spectral"))}
        assert {name for name in own(place) if name.endswith(".zarr")} == {
            *before, "spectral.zarr", *ours,
        }  # fmt: skip


def test_a_leftover_of_a_killed_ingest_does_not_end_a_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _call(capsys, "run", "base.yaml")[0] == 0
    for name in ("c.zarr.partial-1a2b3c4d", "features.csv.partial-1a2b3c4d"):
        ingest(_X, folder / "runs" / "a" / name)
    before = _all(folder / "runs" / "a" / "c.zarr.partial-1a2b3c4d")
    scores = open_result("runs/a").scores
    for option in ((), ("--fresh",), ()):
        code, said = _call(capsys, "run", "base.yaml", *option)
        assert code == 0, said
        assert _all(folder / "runs" / "a" / "c.zarr.partial-1a2b3c4d") == before
        np.testing.assert_array_equal(open_result("runs/a").scores, scores)


def test_a_fresh_run_that_cannot_begin_or_fails_leaves_the_result(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _call(capsys, "run", "base.yaml")[0] == 0
    scores = open_result("runs/a").scores
    # There are no workers to report on, which is known when Dask is asked.
    failing = ("--performance-report", "report.html")
    assert _call(capsys, "run", "base.yaml", "--fresh", *failing)[0] == 2
    np.testing.assert_array_equal(open_result("runs/a").scores, scores)
    spoiled = _X.copy()
    spoiled[50, 3] = np.nan
    np.save("s.npy", spoiled)
    assert _call(capsys, "run", "base.yaml", "--fresh")[0] == 2
    np.testing.assert_array_equal(open_result("runs/a").scores, scores)
    np.save("s.npy", _X)
    attempts = {record["attempt"] for record in open_result("runs/a").stages.values()}
    assert _call(capsys, "run", "base.yaml")[0] == 0
    stages = open_result("runs/a").stages
    assert not attempts & {record["attempt"] for record in stages.values()}, "not fresh any more"


def test_keep_leaves_what_a_person_put_into_an_old_run(folder: Path) -> None:
    series = "nightly-{date}"
    for day in (1, 2, 3):
        found = run(_config(run=f"runs/{series}", date=f"2026-11-0{day}"))
        plant(found.path)
    ingest(_X, folder / "runs" / "nightly-2026-11-02" / "result-copy.zarr")
    old = [folder / "runs" / f"nightly-2026-11-0{day}" for day in (1, 2)]
    assert finish_series(found.path, series, 1) == [place.name for place in old]
    for place in old:
        check(place)
        names = {path.name for path in place.iterdir()}
        assert not names & {".bigfs-run", "manifest.json", "lease.json", "config.yaml"}
        assert not own(place) & {"data.zarr", "result.zarr", "features.csv"}
    assert (old[1] / "result-copy.zarr" / "zarr.json").exists()
    assert open_result(folder / "runs" / "nightly-latest").path.name == "nightly-latest"


# Names that are read from files


def _spoil(place: Location, change: Callable[[dict[str, Any]], None]) -> None:
    path = place / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def _rename(manifest: dict[str, Any], name: str) -> None:
    manifest["stages"][name] = manifest["stages"].pop("result")


_SPOILED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "../../victim": lambda m: m["stages"]["result"].update(folder="../../victim"),
    "/victim": lambda m: m["stages"]["result"].update(folder="/victim"),
    "cells.zarr": lambda m: m["stages"]["result"].update(folder="cells.zarr"),
    "'.'": lambda m: m["stages"]["result"].update(folder="."),
    "../../vic": lambda m: _rename(m, "../../vic"),
    "'..'": lambda m: _rename(m, ".."),
    "../../key": lambda m: m["stages"]["result"].update(key="../../key"),
    "../at": lambda m: m["stages"]["result"].update(attempt="../at"),
    "../../../attempt": lambda m: m["attempts"].update({"../../../attempt": []}),
    "../list": lambda m: m["attempts"].update({"0" * 12: ["../list-" + "0" * 12 + ".zarr"]}),
    "../../point": lambda m: m["checkpoints"].update(result={"key": "k", "folder": "../../point"}),
    "notes.txt": lambda m: m["files"].append("notes.txt"),
    "../file": lambda m: m["files"].append("../file"),
    "../id": lambda m: m.update(id="../id"),
}


@pytest.mark.parametrize("value", _SPOILED)
@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_a_manifest_that_names_what_is_elsewhere_is_damaged(
    folder: Path, request: pytest.FixtureRequest, value: str, kind: str
) -> None:
    root: Location = folder
    if kind == "bucket":
        root = as_location(f"{request.getfixturevalue('bucket')}/lab")
    config = _config(run=f"{root}/runs/a", input={"uri": "sklearn:iris"})
    found = run(config)
    plant(found.path)
    for name in ("victim", "vic.zarr", "vic", "list-000000000000.zarr", "point", "runs/x"):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "years").write_text("of work")
    _spoil(found.path, _SPOILED[value])
    before = {name: stamp for name, (stamp, _) in files_below(root).items()}
    with pytest.raises(InputError, match="not a manifest this bigfs can read.*damaged") as caught:
        run(config)
    assert value in str(caught.value) and caught.value.exit_code == 2
    with pytest.raises(InputError, match="damaged"):
        open_result(found.path)
    assert {name: stamp for name, (stamp, _) in files_below(root).items()} == before
    again = run(config, fresh=True)
    np.testing.assert_array_equal(again.scores, found.scores)
    check(found.path)
    for name in ("victim", "vic.zarr", "vic", "list-000000000000.zarr", "point", "runs/x"):
        assert (root / name / "years").read_text() == "of work"


def test_a_manifest_of_another_run_is_refused(folder: Path) -> None:
    run(_config(run="runs/b"))
    run(_config())
    shutil.copy("runs/b/manifest.json", "runs/a/manifest.json")
    before = _all(folder)
    with pytest.raises(InputError, match=r"manifest.json is of another run"):
        run(_config())
    assert _all(folder) == before
    (folder / "runs" / "a" / "manifest.json").write_text('{"manifest_version": 3}')
    with pytest.raises(InputError, match=r"manifest.json is not a manifest"):
        run(_config())
    run(_config(), fresh=True)
    [aside] = (folder / "runs" / "a").glob("manifest.json.damaged-*")
    assert aside.read_text() == '{"manifest_version": 3}'


@pytest.mark.parametrize("name", ["graph.zarr", "attempts", "checkpoints", "checkpoints/result-k"])
def test_links_are_not_followed(folder: Path, name: str) -> None:
    config = _config(method="mcfs", mcfs={"n_clusters": 3})
    place = run(config).path
    victim = folder / "victim"
    (victim / "0123456789ab").mkdir(parents=True)
    (victim / "0123456789ab" / "years").write_text("of work")
    shutil.rmtree(place / name, ignore_errors=True)
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).symlink_to(victim)

    def change(manifest: dict[str, Any]) -> None:
        manifest["attempts"]["0123456789ab"] = []
        manifest["checkpoints"]["result"] = {"key": "k", "folder": "result-k"}

    _spoil(place, change)
    before = _all(victim)
    with pytest.raises(InputError, match=f"{name} is a link"):
        run(config)
    assert _all(victim) == before
    if name in ("attempts", "checkpoints"):
        with pytest.raises(InputError, match=f"{name} is a link"):
            run(config, fresh=True)
    else:
        run(config, fresh=True)
    assert _all(victim) == before and (place / name).is_symlink()


def test_the_latest_of_a_series_is_a_run_beside_it(bucket: str) -> None:
    folder = as_location(f"{bucket}/runs")
    latest = folder / "nightly-latest"
    for text in (f"{bucket}/elsewhere/nightly-2026-11-01", f"{folder}/..", f"{folder}/thesis", ""):
        latest.write_text(text)
        with pytest.raises(InputError, match="nightly-latest is damaged"):
            followed(latest)
    latest.write_text(f"{folder}/nightly-2026-11-01\n")
    assert followed(latest) == folder / "nightly-2026-11-01"
    latest.write_text("my notes")
    run(_config(run=f"{folder}/nightly-{{date}}", date="2026-11-01", input={"uri": "sklearn:iris"}))
    assert latest.read_text() == "my notes"
    latest.unlink()
    assert finish_series(folder / "nightly-2026-11-01", "nightly-{date}", 1) == []
    assert followed(latest) == folder / "nightly-2026-11-01"


def test_names_in_the_records_of_stages_are_plain(tmp_path: Path) -> None:
    stored = {"arrays": ["../../indices", "distances"]}
    with pytest.raises(InputError, match=r"damaged: it names '\.\./\.\./indices'"):
        KNNGraph.open(tmp_path, stored)


@pytest.mark.parametrize("place", ["graph", "active", "tables"])
def test_a_checkpoint_that_names_what_is_elsewhere_does_not_count(
    tmp_path: Path, place: str
) -> None:
    """A run directory that was moved has such, too: the iteration begins anew."""
    checkpoint, victim = tmp_path / "checkpoint", tmp_path / "victim"
    (checkpoint / "graph").mkdir(parents=True)
    victim.mkdir()
    (victim / "z-000000-00000-0000000000000000").write_text("years of work")
    folders = {name: str(checkpoint / "graph") for name in ("graph", "active", "tables")}

    def write() -> None:
        graph = {"folder": folders["graph"], "tables": {"path": folders["tables"]}}
        block = {"active": {"folder": folders["active"]}, "locked": []}
        state = {"graph": graph, "block": block, "in_strips": False}
        (checkpoint / "spectral.json").write_text(json.dumps(state))

    write()
    assert Record(checkpoint, False).state is not None
    for elsewhere in (victim, checkpoint / ".." / "victim"):
        folders[place] = str(elsewhere)
        write()
        assert Record(checkpoint, False).state is None


# Earlier versions, and kills


def _as_an_earlier_version(place: Path) -> None:
    """Take from a run directory what earlier versions did not write."""
    (place / ".bigfs-run").unlink()

    def change(manifest: dict[str, Any]) -> None:
        for name in ("id", "files", "attempts", "checkpoints"):
            del manifest[name]
        for name, record in manifest["stages"].items():
            stamp = place / f"{name}.zarr" / STAMP
            sums = place / f"{name}.zarr" / "checksums.json"
            taken = {"files": 1, "bytes": stamp.stat().st_size}
            stamp.unlink()
            if sums.exists():
                size = sums.stat().st_size
                kept = {k: v for k, v in json.loads(sums.read_text()).items() if k != STAMP}
                sums.write_text(json.dumps(kept))
                taken["bytes"] += size - sums.stat().st_size
            for key, value in taken.items():
                record["stored"][key] -= value

    _spoil(place, change)


def test_a_run_directory_of_an_earlier_version_is_adopted(folder: Path) -> None:
    config = _config(method="mcfs", mcfs={"n_clusters": 3})
    before = run(config)
    _as_an_earlier_version(before.path)
    (before.path / "attempts" / before.stages["graph"]["attempt"]).mkdir(parents=True)
    assert open_result(before.path).scores.tobytes() == before.scores.tobytes()
    plant(folder / "elsewhere")
    shutil.copytree(before.path / "graph.zarr", before.path / "mine.zarr")
    after = run(config)
    assert all(
        after.stages[name]["attempt"] == one["attempt"] for name, one in before.stages.items()
    )
    assert (before.path / ".bigfs-run").is_file()
    changed = run({**config, "mcfs": {"n_clusters": 4}})
    assert changed.stages["spectral"]["attempt"] != after.stages["spectral"]["attempt"]
    assert "folder" not in changed.stages["spectral"], "the former one was removed"
    run(config, fresh=True)
    names = {".bigfs-run", "config.yaml", "manifest.json", "features.csv", "mine.zarr", "data.zarr"}
    assert own(before.path) == names | {"graph.zarr", "spectral.zarr", "result.zarr"}


def test_a_mark_that_was_lost_is_written_again(folder: Path) -> None:
    before = run(_config())
    for text in (None, ""):
        (before.path / ".bigfs-run").unlink()
        if text is not None:  # as a kill may leave it
            (before.path / ".bigfs-run").write_text(text)
        after = run(_config())
        assert after.stages == before.stages
        found = json.loads((before.path / ".bigfs-run").read_text())
        assert found["id"] == json.loads((before.path / "manifest.json").read_text())["id"]
    (before.path / ".bigfs-run").write_text("[Desktop Entry]")
    with pytest.raises(InputError, match="is not the mark of a bigfs run"):
        run(_config(), fresh=True)


_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")


def _work(path: Location) -> None:
    """Do all that runs do with a directory: commit, replace, checkpoint, drop, finish."""
    for key in ("first", "second"):
        with RunDirectory(path).open(outputs=("config.yaml",)) as directory:
            directory.write_file("config.yaml", key)
            checkpoint = directory.checkpoint_path("graph", key)
            checkpoint.mkdir(parents=True, exist_ok=True)
            (checkpoint / "state.npz").write_text("x")
            _finish(directory, "graph", key)
            _finish(directory, "spectral", key)
            directory.drop("spectral")
            directory.finish()


def _killed_at(step: int, path: Path) -> bool:
    """Do the work in a process that is gone at a step; say whether it came to its end."""
    seen = 0

    def count(event: str, details: Any) -> None:
        nonlocal seen
        writes = event == "open" and isinstance(details[1], str) and set(details[1]) & set("wxa+")
        if event in _CHANGES or writes:
            seen += 1
            if seen == step:
                os._exit(9)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads that a fork does not take along
        child = os.fork()
    if child == 0:
        try:
            sys.addaudithook(count)
            _work(path)
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9), f"step {step} ended with {code}"
    return code == 0


@pytest.mark.full
def test_a_kill_at_every_step_leaves_what_the_next_run_goes_on_from(tmp_path: Path) -> None:
    """Before every file that is written, renamed or removed, with a canary beside it all."""
    step, over = 0, False
    while not over:
        step += 1
        path = tmp_path / f"run-{step}"
        if step % 2:
            plant(path)
        over = _killed_at(step, path)
        with RunDirectory(path).open(outputs=("config.yaml",)) as directory:
            stages = dict(directory.manifest["stages"])
            assert all(name in ("graph", "spectral") for name in stages)
        if step % 2:
            check(path)
        _work(path)
        names = {".bigfs-run", "manifest.json", "config.yaml", "graph.zarr"}
        assert own(path) == names, f"step {step}"
        assert RunDirectory(path).read().is_intact("graph")
        if step % 2:
            check(path)
    assert step > 60, step


@pytest.mark.full
def test_a_bucket_that_is_gone_after_any_request(
    proxy: Proxy, lab: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kill is: nothing can be removed any more, and the next run goes on."""
    answer, step, over = proxy._next, 1, False
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 1000.0)
    while not over:
        place = lab / f"run-{step}" / "run"
        plant(place)
        limit = proxy.n_requests + step

        def answer_or_not(request: str, limit: int = limit) -> str:
            proxy.is_gone = proxy.n_requests >= limit
            return answer(request)

        monkeypatch.setenv("BIGFS_STORAGE_RETRY_SECONDS", "0.01")
        monkeypatch.setattr(objects, "HURRIED_SECONDS", 0.01)
        monkeypatch.setattr(proxy, "_next", answer_or_not)
        try:
            _work(place)
            over = True
        except StorageError:
            pass
        monkeypatch.setattr(proxy, "_next", answer)
        monkeypatch.setenv("BIGFS_STORAGE_RETRY_SECONDS", "3")
        proxy.is_gone = False
        check(place)
        if (place / "lease.json").exists():
            held = json.loads((place / "lease.json").read_text())
            (place / "lease.json").write_text(json.dumps({**held, "beat": 0.0}))
        _work(place)
        [stage] = [name for name in own(place) if name.startswith("graph-")]
        names = {".bigfs-run", "manifest.json", "config.yaml", stage}
        assert own(place) == names, f"request {step}"
        assert RunDirectory(place).read().is_intact("graph")
        check(place)
        step += 5
    assert step > 40


def test_a_new_file_does_not_remove_one_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("years of work")
    with pytest.raises(StorageError, match="File exists"), new_file(tmp_path / "a"):
        pass
    assert (tmp_path / "a").read_text() == "years of work"


# What an ingest replaces


class _Slow(Source):
    """A source during whose reading somebody else puts something at the destination."""

    uri, n_samples, n_features, dtype = "slow", 4, 2, np.dtype(np.float64)

    def __init__(self, meanwhile: Callable[[], Any]) -> None:
        self._meanwhile = meanwhile

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
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
    assert _all(tmp_path) == {"X.zarr/years": b"of work"}
    shutil.rmtree(dest)
    if not overwrite:
        with pytest.raises(InputError, match="already exists"):
            ingest(_Slow(lambda: ingest(_X, dest)), dest)
        assert [path.name for path in tmp_path.iterdir()] == ["X.zarr"]
        assert json.loads((dest / "X" / "zarr.json").read_text())["shape"] == [60, 8]


def test_a_store_that_holds_more_than_an_ingest_wrote_is_not_overwritten(place: Location) -> None:
    dest = place / "X.zarr"
    ingest(_X, dest)
    (dest / "obs").mkdir(parents=True, exist_ok=True)
    (dest / "obs" / "types").write_text("years of work")
    before = files_below(dest)
    with pytest.raises(InputError, match="X.zarr holds obs/types beside the matrix"):
        ingest(_X, dest, overwrite=True)
    assert files_below(dest) == before


def test_a_stage_of_a_run_and_a_link_are_not_overwritten(folder: Path) -> None:
    path = run(_config()).path
    before = _all(folder)
    with pytest.raises(InputError, match=r"data.zarr holds \.bigfs-stage beside the matrix"):
        ingest("s.npy", path / "data.zarr", overwrite=True)
    assert _all(folder) == before
    ingest("s.npy", "store.zarr")
    (folder / "link.zarr").symlink_to("store.zarr")
    with pytest.raises(InputError, match=r"link.zarr is a link"):
        ingest("s.npy", "link.zarr", overwrite=True)


def test_a_store_in_a_bucket_is_not_replaced_by_itself(lab: ObjectPath) -> None:
    ingest(_X, lab / "X.zarr")
    before = files_below(lab)
    with pytest.raises(InputError, match="X.zarr is what is read"):
        ingest(str(lab / "X.zarr"), lab / "X.zarr", overwrite=True, rows=10)
    assert files_below(lab) == before


def test_a_store_comes_back_if_another_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest = tmp_path / "X.zarr"
    ingest(_X, dest)
    before, rename = _all(tmp_path), Path.rename

    def fail(self: Path, target: Path) -> Path:
        if target == dest and not self.name.endswith("-replaced"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        ingest(2 * _X, dest, overwrite=True)
    assert _all(tmp_path) == before


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", ["note.txt", "X/note.txt", "figures/a.png"])
def test_files_put_into_a_stages_folder_are_refused_and_stay(
    folder: Path, fresh: bool, name: str
) -> None:
    config = _config()
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
    run(_config())
    with pytest.raises(InputError, match="which a stage of another run made"):
        run({**_config(), "run": str(folder / "runs" / "a" / "data.zarr" / "sub")})


def test_a_store_that_leads_into_the_run_directory_by_a_link_is_refused(folder: Path) -> None:
    run(_config())
    store = folder / "linked.zarr"
    store.mkdir()
    shutil.copy(folder / "runs" / "a" / "data.zarr" / "zarr.json", store)
    (store / "X").symlink_to(folder / "runs" / "a" / "data.zarr" / "X")
    with pytest.raises(ConfigError, match="lies in the run directory"):
        run({**_config(), "input": {"uri": str(store)}}, fresh=True)
    run(_config())


def test_an_empty_mark_among_files_of_others_is_no_mark(folder: Path, bare: None) -> None:
    place = folder / "runs" / "a"
    place.mkdir(parents=True)
    (place / ".bigfs-run").touch()
    (place / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="is not a bigfs run"):
        run(_config())
    assert sorted(path.name for path in place.iterdir()) == [".bigfs-run", "thesis.txt"]
