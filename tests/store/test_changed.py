"""Inputs that change while they are read, or between two runs: nothing of a mixture is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr

import bigfs
from bigfs import MaxVariance
from bigfs.core.errors import InputError
from bigfs.graph import build, knn_graph
from bigfs.plan.planning import plan_pipeline
from bigfs.selectors.one_pass.strategies import Variances
from bigfs.selectors.registry import load_config
from bigfs.stages.stage import Inputs
from bigfs.store.fingerprint import fingerprint
from bigfs.store.ingest import ingest
from bigfs.store.source import Source, open_matrix

CHANGED = "changed while it was read.*Run again"


def _overwrite(path: Path, content: bytes, keep_time: bool = True) -> None:
    """Write other bytes into the end of a file of the same size, and set its time back."""
    time.sleep(0.02)  # the system's clock for files goes by steps of a few milliseconds
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(-len(content), os.SEEK_END)
        file.write(content)
    assert path.stat().st_size == status.st_size
    if keep_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _matrix(path: Path, rows: int = 200) -> np.ndarray:
    X = np.random.default_rng(0).normal(size=(rows, 20)) * np.linspace(1, 2, 20)
    np.save(path, X)
    return X


def _change_while_it_runs(command: list[str], path: Path, chunks: str, keep_time: bool) -> Any:
    """Stop a process once it wrote a chunk, overwrite its input with zeros, and let it go on."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-m", "bigfs.cli", *command],
        stdout=pipe, stderr=pipe, text=True, cwd=path.parent, env=environment,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not list(path.parent.glob(chunks)):
            assert process.poll() is None, process.communicate(timeout=60)
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGSTOP)
        assert list(path.parent.glob(chunks)), "the ingest was over already"
        _overwrite(path, bytes(path.stat().st_size - 128), keep_time)
        process.send_signal(signal.SIGCONT)
        output = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait(timeout=60)
    return process.returncode, *output


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A .npy of 200 MB: chunks enough to stop between two of them."""
    block = np.random.default_rng(0).normal(size=(10_000, 50)).astype(np.float32)
    np.save(tmp_path / "X.npy", np.tile(block, (100, 1)))
    return tmp_path / "X.npy"


@pytest.mark.parametrize("keep_time", [False, True])
def test_a_file_overwritten_while_it_is_ingested_is_refused(large: Path, keep_time: bool) -> None:
    command = ["ingest", "X.npy", "out.zarr"]
    chunks = "out.zarr.partial-*/X/c/*/0"
    code, out, message = _change_while_it_runs(command, large, chunks, keep_time)
    assert (code, out) == (2, ""), message
    assert "X.npy changed while it was read" in message.splitlines()[-1]
    assert [path.name for path in large.parent.iterdir()] == ["X.npy"]


@pytest.mark.full
@pytest.mark.parametrize("keep_time", [False, True])
def test_a_file_overwritten_while_a_run_brings_it_in_is_refused(
    large: Path, keep_time: bool
) -> None:
    (large.parent / "p.yaml").write_text(
        "run: out\ninput: {uri: X.npy}\nmethod: max_variance\nn_features_to_select: 2\n"
    )
    chunks = "out/attempts/*/data.zarr.partial-*/X/c/*/0"
    code, out, message = _change_while_it_runs(["run", "p.yaml"], large, chunks, keep_time)
    assert (code, out) == (2, ""), message
    assert "X.npy changed while it was read" in message.splitlines()[-1]
    assert sorted(path.name for path in large.parent.iterdir()) == ["X.npy", "p.yaml"]


@pytest.mark.parametrize("name", ["X.npy", "X.csv", "X.npz", "X.zarr"])
def test_a_change_between_opening_and_reading_is_seen(tmp_path: Path, name: str) -> None:
    X = np.round(np.random.default_rng(0).normal(size=(50, 3)), 2) + 10
    path = tmp_path / name
    if name == "X.npy":
        np.save(path, X)
    elif name == "X.csv":
        np.savetxt(path, X, delimiter=",", header="a,b,c", comments="")
    elif name == "X.npz":
        np.savez(path, X=X)
    else:
        zarr.create_array(store=str(path), data=X, chunks=(50, 3))
    source = open_matrix(path)
    changed = path
    if path.is_dir():  # of a folder, only what is in it
        changed = path / "zarr.json"
        source.begin()
    content = changed.read_bytes()
    _overwrite(changed, content[-9:])  # the same bytes: only the system's own time tells
    with pytest.raises(InputError, match=f"{name} {CHANGED}"):
        ingest(source, tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()
    ingest(path, tmp_path / "out.zarr")


def test_what_reading_a_changed_file_ends_with_is_the_change(tmp_path: Path) -> None:
    X = _matrix(tmp_path / "X.npy")
    source = open_matrix(tmp_path / "X.npy")
    _overwrite(tmp_path / "X.npy", np.full(20, np.nan).tobytes())
    with pytest.raises(InputError, match=CHANGED):
        ingest(source, tmp_path / "out.zarr")
    source = open_matrix(tmp_path / "X.npy")
    os.truncate(tmp_path / "X.npy", X.nbytes // 2)
    with pytest.raises(InputError, match=CHANGED):
        ingest(source, tmp_path / "out.zarr")
    (tmp_path / "X.npy").unlink()
    with pytest.raises(InputError, match=CHANGED):
        source.check_unchanged()


class _TwoFaced(Source):
    """Rows that are others when they are read again."""

    uri, n_samples, n_features, dtype = "rows", 100, 2, np.dtype(float)

    def __init__(self, again: np.ndarray) -> None:
        self._reads = iter([np.arange(200.0).reshape(100, 2), again])

    def iter_rows(self, rows: int) -> Iterator[np.ndarray]:
        X = next(self._reads)
        for start in range(0, len(X), 30):
            yield X[start : start + 30]


@pytest.mark.parametrize("change", [0.0, 1e-13])
def test_rows_that_are_read_twice_are_compared(tmp_path: Path, change: float) -> None:
    again = np.arange(200.0).reshape(100, 2)
    again[77, 1] += change
    if change:
        with pytest.raises(InputError, match=f"rows {CHANGED}"):
            ingest(_TwoFaced(again), tmp_path / "out.zarr", missing="mean")
        assert not (tmp_path / "out.zarr").exists()
    else:
        ingest(_TwoFaced(again), tmp_path / "out.zarr", missing="mean")


def _do_after_scoring(patch: pytest.MonkeyPatch, change: Callable[[Inputs], object]) -> None:
    """Have the variances' strategy change something once it has read the data."""
    score = Variances.run

    def scoring(self: Variances, inputs: Inputs, out: Any) -> Any:
        actual = score(self, inputs, out)
        change(inputs)
        return actual

    patch.setattr(Variances, "run", scoring)


def test_a_file_that_changes_while_it_is_fitted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _matrix(tmp_path / "X.npy")
    with monkeypatch.context() as patch:
        _do_after_scoring(
            patch, lambda inputs: _overwrite(Path(inputs.blocks.source.uri), bytes(800))
        )
        for X in (str(tmp_path / "X.npy"), tmp_path / "X.npy", open_matrix(tmp_path / "X.npy")):
            selector = MaxVariance(n_features_to_select=2)
            with pytest.raises(InputError, match=CHANGED):
                selector.fit(X)
            assert not hasattr(selector, "scores_")
    MaxVariance(n_features_to_select=2).fit(tmp_path / "X.npy")


def test_a_file_that_changes_while_its_neighbors_are_searched_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _matrix(tmp_path / "X.npy")
    original = build.plan_partitions

    def planning(*arguments: Any, **options: Any) -> Any:
        _overwrite(tmp_path / "X.npy", bytes(800))
        return original(*arguments, **options)

    monkeypatch.setattr(build, "plan_partitions", planning)
    with pytest.raises(InputError, match=CHANGED):
        knn_graph(tmp_path / "X.npy", 5)


def _settings(folder: Path, uri: Path) -> dict[str, Any]:
    return {
        "run": str(folder / "run"), "input": {"uri": str(uri)}, "method": "max_variance",
        "n_features_to_select": 2,
    }  # fmt: skip


def test_a_store_that_is_replaced_while_a_run_reads_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: None
) -> None:
    X = _matrix(tmp_path / "X.npy")
    store = tmp_path / "X.zarr"
    ingest(X, store)
    with monkeypatch.context() as patch:
        _do_after_scoring(patch, lambda inputs: ingest(X[:, ::-1], store, overwrite=True))
        with pytest.raises(InputError, match=f"X.zarr {CHANGED}"):
            bigfs.run(_settings(tmp_path, store))
    assert not (tmp_path / "run").exists()
    assert bigfs.run(_settings(tmp_path, store)).ranking[0] == X[:, ::-1].var(axis=0).argmax()


def test_other_content_of_the_same_size_and_time_is_redone(tmp_path: Path) -> None:
    path = tmp_path / "X.npy"
    X = _matrix(path)
    assert bigfs.run(_settings(tmp_path, path)).ranking[0] == X.var(axis=0).argmax()
    before = path.stat()
    X[:, 3] *= 10
    _overwrite(path, X.tobytes())
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert bigfs.run(_settings(tmp_path, path)).ranking[0] == 3


@pytest.mark.parametrize("size", [1, 1000, 2**20, 2**20 + 1, 5 * 10**7])
def test_a_fingerprint_samples_a_file_from_its_first_byte_to_its_last(
    tmp_path: Path, size: int
) -> None:
    path = tmp_path / "X.npy"
    with path.open("wb") as file:
        file.truncate(size)
    os.utime(path, ns=(7, 7))
    first = fingerprint(str(path))
    assert fingerprint(str(path)) == first
    seen = {first}
    for position in {0, (size - 2**16) // 15 * 7 + 9 if size > 2**20 else size // 2, size - 1}:
        with path.open("r+b") as file:
            file.seek(position)
            file.write(b"x")
        os.utime(path, ns=(7, 7))
        seen.add(fingerprint(str(path)))
        with path.open("r+b") as file:
            file.seek(position)
            file.write(b"\0")
        os.utime(path, ns=(7, 7))
        assert fingerprint(str(path)) == first, "the time of the last change is no part of it"
    assert len(seen) == 1 + len({0, size // 2, size - 1})


def test_a_fingerprint_reads_little(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for i in range(300):
        with (tmp_path / "folder" / f"{i:03}").open("wb") as file:
            file.truncate(10**6)
    with (tmp_path / "X.npy").open("wb") as file:
        file.truncate(10**10)

    def bytes_read() -> int:
        words = Path("/proc/self/io").read_text().split()
        return int(words[words.index("rchar:") + 1])

    for name, most in (("folder", 4 * 2**20), ("X.npy", 2**20)):
        before = bytes_read()
        fingerprint(str(tmp_path / name))
        assert most - 2**17 < bytes_read() - before < most + 2**17


@pytest.mark.full
@pytest.mark.parametrize("form", ["npy", "csv", "parquet", "zarr", "h5", "nc"])
def test_a_plan_reads_headers_only(form: str, tmp_path: Path) -> None:
    """Several files of 8 MB: of text a megabyte of each, of all others what tells the shape.

    Where the first rows decide the preprocessing, a block of the first file is read besides.
    """
    X = np.random.default_rng(0).normal(size=(10_000, 10, 10))
    uri: Any = [str(tmp_path / f"{i}.{form}") for i in range(3)]
    settings: dict[str, Any] = {"features": 2} if form in ("zarr", "h5", "nc") else {}
    for place in uri:
        if form == "npy":
            np.save(place, X.reshape(10**5, 10))
        elif form in ("csv", "parquet"):
            frame = pd.DataFrame(X.reshape(10**5, 10)).add_prefix("x")
            getattr(frame, f"to_{form}")(place, index=False)
        elif form == "zarr":
            zarr.create_array(store=place, data=X, chunks=(1000, 10, 10))
        elif form == "h5":
            h5py = pytest.importorskip("h5py", reason="the extra bigfs[anndata] is not installed")
            with h5py.File(place, "w") as file:
                file["X"] = X
        else:
            pytest.importorskip("h5netcdf", reason="the extra bigfs[xarray] is not installed")
            xr = pytest.importorskip("xarray")
            xr.DataArray(X, dims=("y", "x", "band"), name="X").to_netcdf(place, engine="h5netcdf")
    config = {"run": str(tmp_path / "run"), "input": {"uri": uri, **settings}}
    config |= {"method": "max_variance", "n_features_to_select": 2}

    def bytes_read() -> int:
        words = Path("/proc/self/io").read_text().split()
        return int(words[words.index("rchar:") + 1])

    plan_pipeline(load_config(config))  # what it imports
    for preprocess, more in (("none", 0), ("auto", 9 * 2**20)):
        before = bytes_read()
        plan = plan_pipeline(load_config({**config, "preprocess": preprocess}))
        assert plan.shape is not None and plan.shape.n_features == 10
        assert bytes_read() - before < (10 * 2**20 if form == "csv" else 2**20) + more
    assert not (tmp_path / "run").exists()


def test_a_fingerprint_of_a_store_sees_its_checksums(tmp_path: Path) -> None:
    """A chunk of many that is another one with its size and time kept is in the checksums."""
    X = np.random.default_rng(0).integers(0, 9, (2000, 2)).astype(float)
    seen = set()
    for i in range(3):
        X[1003] = i, i
        ingest(X, tmp_path / "X.zarr", rows=10, overwrite=True)
        for path in (tmp_path / "X.zarr").rglob("*"):
            os.utime(path, ns=(7, 7))
        seen.add(fingerprint(str(tmp_path / "X.zarr")))
    assert len(seen) == 3
