"""The compilation of the neighbor search is announced, and done once before any partition."""

from __future__ import annotations

import logging

import pytest

from bigfs.graph import search

MESSAGE = "Compiling the neighbor search (about 30 s, once)"


@pytest.mark.parametrize("is_there", [False, True])
def test_compiling_is_said_when_it_happens(
    is_there: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[None] = []
    monkeypatch.setattr(search, "is_compiled", lambda: is_there)
    monkeypatch.setattr(search, "_compile_task", compiled.append)
    caplog.set_level(logging.INFO, "bigfs")
    search.compile_first()
    assert (MESSAGE in caplog.messages) == (not is_there)
    assert len(compiled) == (not is_there)
