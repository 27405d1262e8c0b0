"""Chunk and block sizes: whole chunks, within their limits, covering every row once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bigfs.store.chunking import block_bounds, block_rows, chunk_rows

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


@given(st.integers(0, 10**4), st.integers(1, 10**4))
def test_bounds_cover_every_row_once(n_samples: int, rows: int) -> None:
    bounds = block_bounds(n_samples, rows)
    assert [row for start, stop in bounds for row in range(start, stop)] == list(range(n_samples))
    assert all(stop - start == rows for start, stop in bounds[:-1])
    assert all(0 < stop - start <= rows for start, stop in bounds)
