from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfs.core.errors import InputError
from bigfs.core.units import GIB, MIB, format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4 GiB", 4 * GIB),
        ("4GiB", 4 * GIB),
        ("4 gib", 4 * GIB),
        ("1.5 GiB", 3 * GIB // 2),
        ("500 MB", 500_000_000),
        ("1e9", 10**9),
        (".5MiB", MIB // 2),
        (123, 123),
        (" 7 B ", 7),
    ],
)
def test_sizes_as_people_write_them(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "lots", "4 GiBs", "-1 GiB", "0", "0.2 B", "1,5 GiB", "nan", None, True, [4]]
)
def test_what_is_no_size_is_refused_with_its_value(text):
    with pytest.raises(InputError) as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


@given(st.integers(1, 2**50))
def test_a_formatted_size_reads_back_to_three_digits(size):
    assert parse_bytes(format_bytes(size).replace(",", "")) == pytest.approx(size, rel=0.006)


def test_sizes_are_written_without_an_exponent():
    assert format_bytes(1010 * MIB) == "1,010 MiB"
    assert format_bytes(999.4 * MIB) == "999 MiB"
    assert format_bytes(5000 * 1024 * GIB) == "5,000 TiB"
    assert format_bytes(10**400) == "over 8 EiB"  # as a damaged shape may say


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3.21, "3.2 s"),
        (59.94, "59.9 s"),
        (245, "4 min 05 s"),
        (3599.4, "59 min 59 s"),
        (7620, "2 h 07 min"),
    ],
)
def test_durations(seconds, text):
    assert format_seconds(seconds) == text
