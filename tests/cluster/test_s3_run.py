"""Whole runs with input and run directory in a bucket: the same results, faults and all."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from scipy.sparse import csr_array

from bigfs import spectral_embedding
from bigfs.cli import main
from bigfs.core.errors import NumericalError, StorageError
from bigfs.pipeline import compare
from bigfs.pipeline.run import run
from bigfs.results.result import Result
from bigfs.selectors.stability import fits
from bigfs.spectral import block
from bigfs.spectral.embedding import Resume
from bigfs.store.ingest import ingest
from bigfs.store.location import as_location, files_below
from bigfs.store.objects import ObjectPath
from bigfs.store.rundir import RunDirectory
from bigfs.store.scratch import Scratch
from tests._canary import own
from tests._s3 import KEY, SECRET, Proxy
from tests.cluster._processes import REPO, scheduler, worker
from tests.spectral.test_chebyshev import neighbor_graph

pytestmark = pytest.mark.cluster

_Y = np.repeat([0, 1, 2], 200)
_X = np.random.default_rng(5).normal(size=(600, 12)).astype(np.float32)
_X[:, :3] += 4 * np.eye(3, dtype=np.float32)[_Y]

_PROGRAM = (sys.executable, "-m", "bigfs.cli", "run")
# Notes what a worker opens for writing, and everything it opens in the client's folder.
_AUDIT = """
import os, sys
sys.opened = []
def note(event, details):
    if event == "open" and isinstance(details[0], (str, bytes)):
        path, mode, flags = details
        writes = any(c in (mode or "") for c in "wax+") or bool((flags or 0) & (1 | 2 | 64))
        sys.opened.append((os.path.abspath(os.fsdecode(path)), writes))
    elif event in ("os.mkdir", "os.rename", "os.symlink", "os.link", "tempfile.mkdtemp"):
        sys.opened.append((os.path.abspath(os.fsdecode(details[0])), True))
sys.addaudithook(note)
"""


def _config(root: str | Path, method: str, **changes: Any) -> dict[str, Any]:
    """Return a run with its data below one root: MCFS of a file, NDFS of a store in four blocks."""
    return {
        "run": f"{root}/runs/{method}",
        "input": {"uri": f"{root}/{'X.npy' if method == 'mcfs' else 'X.zarr'}"},
        "method": method,
        "n_features_to_select": 3,
        method: {"n_clusters": 3},
        "spectral": {"solver": "chebyshev"},
        "memory_limit": "2GiB",
        **changes,
    }


def _place_data(root: str | Path, folder: Path) -> None:
    for name, values in (("X", _X), ("y", _Y)):
        np.save(folder / f"{name}.npy", values)
        if str(root) != str(folder):
            as_location(f"{root}/{name}.npy").write_bytes((folder / f"{name}.npy").read_bytes())
    np.savez(folder / "set.npz", X=_X, y=_Y)
    if str(root) != str(folder):
        as_location(f"{root}/set.npz").write_bytes((folder / "set.npz").read_bytes())
    ingest(_X, f"{root}/X.zarr", rows=150)


def _yaml(folder: Path, config: dict[str, Any]) -> str:
    (folder / "run.yaml").write_text(json.dumps(config))
    return str(folder / "run.yaml")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Results of the runs on a local disk, with threads."""
    folder = tmp_path_factory.mktemp("local")
    _place_data(folder, folder)
    return {method: run(_config(folder, method)) for method in ("mcfs", "ndfs")}


@pytest.fixture
def lab(bucket: str, tmp_path: Path) -> ObjectPath:
    """A place in a bucket with the data."""
    place = as_location(f"{bucket}/lab")
    assert isinstance(place, ObjectPath)
    _place_data(place, tmp_path)
    return place


@pytest.fixture
def proxy(s3_endpoint: str, lab: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the server for what follows."""
    with Proxy(s3_endpoint) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.endpoint)
        yield running


def _assert_same(result: Result, expected: Result) -> None:
    assert result.ranking.tolist() == expected.ranking.tolist()
    assert result.scores.tobytes() == expected.scores.tobytes()


def _assert_tidy(directory: ObjectPath) -> None:
    """Nothing but the finished stages that the manifest names, and the files beside them."""
    manifest = json.loads((directory / "manifest.json").read_text())
    named = {record["folder"] for record in manifest["stages"].values()}
    assert own(directory) == named | {".bigfs-run", "manifest.json", "config.yaml", "features.csv"}
    assert manifest["status"] == "done"


def _assert_no_credentials(place: ObjectPath, *texts: str) -> None:
    stored = [(place / name).read_bytes() for name in files_below(place)]
    for secret in (KEY.encode(), SECRET.encode()):
        assert not any(secret in content for content in stored)
        assert not any(secret in text.encode() for text in texts)


def test_workers_that_share_nothing_but_the_bucket(
    lab: ObjectPath,
    tmp_path: Path,
    local: dict[str, Result],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    client_folder = tmp_path / "client"
    client_folder.mkdir()
    monkeypatch.chdir(client_folder)
    (tmp_path / "audit.py").write_text(_AUDIT)
    folders = {name: tmp_path / "elsewhere" / name for name in ("one", "two")}
    with ExitStack() as running:
        file = running.enter_context(scheduler(tmp_path))
        for name, folder in folders.items():
            folder.mkdir(parents=True)
            settings = {"TMPDIR": str(folder), "HOME": str(folder), "PYTHONPATH": str(REPO)}
            settings["PYTHONDONTWRITEBYTECODE"] = "1"
            running.enter_context(
                worker(
                    file, folder, "--preload", str(tmp_path / "audit.py"),
                    name=name, env=settings, cwd=folder,
                )
            )  # fmt: skip
        from distributed import Client

        connected = running.enter_context(Client(scheduler_file=str(file)))
        connected.wait_for_workers(2, timeout=60)
        for method, expected in local.items():
            result = run(_config(lab, method), scheduler=str(file))
            _assert_same(result, expected)
            _assert_tidy(lab / "runs" / method)
        opened = connected.run(lambda: sys.opened)
    assert len(opened) == 2
    for folder, seen in zip(folders.values(), opened.values(), strict=False):
        elsewhere = tuple(str(place) for place in (tmp_path / "elsewhere", "/dev", "/proc/self"))
        written = {path for path, writes in seen if writes and not path.startswith(elsewhere)}
        assert not [path for path in written if "__pycache__" not in path]  # numba's
        assert not [path for path, _ in seen if path.startswith(str(client_folder))]
        written = [path.name for path in folder.rglob("*") if path.is_file()]
        assert not [name for name in written if name.endswith((".npy", ".npz", ".zarr"))]
    assert not list(client_folder.iterdir())
    logs = [path.read_text() for path in tmp_path.rglob("*.log")]
    _assert_no_credentials(lab, caplog.text, *logs)


def test_counts_in_a_bucket(
    proxy: Proxy, lab: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sparse store and CSR blocks: the same bits, also where every twentieth request fails."""
    counts = csr_array(np.random.default_rng(0).poisson(0.4, (600, 40)))
    monkeypatch.setattr("bigfs.stages.stage.is_large", lambda shape: True)  # never dense

    def result_at(root: Path | ObjectPath) -> Result:
        ingest(counts, f"{root}/counts.zarr", rows=150)
        changes = {"preprocess": "normalize_log1p", "graph": {"representation": "pca:8"}}
        return run(_config(root, "mcfs", input={"uri": f"{root}/counts.zarr"}, **changes))

    expected = result_at(tmp_path)
    proxy.fail_every = 20
    _assert_same(result_at(lab), expected)
    assert proxy.n_failed >= 10
    proxy.fail_every = 0
    _assert_tidy(lab / "runs" / "mcfs")


def test_storage_that_fails_every_twentieth_request(
    proxy: Proxy, lab: ObjectPath, local: dict[str, Result]
) -> None:
    proxy.fail_every = 20
    _assert_same(run(_config(lab, "mcfs")), local["mcfs"])
    assert proxy.n_failed >= 10
    proxy.fail_every = 0
    _assert_tidy(lab / "runs" / "mcfs")


def test_answers_that_are_late_cut_lost_or_damaged_change_no_bit(
    proxy: Proxy, lab: ObjectPath, local: dict[str, Result]
) -> None:
    proxy.failures = ("flip", "half", "slow", "flip", "lost", "429", "flip", "503")
    proxy.fail_every = 9
    _assert_same(run(_config(lab, "ndfs")), local["ndfs"])
    assert proxy.n_failed > 24 and proxy.n_flipped > 5
    proxy.fail_every = 0
    again = run(_config(lab, "ndfs"))
    _assert_same(again, local["ndfs"])
    _assert_tidy(lab / "runs" / "ndfs")


def test_storage_that_is_gone_in_the_middle(
    proxy: Proxy,
    lab: ObjectPath,
    tmp_path: Path,
    local: dict[str, Result],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BIGFS_STORAGE_RETRY_SECONDS", "1")
    proxy.gone_after = "/embedding/c.0"
    pipeline = _yaml(tmp_path, _config(lab, "mcfs"))
    job = subprocess.run(
        [*_PROGRAM, pipeline], cwd=REPO, capture_output=True, text=True, timeout=120
    )
    assert job.returncode == 4, job.stderr
    output = job.stderr
    assert "the server does not answer. Finished stages are kept: run again" in output
    assert "Traceback" not in output and KEY not in output and SECRET not in output
    proxy.is_gone, proxy.gone_after = False, ""
    before = RunDirectory(lab / "runs" / "mcfs").read().manifest["stages"]
    assert set(before) == {"data", "graph"}
    _assert_same(run(_config(lab, "mcfs")), local["mcfs"])
    after = RunDirectory(lab / "runs" / "mcfs").read().manifest["stages"]
    assert all(after[name] == before[name] for name in before)
    _assert_tidy(lab / "runs" / "mcfs")


def test_eigenvectors_by_files_in_a_bucket_go_on_after_a_failure(
    proxy: Proxy, lab: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "MULTIPLICATIONS", 0)
    monkeypatch.setattr(block, "BLOCK_VALUES", 2**15)
    monkeypatch.setenv("BIGFS_STORAGE_RETRY_SECONDS", "0.5")
    W = neighbor_graph(5000)
    options: dict[str, Any] = {"solver": "chebyshev", "tol": 1e-3, "chunk_rows": 2500}
    expected = spectral_embedding(W, 2, **options)
    options |= {"resume": Resume(checkpoint=lab / "checkpoint")}
    proxy.gone_after = "/panel-000004-"
    with pytest.raises(StorageError, match="the server does not answer"):
        spectral_embedding(W, 2, scratch=Scratch(lab / "first"), **options)
    proxy.is_gone, proxy.gone_after = False, ""
    before = proxy.n_requests
    embedding = spectral_embedding(W, 2, scratch=Scratch(lab / "second"), **options)
    assert not [entry for entry in proxy.log[before:] if "PUT" in entry and "/ordered-" in entry]
    assert embedding.eigenvalues.tobytes() == expected.eigenvalues.tobytes()
    assert embedding.embedding[:].tobytes() == expected.embedding[:].tobytes()
    assert not (lab / "checkpoint").exists()


def test_a_job_that_is_killed_goes_on(
    proxy: Proxy, lab: ObjectPath, tmp_path: Path, local: dict[str, Result]
) -> None:
    pipeline = _yaml(tmp_path, _config(lab, "ndfs"))
    directory = lab / "runs" / "ndfs"
    # The result's first checkpoint waits for an answer while the job is killed.
    proxy.hold = "/state.npz"
    with (tmp_path / "job.log").open("wb") as log:
        job = subprocess.Popen([*_PROGRAM, pipeline], cwd=REPO, stdout=log, stderr=log)
    try:
        assert proxy.held.wait(60), (tmp_path / "job.log").read_text()
    finally:
        job.send_signal(signal.SIGKILL)
        job.wait(timeout=60)
        proxy.hold = ""
    before = RunDirectory(directory).read().manifest["stages"]
    assert set(before) == {"graph", "spectral"}
    assert (directory / "lease.json").exists()
    assert [path for path in directory.glob("result-*.zarr")]
    _assert_same(run(_config(lab, "ndfs")), local["ndfs"])
    after = RunDirectory(directory).read().manifest["stages"]
    assert all(after[name] == before[name] for name in before)
    _assert_tidy(directory)


def test_a_job_is_told_to_end_while_storage_is_gone(
    proxy: Proxy, lab: ObjectPath, tmp_path: Path
) -> None:
    pipeline = _yaml(tmp_path, _config(lab, "mcfs"))
    proxy.gone_after = "/embedding/c.0"
    with (tmp_path / "job.log").open("wb") as log:
        job = subprocess.Popen([*_PROGRAM, pipeline], cwd=REPO, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not proxy.is_gone:
            assert time.monotonic() < deadline, (tmp_path / "job.log").read_text()
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        assert job.wait(30) == 130
    finally:
        job.kill()
        job.wait(timeout=60)
    assert "Traceback" not in (tmp_path / "job.log").read_text()


def test_two_runs_at_once(
    lab: ObjectPath, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = _yaml(tmp_path, _config(lab, "mcfs"))
    with RunDirectory(lab / "runs" / "mcfs").open():
        with pytest.raises(SystemExit) as end:
            main(["run", pipeline])
        assert end.value.code == 75
        assert "another run holds this directory" in capsys.readouterr().err


def test_commands_take_addresses_in_a_bucket(
    lab: ObjectPath,
    tmp_path: Path,
    local: dict[str, Result],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def call(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main([*arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(end.value.code or 0), captured.out + captured.err

    code, output = call("ingest", f"{lab}/X.npy", f"{lab}/X.zarr", "--overwrite")
    assert code == 0 and f"{lab}/X.zarr: 600 samples x 12 features" in output
    config = _config(lab, "mcfs", input={"uri": f"{lab}/X.zarr"})
    assert call("run", _yaml(tmp_path, config))[0] == 0
    assert "data" not in RunDirectory(lab / "runs" / "mcfs").read().manifest["stages"]
    code, output = call("inspect", f"{lab}/runs/mcfs")
    assert code == 0 and f"Result: {lab}/runs/mcfs" in output
    code, output = call("inspect", f"{lab}/X.zarr", "--verify")
    assert code == 0 and "all checksums match" in output
    evaluate = ("evaluate", f"{lab}/runs/mcfs", "--labels", f"{lab}/y.npy")
    code, output = call(*evaluate, "--n-repetitions", "2")
    assert code == 0 and "1-NN error" in output
    for key, uri in (
        ("run", "s3://user:p4ssw0rd@lab/runs"),
        ("input.uri", "s3://lab/X.npy?token=p4ssw0rd"),
    ):
        code, output = call("run", _yaml(tmp_path, config), "--set", f"{key}={uri}")
        assert code == 2 and "p4ssw0rd" not in output and "s3://lab/" in output
    (lab / "X.zarr" / "X" / "c" / "0" / "0").unlink()
    code, output = call("run", _yaml(tmp_path, config), "--fresh")
    assert code == 2 and "X/c/0/0 is missing (1 of 1)" in output
    _assert_no_credentials(lab)


def test_fits_on_samples_are_kept_in_a_bucket(
    lab: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _place_data(tmp_path, tmp_path)
    stability = {"n_pairs": 2, "sample_size": 100}
    changes = {"stability": stability, "n_features_to_select": {"auto": "stability"}}
    for name, quick in (("beside", False), ("quick", True)):
        expected, actual = (
            {**_config(root, "ndfs", **changes, quick=quick), "run": f"{root}/runs/{name}"}
            for root in (tmp_path, lab)
        )
        if quick:
            fitted, done = fits._fitted, []

            def until_the_third(*inputs: Any, then: Any = fitted, done: Any = done) -> Any:
                done.append(1)
                if len(done) == 3:
                    raise NumericalError("stop")
                return then(*inputs)

            monkeypatch.setattr(fits, "_fitted", until_the_third)
            with dask.config.set(scheduler="synchronous"), pytest.raises(NumericalError):
                run(actual)
            kept = [name for name in files_below(lab / "runs" / name) if "fit-" in name]
            assert len(kept) == 2
        ours, theirs = run(actual), run(expected)
        if quick:
            assert len(done) == 3 + 2 + 4, "of four fits two were there"
        _assert_same(ours, theirs)
        assert ours.features_csv() == theirs.features_csv()
        assert ours.stability_lines == theirs.stability_lines
        _assert_tidy(lab / "runs" / name)


def test_comparisons_in_a_bucket(lab: ObjectPath, tmp_path: Path) -> None:
    rows = {"max_variance": {"nmi": [80.0]}}
    results = []
    _place_data(tmp_path, tmp_path)
    for root in (tmp_path, lab):
        methods = compare(
            {
                "run": f"{root}/runs/methods",
                "input": {"uri": f"{root}/X.zarr"},
                "methods": ["max_variance", "laplacian_score"],
                "n_features_to_select": [2, 3],
                "evaluate": {"labels": f"{root}/y.npy", "n_repetitions": 2},
            }
        )
        table = compare(
            {
                "run": f"{root}/runs/paper",
                "title": "a paper",
                "protocol": "draws",
                "data": str(root),
                "scores": ["nmi"],
                "n_features_to_select": [2],
                "n_draws": 2,
                "n_init": 2,
                "methods": ["max_variance", "laplacian_score"],
                "sets": [{"name": "ours", "uri": "set.npz", "n_classes": [2, 3], "paper": rows}],
            }
        )
        scores = [(row.name, row.n_features, row.scores) for row in methods.rows]
        results.append((scores, [(row.method, row.case, row.value) for row in table.rows]))
        for name in ("table.txt", "curves.png"):
            assert (root / "runs" / "methods" / name).stat().st_size > 0
    assert results[0] == results[1]
    assert not list(Path().glob("s3:*"))


def test_no_secret_is_written_or_shown(
    proxy: Proxy,
    lab: ObjectPath,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys and tokens of the environment and of addresses: in files, logs, reports and errors."""
    secrets = [KEY, SECRET, "canary-user", "canary-password", "canary-query"]
    for name in ("API_TOKEN", "DATABASE_URL", "DASK_DISTRIBUTED__CANARY"):
        secrets.append(f"canary-of-{name}")
        monkeypatch.setenv(name, secrets[-1])
    monkeypatch.chdir(tmp_path)
    caplog.set_level("DEBUG", logger="bigfs")
    gap = np.where(np.arange(12) == 3, np.nan, _X)
    np.save("gap.npy", gap)
    (lab / "gap.npy").write_bytes(Path("gap.npy").read_bytes())
    shown = []

    def call(expected: int, *arguments: str) -> None:
        with pytest.raises(SystemExit) as end:
            main([*arguments])
        captured = capfd.readouterr()
        shown.append(captured.out + captured.err)
        assert int(end.value.code or 0) == expected, shown[-1]

    base = {"method": "max_variance", "n_features_to_select": 3, "input": {"uri": f"{lab}/X.npy"}}
    for place in (f"{lab}/runs/a", "runs/a"):
        pipeline = _yaml(tmp_path, {**base, "run": place, "output": {"metrics": "a.prom"}})
        call(0, "plan", pipeline)
        workers = ("cluster.n_workers=1", "--performance-report", "performance.html")
        call(0, "run", pipeline, *(("--set", *workers) if place == "runs/a" else ()))
        call(0, "inspect", place)
        call(0, "report", place, "-o", f"{len(shown)}.html")
        call(0, "export", place, f"{len(shown)}.csv")
        beside = ("--set", f"run={place}-2", "--set")
        for uri in (f"{lab}/gap.npy", f"{lab}/none.npy", f"{lab}/X.npy?token=canary-query"):
            call(2, "run", pipeline, *beside, f"input.uri={uri}")
        call(2, "run", pipeline, *beside, "input.uri=s3://canary-user:canary-password@lab/X.npy")
        # The answer of the storage holds the secret, too.
        proxy.failures, proxy.fail_every = ("403 SignatureDoesNotMatch",), 1
        call(4, "run", pipeline, *beside, f"input.uri={lab}/X.zarr")
        call(4, "inspect", f"{lab}/X.zarr")
        proxy.fail_every = 0
    texts = [*shown, caplog.text]
    stored = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    stored |= {name: (lab / name).read_bytes() for name in files_below(lab)}
    assert {"a.prom", "performance.html"} <= {Path(name).name for name in stored}
    for secret in secrets:
        assert not [text for text in texts if secret in text], secret
        assert not [name for name, content in stored.items() if secret.encode() in content], secret
