"""Rows appended to a store: readers see the old or the new ones, and nothing in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import bigfs
from bigfs.cli import cli
from bigfs.core.errors import BigfsError, InputError, RunLockedError
from bigfs.store import append
from bigfs.store.fingerprint import fingerprint
from bigfs.store.grown import count_rows, key_of_rows
from bigfs.store.ingest import ingest, write_left_out
from bigfs.store.lease import Lease
from bigfs.store.location import Location, write_atomic
from bigfs.store.source import open_matrix
from bigfs.store.verify import verify

ROWS = 10


def _rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)


def _read(path: Path | str) -> np.ndarray:
    return np.concatenate(list(open_matrix(path).iter_blocks(ROWS)))


def _store(path: Path, n: int = 25) -> Path:
    ingest(_rows(n), path, rows=ROWS)
    return path


@pytest.mark.parametrize("lengths", [[25, 3, 2, 40], [20, 1], [7, 1, 2, 3]])
def test_appended_rows_follow_the_others(tmp_path: Path, lengths: list[int]) -> None:
    parts = [_rows(n, seed) for seed, n in enumerate(lengths)]
    store = tmp_path / "X.zarr"
    ingest(parts[0], store, rows=ROWS)
    for part in parts[1:]:
        report = ingest(part, store, append=True)
        assert report.appended_rows == len(part)
    np.testing.assert_array_equal(_read(store), np.concatenate(parts))
    assert verify(store).ok
    ingest(np.concatenate(parts), tmp_path / "all.zarr", rows=ROWS)
    both = [json.loads((p / "zarr.json").read_text())["attributes"]
            for p in (store, tmp_path / "all.zarr")]  # fmt: skip
    assert both[0]["checksums"] == both[1]["checksums"]
    assert [count for _, count in both[0]["sources"]] == lengths
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


def test_the_key_of_old_rows_stays(tmp_path: Path) -> None:
    store = _store(tmp_path / "X.zarr")
    before = {times: key_of_rows(store, 25, times) for times in ("none", "modified", "all")}
    assert None not in before.values()
    for seed in (1, 2):
        ingest(_rows(8, seed), store, append=True)
        for times, key in before.items():
            assert key_of_rows(store, 25, times) == key
    assert count_rows(store) == 41
    assert key_of_rows(store, 24) is None
    other = tmp_path / "other.zarr"
    ingest(np.concatenate([_rows(25, 5), _rows(8, 1)]), other, rows=ROWS)
    assert key_of_rows(other, 33) != key_of_rows(store, 33)


def test_ids_and_left_out_rows(tmp_path: Path) -> None:
    import pandas as pd

    def frame(ids: str, missing: list[int]) -> Any:
        X = np.ones((len(ids), 2))
        X[missing] = np.nan
        return pd.DataFrame({"id": list(ids), "a": X[:, 0], "b": X[:, 1]})

    store = tmp_path / "X.zarr"
    options: dict[str, Any] = {"index": "id", "missing": "drop_rows"}
    ingest(frame("abcdef", [1]), store, rows=4, **options)
    ingest(frame("ghij", [0, 3]), store, append=True, **options)
    source = open_matrix(store)
    assert [text for piece in source.iter_index() for text in piece] == list("acdefhi")
    assert list(source.dropped) == [1, 6, 9]
    # They are an array, however many: metadata are read whole, and have a limit.
    assert json.loads((store / "zarr.json").read_text())["attributes"]["dropped"] == 3
    ingest(frame("kl", []), store, append=True, **options)
    assert list(open_matrix(store).dropped) == [1, 6, 9]


def test_left_out_rows_of_many_appends(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_left_out, "__defaults__", (4,))
    store, n = place / "X.zarr", 0
    for count in (3, 20, 9, 30):  # the first drops no row
        X = np.arange(n, n + count, dtype=float)[:, None] + [0, 0.5]
        X[3::3] = np.nan
        before = len(open_matrix(store).dropped) if n else 0
        with monkeypatch.context() as patch:
            if n:
                patch.setattr(append, "_write_metadata", _killed_at_the_group)
                with pytest.raises(_Killed):
                    ingest(X, store, append=True, missing="drop_rows")
                assert len(open_matrix(store).dropped) == before
        ingest(X, store, append=n > 0, missing="drop_rows")
        n += count
    lost = [a + i for a, count in ((0, 3), (3, 20), (23, 9), (32, 30)) for i in range(3, count, 3)]
    assert list(open_matrix(store).dropped) == lost
    assert _read(store)[:, 0].tolist() == [i for i in range(62) if i not in lost]
    assert verify(store).ok


def _killed_at_the_group(node: Location, metadata: dict[str, Any]) -> None:
    if metadata["node_type"] == "group":
        raise _Killed
    write_atomic(node / "zarr.json", json.dumps(metadata))


def test_a_store_grows_on_disk_and_in_a_bucket(place: Location) -> None:
    store = place / "X.zarr"
    ingest(_rows(25), store, rows=ROWS)
    reader = open_matrix(str(store))
    reader.begin()
    ingest(_rows(18, 1), store, append=True)
    np.testing.assert_array_equal(np.concatenate(list(reader.iter_blocks(ROWS))), _rows(25))
    reader.check_unchanged()
    everything = np.concatenate([_rows(25), _rows(18, 1)])
    np.testing.assert_array_equal(_read(str(store)), everything)
    assert verify(store).ok
    assert {p.name for p in store.iterdir()} == {"X", "zarr.json"}


class _Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize(
    ("step", "after", "n"),
    [
        ("_move_chunks", False, 20),
        ("_move_chunks", True, 25),
        ("_write_metadata", False, 25),
        ("_write_metadata", True, 25),
    ],
)
def test_a_killed_append_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool, n: int
) -> None:
    store = _store(tmp_path / "X.zarr", n)
    reader, key = open_matrix(store), fingerprint(str(store))
    reader.begin()
    original: Callable[..., None] = getattr(append, step)

    def killed(*args: Any) -> None:
        if after:
            original(*args)
        raise _Killed

    monkeypatch.setattr(append, step, killed)
    with pytest.raises(_Killed):
        ingest(_rows(18, 1), store, append=True)
    np.testing.assert_array_equal(_read(store), _rows(n))
    assert verify(store).ok
    reader.check_unchanged()
    if step == "_move_chunks" and n == 20:
        assert fingerprint(str(store)) == key
    monkeypatch.undo()
    ingest(_rows(13, 2), store, append=True)
    np.testing.assert_array_equal(_read(store), np.concatenate([_rows(n), _rows(13, 2)]))
    assert verify(store).ok


@pytest.mark.parametrize("n", [20, 25])
def test_an_open_reader_keeps_its_rows(tmp_path: Path, n: int) -> None:
    store = _store(tmp_path / "X.zarr", n)
    reader = open_matrix(store)
    reader.begin()
    first = next(reader.iter_blocks(ROWS))
    ingest(_rows(18, 1), store, append=True)
    np.testing.assert_array_equal(first, _rows(n)[:ROWS])
    np.testing.assert_array_equal(np.concatenate(list(reader.iter_blocks(ROWS))), _rows(n))
    reader.check_unchanged()
    chunk = store / "X" / "c" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes())  # the same bytes, written by another program
    with pytest.raises(InputError, match="changed while it was read"):
        reader.check_unchanged()


@pytest.mark.full
def test_a_run_goes_on_while_rows_are_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bigfs.selectors.one_pass.strategies import Variances

    store = _store(tmp_path / "X.zarr")
    original: Callable[..., Any] = Variances.run

    def run(self: Any, inputs: Any, out: Any) -> Any:
        ingest(_rows(18, 1), store, append=True)
        return original(self, inputs, out)

    settings = {"run": str(tmp_path / "run"), "input": {"uri": str(store)},
                "method": "max_variance", "n_features_to_select": 2}  # fmt: skip
    monkeypatch.setattr(Variances, "run", run)
    assert bigfs.run(settings).n_samples == 25
    monkeypatch.undo()
    assert bigfs.run(settings).n_samples == 43


def test_what_does_not_go_with_the_store_is_refused(tmp_path: Path) -> None:
    import pandas as pd
    from scipy.sparse import csr_array

    store = tmp_path / "X.zarr"
    ingest(pd.DataFrame(_rows(25), columns=list("abcd")), store, rows=ROWS)
    bad = _rows(12)
    bad[11, 2] = np.nan
    cases = [
        (_rows(12)[:, :3], "it has 3 features, but the store has 4"),
        (_rows(12).astype(np.float64), "float64, but float32 in the store"),
        (pd.DataFrame(_rows(12), columns=list("abdc")), "its feature 2 is 'd', but 'c'"),
        (csr_array(_rows(12)), "sparse rows"),
        (store, "it is the store itself"),
        (bad, "11"),
    ]
    for source, message in cases:
        with pytest.raises(InputError, match=message):
            ingest(source, store, append=True)
    with pytest.raises(InputError, match="means of the new rows"):
        ingest(_rows(12), store, append=True, missing="mean")
    with pytest.raises(InputError, match="not both"):
        ingest(_rows(12), store, append=True, overwrite=True)
    with pytest.raises(InputError, match="not a store that bigfs wrote"):
        ingest(_rows(12), tmp_path / "new.zarr", append=True)
    with Lease(store), pytest.raises(RunLockedError):
        ingest(_rows(12), store, append=True)
    np.testing.assert_array_equal(_read(store), _rows(25))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["X.zarr"]
    assert sorted(p.name for p in store.iterdir()) == ["X", "zarr.json"]


def test_a_damaged_last_chunk_or_count_is_refused(tmp_path: Path) -> None:
    store = _store(tmp_path / "X.zarr")
    group = store / "zarr.json"
    for value in (0, 26, -1, "25", None, 1.5, True):
        metadata = json.loads(group.read_text())
        metadata["attributes"]["n_samples"] = value
        (tmp_path / "kept").write_text(group.read_text())
        group.write_text(json.dumps(metadata))
        with pytest.raises(BigfsError, match="damaged"):
            open_matrix(store)
        (tmp_path / "kept").replace(group)
    metadata = json.loads(group.read_text())
    metadata["attributes"]["checksums"][-1] = "00000000"
    group.write_text(json.dumps(metadata))
    with pytest.raises(BigfsError, match="last chunk is damaged"):
        ingest(_rows(3), store, append=True)


def test_the_command(tmp_path: Path) -> None:
    store = _store(tmp_path / "X.zarr")
    np.save(tmp_path / "new.npy", _rows(5, 1))
    np.save(tmp_path / "one.npy", _rows(1, 2))
    for name, line in (("new.npy", "5 of the rows are new"), ("one.npy", "1 of the rows is new")):
        arguments = ["ingest", str(tmp_path / name), str(store), "--append", "--quiet"]
        result = CliRunner().invoke(cli, arguments)
        assert (result.exit_code, line in result.output) == (0, True), result.output
    rows = np.concatenate([_rows(25), _rows(5, 1), _rows(1, 2)])
    np.testing.assert_array_equal(_read(store), rows)
    with pytest.raises(InputError, match="at least 2 samples and 1 feature are needed"):
        ingest(tmp_path / "one.npy", tmp_path / "new.zarr")


def test_what_a_killed_append_left_is_in_nobodys_way(tmp_path: Path) -> None:
    store = _store(tmp_path / "X.zarr")
    (store / "lease.json").write_text("{}")
    ingest(_rows(12, 1), store, overwrite=True, rows=ROWS)
    np.testing.assert_array_equal(_read(store), _rows(12, 1))


def test_a_second_append_is_refused_as_one_to_a_store(tmp_path: Path) -> None:
    store = _store(tmp_path / "X.zarr")
    with Lease(store) as first:
        with pytest.raises(RunLockedError, match="another process writes to this store .*again"):
            ingest(_rows(3), store, append=True)
        record = json.loads((store / "lease.json").read_text())
        (store / "lease.json").write_text(json.dumps({**record, "owner": "another"}))
        with pytest.raises(RunLockedError, match="another one took its place"):
            first.check()
        (store / "lease.json").unlink()
