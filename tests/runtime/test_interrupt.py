"""Work beside the main thread: what it returns and raises, and that it can be told to stop."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextvars import ContextVar
from typing import Any

import pytest

from bigfs.core.errors import ClusterError
from bigfs.runtime import interrupt
from bigfs.runtime.execute import run_tasks
from bigfs.runtime.interrupt import check_interrupt, run_apart
from bigfs.runtime.progress import track
from bigfs.runtime.terminal import interrupts

_seen: ContextVar[int] = ContextVar("seen", default=0)


def test_it_runs_in_another_thread_with_the_same_context() -> None:
    token = _seen.set(7)
    try:
        assert run_apart(lambda: (_seen.get(), threading.current_thread().name)) == (
            7,
            "bigfs-work",
        )
    finally:
        _seen.reset(token)


@pytest.mark.parametrize("error", [ValueError("no."), KeyboardInterrupt()])
def test_an_error_comes_back_as_it_is(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        run_apart(fail)
    assert caught.value is error


def test_outside_of_the_main_thread_it_runs_where_it_is() -> None:
    names: list[Any] = []
    thread = threading.Thread(
        target=lambda: names.append(run_apart(lambda: threading.current_thread())), name="other"
    )
    thread.start()
    thread.join(timeout=60)
    assert names == [thread]


def _interrupt_later(seconds: float = 0.2) -> None:
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


def _one_at_a_time(_: int) -> None:
    time.sleep(0.05)


def _in_tasks() -> None:
    run_tasks(_one_at_a_time, range(1000), label="tasks")


def _in_steps() -> None:
    with track("steps", 1000) as progress:
        for _ in range(1000):
            time.sleep(0.05)
            progress.advance(1)


@pytest.mark.parametrize("work", [_in_tasks, _in_steps])
def test_work_that_reports_is_over_when_the_interrupt_comes_back(work: Any) -> None:
    _interrupt_later()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_apart(work)
    assert time.monotonic() - began < 2
    time.sleep(0.1)
    assert "bigfs-work" not in {thread.name for thread in threading.enumerate()}


def test_work_that_hears_nothing_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "GRACE_SECONDS", 0.1)
    go_on, ended = threading.Event(), threading.Event()

    def kernel() -> None:
        go_on.wait(10)
        try:
            check_interrupt()
        except KeyboardInterrupt:
            ended.set()

    _interrupt_later()
    with pytest.raises(KeyboardInterrupt):
        run_apart(kernel)
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(10), "it ends at its next check"


def test_what_the_watch_raises_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "WATCH_SECONDS", 0.1)

    def watch() -> None:
        raise ClusterError("gone.")

    with pytest.raises(ClusterError, match="gone"):
        run_apart(_in_tasks, watch)


class _Ends:
    """What gets a signal while it is destroyed: an interrupt that is raised there is ignored."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)


def test_an_interrupt_in_a_destructor_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts():
        held = _Ends()
        del held
        time.sleep(5)
        pytest.fail("the work went on")
