"""Selected against all features: k-means and nearest neighbors, judged by known labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.blocks import BlockReader, RowBlocks
from bigfs.core.execute import run_tasks
from bigfs.core.memory import check_fits
from bigfs.core.seeds import derive_seed
from bigfs.core.units import parse_bytes
from bigfs.evaluate.metrics import count_nearest_errors
from bigfs.evaluate.protocols import kmeans_scores
from bigfs.store.labels import load_labels
from bigfs.store.scratch import ArrayRef

_STRIPS = 4


@dataclass(frozen=True)
class _Measurement:
    """One task: a repetition of k-means, or a strip of the nearest-neighbor search."""

    selected: bool
    repetition: int | None
    strip: tuple[int, int] | None = None


def compare_with_all(
    blocks: RowBlocks,
    selected: np.ndarray,
    labels: str,
    *,
    n_clusters: int | None,
    n_repetitions: int,
    n_init: int,
    random_state: int,
    memory_limit: int | str,
) -> dict[str, Any]:
    """Return NMI, ACC, Rand index and 1-NN error of the selected and of all features.

    Each repetition is one task with its own seed, so that the figures do not depend on the
    number of workers.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    selected : ndarray of shape (n_selected,), int64
    labels : str
        URI of the known classes.
    n_clusters : int or None
        Clusters k-means looks for; None: the number of classes.
    n_repetitions, n_init : int
        Repetitions of k-means, and starts of each; the best start by inertia counts.
    random_state : int
    memory_limit : int or str
        Resident size promised for one worker process.

    Returns
    -------
    found : dict
        JSON values: ``selected`` and ``all``, each with mean and deviation of ``nmi``, ``acc``
        and ``rand`` (``nmi_mean``, ``nmi_std``, ...) and ``nearest_neighbor_error``, in [0, 1];
        and the settings.

    Raises
    ------
    InputError
        If the labels cannot be read or do not fit the data.
    MemoryLimitError
        If the data do not fit one worker: scikit-learn's k-means holds them whole.
    """
    y = load_labels(labels, blocks.n_samples)
    check_fits(
        "evaluation",
        3 * blocks.nbytes,
        parse_bytes(memory_limit),
        f"k-means in memory on {blocks.n_samples:,} x {blocks.n_features:,} values",
    )
    scratch = blocks.scratch
    shared = (
        scratch.put(scratch.unique("labels"), y),
        scratch.put(scratch.unique("selected"), np.asarray(selected)),
    )
    edges = np.linspace(0, blocks.n_samples, _STRIPS + 1, dtype=int).tolist()
    strips = list(zip(edges[:-1], edges[1:], strict=True))
    measurements = [
        measurement
        for part in (False, True)
        for measurement in (
            *(_Measurement(part, None, strip) for strip in strips),
            *(_Measurement(part, repetition) for repetition in range(n_repetitions)),
        )
    ]
    settings = (n_clusters or int(y.max()) + 1, n_init, random_state)
    found = run_tasks(
        _measure,
        measurements,
        blocks.reader,
        blocks.n_samples,
        *shared,
        settings,
        label="evaluation",
        unit="measurements",
    )
    scratch.remove(*shared)
    by_part = {
        name: _summarize(
            [f for m, f in zip(measurements, found, strict=True) if m.selected is part],
            blocks.n_samples,
        )
        for name, part in (("selected", True), ("all", False))
    }
    return {
        **by_part,
        "labels": labels,
        "n_clusters": settings[0],
        "n_repetitions": n_repetitions,
        "n_init": n_init,
    }


def _measure(
    task: _Measurement,
    reader: BlockReader,
    n_samples: int,
    labels: ArrayRef,
    selected: ArrayRef,
    settings: tuple[int, int, int],
) -> tuple[float, ...]:
    """Return (NMI, ACC, Rand) of one repetition, or (wrong nearest neighbors,) of a strip."""
    X, y = reader.read(0, n_samples), labels.load()
    if task.selected:
        X = np.ascontiguousarray(X[:, selected.load()])
    if task.strip is not None:
        return (count_nearest_errors(X, y, *task.strip),)
    assert task.repetition is not None
    n_clusters, n_init, random_state = settings
    seed = derive_seed(random_state, "evaluation", task.repetition)
    return kmeans_scores(X, y, n_clusters=n_clusters, n_init=n_init, seed=seed)


def _summarize(found: list[tuple[float, ...]], n_samples: int) -> dict[str, float]:
    wrong = sum(strip[0] for strip in found[:_STRIPS])
    values = np.array(found[_STRIPS:])
    names = ("nmi", "acc", "rand")
    means = {f"{name}_mean": float(v) for name, v in zip(names, values.mean(axis=0), strict=True)}
    stds = {f"{name}_std": float(v) for name, v in zip(names, values.std(axis=0), strict=True)}
    return {**means, **stds, "nearest_neighbor_error": wrong / n_samples}
