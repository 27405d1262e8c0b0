"""Chunk and block sizes: whole chunks, within their limits, covering every row once."""

from __future__ import annotations

from pathlib import Path

import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from bigfs.store.scratch import block_bounds, block_rows, check_block_rows, chunk_rows, copied_rows
from bigfs.store.source import open_matrix

MB = 10**6
widths = st.integers(1, 10**7)
itemsizes = st.sampled_from([4, 8])


@given(widths, itemsizes)
def test_chunks_are_8_to_32_mb_where_rows_allow(n_features: int, itemsize: int) -> None:
    rows = chunk_rows(n_features, itemsize)
    size = rows * n_features * itemsize
    assert rows >= 1
    assert size <= 32 * MB or rows == 1
    assert size >= 8 * MB
    assert size <= 16 * MB or rows == 1


@given(widths, itemsizes, st.one_of(st.none(), st.integers(1, 10**7)))
def test_blocks_are_whole_chunks_of_16_to_64_mb(
    n_features: int, itemsize: int, stored: int | None
) -> None:
    rows = block_rows(n_features, itemsize, stored)
    unit = stored or chunk_rows(n_features, itemsize)
    assert rows >= unit
    assert rows % unit == 0
    size, unit_size = (count * n_features * itemsize for count in (rows, unit))
    if unit_size <= 32 * MB:
        assert 16 * MB <= size <= 64 * MB
    else:
        assert rows == unit


@given(widths, itemsizes)
def test_blocks_are_the_same_before_and_after_ingest(n_features: int, itemsize: int) -> None:
    stored = chunk_rows(n_features, itemsize)
    assert block_rows(n_features, itemsize) == block_rows(n_features, itemsize, stored)


@given(st.integers(2, 10**4), st.integers(1, 10**4), st.integers(1, 10**4))
def test_blocks_of_a_copy_are_whole_chunks(n_samples: int, rows: int, usual: int) -> None:
    chunk = copied_rows(n_samples, rows, usual)
    if rows <= usual or rows % 2 == 0 and usual < rows <= 2 * usual:
        check_block_rows(rows, chunk, n_samples)
    assert chunk in (usual, rows) or (rows % chunk == 0 and usual / 2 < chunk <= usual)
    assert copied_rows(n_samples, None, usual) == usual


@given(st.integers(0, 10**4), st.integers(1, 10**4))
def test_bounds_cover_every_row_once(n_samples: int, rows: int) -> None:
    bounds = block_bounds(n_samples, rows)
    assert [row for start, stop in bounds for row in range(start, stop)] == list(range(n_samples))
    assert all(stop - start == rows for start, stop in bounds[:-1])
    assert all(0 < stop - start <= rows for start, stop in bounds)


def test_unwritten_chunks_of_others_are_the_fill_value_and_said_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    array = zarr.create_array(
        store=str(tmp_path / "X.zarr"), shape=(100, 3), dtype="f4", chunks=(10, 3), fill_value=5
    )
    array[:50] = 1
    source = open_matrix(tmp_path / "X.zarr")
    assert "chunks c/5/0, c/6/0, c/7/0, ... are not stored (5 of 10)" in caplog.text
    assert len(caplog.records) == 1
    assert next(source.iter_blocks(100)).sum() == 50 * 3 + 50 * 3 * 5
