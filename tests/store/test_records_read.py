"""Names that are read from files, and kills: nothing elsewhere is touched."""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.core.errors import InputError, StorageError
from bigfs.graph.knn import KNNGraph
from bigfs.pipeline.run import run
from bigfs.results.result import open_result
from bigfs.spectral.block import Record
from bigfs.store import buckets, lease
from bigfs.store.location import Location, as_location, files_below
from bigfs.store.objects import ObjectPath
from bigfs.store.retention import finish_series, followed
from bigfs.store.rundir import RunDirectory
from tests._canary import check, own, plant
from tests._s3 import Proxy
from tests.store._folder import all_files, finish, settings

# Each of these plants what it looks after.
pytestmark = pytest.mark.usefixtures("bare")

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
@pytest.mark.parametrize("kind", ["folder", pytest.param("bucket", marks=pytest.mark.full)])
def test_a_manifest_that_names_what_is_elsewhere_is_damaged(
    folder: Path, request: pytest.FixtureRequest, value: str, kind: str
) -> None:
    root: Location = folder
    if kind == "bucket":
        root = as_location(f"{request.getfixturevalue('bucket')}/lab")
    config = settings(run=f"{root}/runs/a", input={"uri": "sklearn:iris"})
    result = run(config)
    plant(result.path)
    for name in ("victim", "vic.zarr", "vic", "list-000000000000.zarr", "point", "runs/x"):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "years").write_text("of work")
    _spoil(result.path, _SPOILED[value])
    before = {name: stamp for name, (stamp, _) in files_below(root).items()}
    with pytest.raises(InputError, match="not a manifest this bigfs can read.*damaged") as caught:
        run(config)
    assert value in str(caught.value) and caught.value.exit_code == 2
    with pytest.raises(InputError, match="damaged"):
        open_result(result.path)
    assert {name: stamp for name, (stamp, _) in files_below(root).items()} == before
    again = run(config, fresh=True)
    np.testing.assert_array_equal(again.scores, result.scores)
    check(result.path)
    for name in ("victim", "vic.zarr", "vic", "list-000000000000.zarr", "point", "runs/x"):
        assert (root / name / "years").read_text() == "of work"


def test_a_manifest_of_another_run_is_refused(folder: Path) -> None:
    run(settings(run="runs/b"))
    run(settings())
    shutil.copy("runs/b/manifest.json", "runs/a/manifest.json")
    before = all_files(folder)
    with pytest.raises(InputError, match=r"manifest.json is from another run"):
        run(settings())
    assert all_files(folder) == before
    (folder / "runs" / "a" / "manifest.json").write_text('{"manifest_version": 3}')
    with pytest.raises(InputError, match=r"manifest.json is not a manifest"):
        run(settings())
    run(settings(), fresh=True)
    [aside] = (folder / "runs" / "a").glob("manifest.json.damaged-*")
    assert aside.read_text() == '{"manifest_version": 3}'


@pytest.mark.parametrize("name", ["graph.zarr", "attempts", "checkpoints", "checkpoints/result-k"])
def test_links_are_not_followed(folder: Path, name: str) -> None:
    config = settings(method="mcfs", mcfs={"n_clusters": 3})
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
    before = all_files(victim)
    with pytest.raises(InputError, match=f"{name} is a link"):
        run(config)
    assert all_files(victim) == before
    if name in ("attempts", "checkpoints"):
        with pytest.raises(InputError, match=f"{name} is a link"):
            run(config, fresh=True)
    else:
        run(config, fresh=True)
    assert all_files(victim) == before and (place / name).is_symlink()


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
    run(
        settings(run=f"{folder}/nightly-{{date}}", date="2026-11-01", input={"uri": "sklearn:iris"})
    )
    assert latest.read_text() == "my notes"
    latest.unlink()
    assert finish_series(folder / "nightly-2026-11-01", "nightly-{date}", 1) == []
    assert followed(latest) == folder / "nightly-2026-11-01"


def test_names_in_the_records_of_stages_are_plain(tmp_path: Path) -> None:
    stored = {"arrays": ["../../indices", "distances"]}
    with pytest.raises(InputError, match=r"damaged: it names '\.\./\.\./indices'"):
        KNNGraph.open(tmp_path, stored)


@pytest.mark.parametrize("place", ["folder", "z", "labels"])
def test_a_checkpoint_that_names_what_is_elsewhere_does_not_count(
    tmp_path: Path, place: str
) -> None:
    """A run directory that was moved has such, too: the iteration begins anew."""
    checkpoint, victim = tmp_path / "checkpoint", tmp_path / "victim"
    (checkpoint / "graph").mkdir(parents=True)
    victim.mkdir()
    (victim / "z-000000-00000-0000000000000000").write_text("years of work")
    folders = {name: str(checkpoint / "graph") for name in ("folder", "z", "labels")}

    def write() -> None:
        graph = {"labels": folders["labels"], "in_order": ""}
        block = {"z": {"folder": folders["z"]}, "filtering": None}
        state = {"folder": folders["folder"], "graph": graph, "block": block, "row_bytes": 64}
        (checkpoint / "spectral.json").write_text(json.dumps(state))

    write()
    assert Record(checkpoint, 64).state is not None
    for elsewhere in (victim, checkpoint / ".." / "victim"):
        folders[place] = str(elsewhere)
        write()
        assert Record(checkpoint, 64).state is None


# Kills


def test_a_mark_that_was_cut_off_is_written_again(folder: Path) -> None:
    before = run(settings())
    (before.path / ".bigfs-run").write_text("")
    after = run(settings())
    assert after.stages == before.stages
    record = json.loads((before.path / ".bigfs-run").read_text())
    assert record["id"] == json.loads((before.path / "manifest.json").read_text())["id"]


def test_a_mark_that_was_lost_makes_a_folder_somebody_elses(folder: Path) -> None:
    before = run(settings())
    (before.path / ".bigfs-run").unlink()
    with pytest.raises(InputError, match="is not a bigfs run: it has no .bigfs-run"):
        run(settings(), fresh=True)
    (before.path / ".bigfs-run").write_text("[Desktop Entry]")
    with pytest.raises(InputError, match="is not the marker file of a bigfs run"):
        run(settings(), fresh=True)


def test_a_manifest_that_was_lost_is_named_once(folder: Path) -> None:
    before = run(settings())
    (before.path / "manifest.json").unlink()
    files = all_files(before.path)
    with pytest.raises(InputError, match="a: its manifest.json, .* is lost. Start over with"):
        run(settings())
    assert all_files(before.path) == files
    np.testing.assert_array_equal(run(settings(), fresh=True).scores, before.scores)
    kept = {name.partition(".damaged-")[0] for name in all_files(before.path) if "damaged" in name}
    assert kept == {"config.yaml", "features.csv"}
    assert run(settings()).stages == open_result(before.path).stages


_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")


def _work(path: Location) -> None:
    """Do all that runs do with a directory: commit, replace, checkpoint, drop, finish."""
    for key in ("first", "second"):
        with RunDirectory(path).open(outputs=("config.yaml",)) as directory:
            directory.write_file("config.yaml", key)
            checkpoint = directory.checkpoint_path("graph", key)
            checkpoint.mkdir(parents=True, exist_ok=True)
            (checkpoint / "state.npz").write_text("x")
            finish(directory, "graph", key)
            finish(directory, "spectral", key)
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
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.2)  # a dead lease is watched for this long
    while not over:
        place = lab / f"run-{step}" / "run"
        plant(place)
        limit = proxy.n_requests + step

        def answer_or_not(request: str, limit: int = limit) -> str:
            proxy.is_gone = proxy.n_requests >= limit
            return answer(request)

        monkeypatch.setenv("BIGFS_STORAGE_RETRY_SECONDS", "0.01")
        monkeypatch.setattr(buckets, "BRIEF_RETRY_SECONDS", 0.01)
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
