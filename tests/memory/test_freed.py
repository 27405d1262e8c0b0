"""Memory that leaves a process: large freed arrays, also of threads, and pages of libraries."""

from __future__ import annotations

import os
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


_FAULTS = """
import resource
import numpy as np
from bigfs.core.memory import return_large_arrays

return_large_arrays()
np.ones(1 << 16)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    np.ones(1 << 16) * 2.0
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other allocators")
def test_arrays_of_half_a_mebibyte_stay_with_a_worker() -> None:
    environ = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"}  # as Dask's nanny sets it
    out = subprocess.run(
        [sys.executable, "-c", _FAULTS], capture_output=True, text=True, check=True, timeout=60,
        env=environ,
    )  # fmt: skip
    assert int(out.stdout) < 1000  # of 25,600 pages


_PAGES_TAKEN = """
import ctypes
import numpy as np
from bigfs import MCFS
from bigfs.core.memory import _status_bytes, peak_bytes, reset_peak, warmed_bytes
from bigfs.stages.rundir import TASK_MODULES

X = np.random.default_rng(0).normal(size=(3000, 50))
MCFS(5, n_clusters=3, verbose=0).fit(X)  # imports what a fit uses besides
warmed_bytes(TASK_MODULES)
madvise, dont_need = ctypes.CDLL(None).madvise, 4
for line in open("/proc/self/maps"):
    span, access, *_, path = line.split()
    if access.startswith("r-x") and path.startswith("/"):  # code, as the kernel may drop it
        first, last = (int(end, 16) for end in span.split("-"))
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), dont_need)
without = _status_bytes("VmRSS")
predicted = warmed_bytes(TASK_MODULES)
reset_peak()
MCFS(5, n_clusters=3, verbose=0).fit(X)
print(without >> 20, predicted >> 20, peak_bytes() >> 20)
"""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no such figures elsewhere")
def test_the_size_before_a_stage_counts_code_that_the_kernel_has_dropped() -> None:
    out = subprocess.run(
        [sys.executable, "-c", _PAGES_TAKEN], capture_output=True, text=True, check=True, timeout=60
    )
    without, predicted, peak = map(int, out.stdout.split())
    assert predicted > without + 24
    assert peak <= predicted + 24  # what plans add for buffers
