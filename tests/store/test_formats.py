"""One suite for every format: the same matrix gives the same rows, names and checksums."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from bigfs.store.ingest import ingest
from bigfs.store.source import RandomAccessSource, open_matrix, pickled_for_task
from tests.store._formats import (
    ALIKE,
    FORMATS,
    N_FEATURES,
    N_SAMPLES,
    NAMES,
    as_npy,
    as_zarr,
    matrix,
)


@pytest.fixture(params=[*FORMATS, *(pytest.param(n, marks=pytest.mark.full) for n in ALIKE)])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, list[str] | None]:
    """The matrix in one of the formats, and the names it should have."""
    make, named = {**FORMATS, **ALIKE}[request.param]
    return make(matrix(), tmp_path), NAMES if named else None


@pytest.mark.parametrize("rows", [1, 19, 20, 21, 103, 1000])
def test_blocks_are_the_rows_in_order(stored: tuple[Any, Any], rows: int) -> None:
    X, names = stored
    source = open_matrix(X)
    blocks = list(source.iter_blocks(rows))
    assert source.n_samples in (N_SAMPLES, None)
    assert (source.n_features, source.dtype) == (N_FEATURES, np.float64)
    assert source.feature_names == names
    for block in blocks:
        assert type(block) is np.ndarray
        assert block.dtype == source.dtype
        assert block.dtype.isnative
        assert block.flags.c_contiguous
        assert 1 <= len(block) <= rows
    np.testing.assert_array_equal(np.concatenate(blocks), matrix())


def test_any_rows_can_be_read(stored: tuple[Any, Any]) -> None:
    source = open_matrix(stored[0])
    if not isinstance(source, RandomAccessSource):
        return
    for start, stop in [(0, 1), (0, 103), (5, 5), (19, 41), (100, 103)]:
        rows = source.read(start, stop)
        assert rows.flags.c_contiguous
        np.testing.assert_array_equal(rows, matrix()[start:stop])


def test_shared_sources_are_read_after_a_journey(stored: tuple[Any, Any]) -> None:
    source = open_matrix(stored[0])
    if not isinstance(source, RandomAccessSource) or not source.shareable:
        return
    journey = pickled_for_task(source)
    assert len(journey.replace(str(stored[0]).encode(), b"")) < 1000
    np.testing.assert_array_equal(pickle.loads(journey).read(40, 60), matrix()[40:60])


def test_ingest_gives_the_same_store(stored: tuple[Any, Any], tmp_path: Path) -> None:
    X, names = stored
    report = ingest(X, tmp_path / "out.zarr", rows=25)
    assert report.n_chunks == 5
    assert (report.n_samples, report.n_features) == (N_SAMPLES, N_FEATURES)
    if open_matrix(X).sparse:  # in CSR blocks: tests/store/test_csr.py
        np.testing.assert_array_equal(open_matrix(tmp_path / "out.zarr").read(0, 103), matrix())
        return
    group = zarr.open_group(str(tmp_path / "out.zarr"), mode="r")
    np.testing.assert_array_equal(group["X"][...], matrix())
    assert group.attrs["feature_names"] == names
    ingest(matrix(), tmp_path / "expected.zarr", rows=25)
    expected = zarr.open_group(str(tmp_path / "expected.zarr"), mode="r")
    assert group.attrs["checksums"] == expected.attrs["checksums"]


@pytest.mark.parametrize(
    ("stored_as", "worked_in"),
    [
        ("float32", "float32"), ("float16", "float32"), ("uint8", "float32"), ("int8", "float32"),
        ("int16", "float32"), ("uint16", "float32"), ("bool", "float32"), ("int32", "float64"),
        ("uint32", "float64"), ("int64", "float64"), ("uint64", "float64"), ("float64", "float64"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["numpy", "npy", "npz", "zarr v3", "pandas", "dask"])
def test_values_are_worked_in_the_smallest_type_that_holds_them(
    name: str, stored_as: str, worked_in: str, tmp_path: Path
) -> None:
    X = np.abs(matrix() * 3 % 100).astype(stored_as)
    source = open_matrix(FORMATS[name][0](X, tmp_path))
    assert source.dtype == worked_in
    block = next(source.iter_blocks(1000))
    assert block.dtype == worked_in
    np.testing.assert_array_equal(block, X.astype(worked_in))


def test_tables_may_mix_types_and_hold_nulls(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame(
        {
            "a": pd.array([1, None, 3], dtype="Int64"),
            "b": pd.array([True, False, None], dtype="boolean"),
            "c": np.array([1.5, np.nan, 2], dtype="float32"),
            "d": np.array([1, 2, 3], dtype="uint8"),
            "e": [True, False, True],
        }
    )
    expected = [[1, 1, 1.5, 1, 1], [np.nan, 0, np.nan, 2, 0], [3, np.nan, 2, 3, 1]]
    frame.to_parquet(tmp_path / "X.parquet")
    frame.to_csv(tmp_path / "X.csv", index=False)
    for X in (frame, tmp_path / "X.parquet"):
        np.testing.assert_array_equal(next(open_matrix(X).iter_blocks(9)), expected)


def test_frames_of_the_same_type_keep_it() -> None:
    import pandas as pd

    source = open_matrix(pd.DataFrame({"a": np.float32([1, 2]), "b": np.uint8([3, 4])}))
    assert source.dtype == np.float32


@pytest.mark.parametrize("name", ["npz", "zarr group", "mat"])
def test_a_variable_can_be_named(name: str, tmp_path: Path) -> None:
    X = FORMATS[name][0](matrix(), tmp_path)
    named = {"npz": "Z", "zarr group": "X", "mat": "gnd"}[name]
    source = open_matrix(X, variable=named)
    first = next(source.iter_blocks(1000))
    expected = {"Z": matrix()[::-1], "X": matrix(), "gnd": np.arange(103.0)[:, None]}[named]
    np.testing.assert_array_equal(first, expected)


@pytest.mark.parametrize(
    ("uri", "shape"),
    [
        ("sklearn:digits", (1797, 64)), ("sklearn:iris", (150, 4)), ("sklearn:wine", (178, 13)),
        ("sklearn:breast_cancer", (569, 30)),
    ],
)  # fmt: skip
def test_sets_of_scikit_learn(uri: str, shape: tuple[int, int]) -> None:
    source = open_matrix(uri)
    assert (source.n_samples, source.n_features) == shape
    assert len(source.feature_names or []) == shape[1]


def test_uris_and_opened_sources(tmp_path: Path) -> None:
    path = as_npy(matrix(), tmp_path)
    source = open_matrix(f"file://{path}")
    assert open_matrix(source) is source
    assert source.n_samples == N_SAMPLES


def test_names_are_not_in_what_tasks_get_of_a_wide_store(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame(np.zeros((2, 50_000)), columns=[f"gene {j}" for j in range(50_000)])
    ingest(frame, tmp_path / "X.zarr")
    source = open_matrix(tmp_path / "X.zarr")
    assert len(source.feature_names or []) == 50_000
    assert len(pickled_for_task(source)) < 2000
    assert pickle.loads(pickle.dumps(source)).feature_names == source.feature_names


def test_a_replaced_store_is_not_read_through_an_old_handle(tmp_path: Path) -> None:
    for value, rows in ((1.0, 4), (2.0, 6)):
        ingest(np.full((rows, 3), value), tmp_path / "X.zarr", overwrite=True)
        source = pickle.loads(pickle.dumps(open_matrix(tmp_path / "X.zarr")))
        np.testing.assert_array_equal(source.read(0, rows), np.full((rows, 3), value))


def test_dask_chunks_are_computed_once() -> None:
    import dask
    import dask.array as da

    computed = []

    def count(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        computed.append(block_info[0]["chunk-location"])
        return block

    X = da.from_array(matrix(), chunks=(40, 4)).map_blocks(count, dtype=np.float64, meta=matrix())
    with dask.config.set(scheduler="synchronous"):
        blocks = list(open_matrix(X).iter_blocks(7))
    np.testing.assert_array_equal(np.concatenate(blocks), matrix())
    assert sorted(computed) == [(i, j) for i in range(3) for j in range(2)]


def test_chunks_of_a_foreign_array_are_decoded_once(tmp_path: Path) -> None:
    reads: list[str] = []

    class Counting(zarr.storage.LocalStore):
        async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
            reads.append(key)
            return await super().get(key, *args, **kwargs)

    path = as_zarr(3, (50, 3))(matrix(), tmp_path)
    source = open_matrix(zarr.open_array(Counting(path), mode="r"))
    reads.clear()
    assert sum(len(block) for block in source.iter_blocks(7)) == N_SAMPLES
    assert sorted(reads) == sorted(f"c/{i}/{j}" for i in range(3) for j in range(3))
