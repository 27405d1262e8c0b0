from __future__ import annotations

import threading

import numpy as np
import pytest
import scipy.linalg  # noqa: F401  # it brings a BLAS of its own, which single_thread loads, too
from threadpoolctl import threadpool_info

from bigfs.core.threads import single_thread


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
