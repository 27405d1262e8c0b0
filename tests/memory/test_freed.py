"""Large freed arrays go back to the system, also those of threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import os, sys, threading
import numpy as np
from bigfs.core.memory import _status_bytes, return_large_arrays

def work():
    for n in (30, 20, 25):
        parts = [np.ones(n << 17), np.ones(n << 16)]
        del parts[0]
        kept.append(np.ones(1000))

kept = []
return_large_arrays()
before = _status_bytes("VmRSS")
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print((_status_bytes("VmRSS") - before) >> 20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other allocators")
def test_large_arrays_of_threads_are_returned() -> None:
    out = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(out.stdout) <= 4
