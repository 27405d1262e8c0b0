from __future__ import annotations

import ast
import gc
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg  # noqa: F401  # it brings a BLAS of its own, which single_thread loads, too
from threadpoolctl import threadpool_info

from bigfs.core.threads import single_thread
from bigfs.selectors.kept import load_state, save_state
from bigfs.selectors.stability.rows import DrawnRows
from bigfs.store.formats import npy, npz
from bigfs.store.location import as_location


def _threads() -> list[int]:
    np.ones((2, 2)) @ np.ones((2, 2))
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_one_thread_inside_and_restored_after():
    before = _threads()
    with single_thread():
        assert set(_threads()) == {1}
        with single_thread():
            pass
        assert set(_threads()) == {1}
    assert _threads() == before


def test_restored_after_an_error():
    before = _threads()
    with pytest.raises(ZeroDivisionError), single_thread():
        raise ZeroDivisionError
    assert _threads() == before


def test_a_neighbor_that_ends_first_does_not_lift_the_limit():
    inside, leave, gone = threading.Event(), threading.Event(), threading.Event()

    def neighbor() -> None:
        with single_thread():
            inside.set()
            leave.wait(10)
        gone.set()

    thread = threading.Thread(target=neighbor)
    thread.start()
    assert inside.wait(10)
    with single_thread():
        leave.set()
        assert gone.wait(10)
        assert set(_threads()) == {1}
    thread.join(timeout=60)


def test_libraries_are_looked_for_again_after_an_import(monkeypatch: pytest.MonkeyPatch):
    import sys
    import types

    from bigfs.core import threads

    first = threads._controller()
    assert threads._controller() is first
    monkeypatch.setitem(sys.modules, "a_module_of_this_test", types.ModuleType("a"))
    assert threads._controller() is not first


class _Parses:
    """Garbage that parses when it is collected: what another thread may do at that moment."""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        _parse_deeper(3)


def _parse_deeper(levels: int) -> None:
    if levels:
        _parse_deeper(levels - 1)
    else:
        ast.literal_eval("(1, (2,))")


def _drawn(folder: Path) -> np.ndarray:
    rows = {"fit0": np.arange(3), "numbers": np.arange(3), "rows": np.eye(3, 2)}
    np.savez(folder / "rows-0.npz", **rows)
    return DrawnRows(str(folder), 1, 3, 2, "float64", sparse=False).sample(0)[0]


READERS: dict[str, Callable[[Path], object]] = {
    "state": lambda folder: load_state(as_location(str(folder / "state.npz"))),
    "header": lambda folder: npy.open_file(as_location(str(folder / "X.npy")), None),
    "labels": lambda folder: npy.load(as_location(str(folder / "X.npy"))),
    "member": lambda folder: npz.open_file(as_location(str(folder / "state.npz")), "arr_0"),
    "drawn rows": _drawn,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_header_is_read_while_others_parse(reader: str, tmp_path: Path) -> None:
    """CPython 3.11.7 raises a SystemError there (python/cpython issue 106905)."""
    np.save(tmp_path / "X.npy", np.eye(3))
    save_state(as_location(str(tmp_path / "state.npz")), {"X": np.eye(3)})
    thresholds = gc.get_threshold()
    try:
        for count in range(1, 400):
            gc.disable()
            gc.collect(0)
            _Parses()
            gc.set_threshold(count)
            gc.enable()
            assert READERS[reader](tmp_path) is not None
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
        gc.collect()  # while nothing else is parsed: a later test may
