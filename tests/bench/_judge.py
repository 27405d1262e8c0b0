"""Judgment of a selection in benchmarks: the protocol of the MCFS paper on all classes."""

from __future__ import annotations

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.evaluate.protocols import Protocol
from bigfs.evaluate.selection import measure_selection

SETS = ("ORL", "COIL20", "USPS")


def measure(X: np.ndarray, y: np.ndarray, repetitions: int) -> tuple[float, float, float]:
    """Return mean and deviation of NMI, and the 1-NN error, in percent."""
    protocol = Protocol(int(y.max()) + 1, repetitions, n_init=10)
    measured = measure_selection(RowBlocks.from_any(X), y, None, protocol, "4 GiB")
    names = ("nmi_mean", "nmi_std", "nearest_neighbor_error")
    nmi, deviation, error = (100 * measured[name] for name in names)
    return nmi, deviation, error
