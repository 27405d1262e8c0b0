"""M3FS end to end on opened data: starts, form, rounds, choice, and all that is said of them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, check_fits, task_budget
from bigfs.core.seeds import rng
from bigfs.core.units import parse_bytes
from bigfs.graph import AffinityMatrix
from bigfs.runtime.execute import run_tasks, worker_slots
from bigfs.selectors.costs import m3fs_block_bytes, m3fs_choice_bytes
from bigfs.selectors.m3fs.choice import gather_rows, likelihoods
from bigfs.selectors.m3fs.form import full_form, smooth_form
from bigfs.selectors.m3fs.kernels import clusters_of, decisions
from bigfs.selectors.m3fs.passes import Streamed, read_arrays, write_arrays
from bigfs.selectors.m3fs.planes import run_resident, run_streamed
from bigfs.selectors.m3fs.starts import MAX_CLUSTERS, start_labels
from bigfs.selectors.m3fs.state import NESTINGS, Settings, Trajectory
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.stages.scores import FeatureScores
from bigfs.store.location import Location
from bigfs.store.scratch import ArrayRef, Scratch

logger = logging.getLogger("bigfs")

CRITERIA = ("likelihood", "objective")
GRAPHS = ("knn", "full")
# A cluster with fewer rows than this share of an even one is as good as empty.
_TINY = 0.1
# Figures that differ by less are equal, whatever their last bits.
_DIGITS = 9


@dataclass(frozen=True)
class Parameters:
    """What `bigfs.M3FS` is set to, besides the graph and the data's preprocessing."""

    n_clusters: Any
    C: float = 10.0
    smoothness: float = 1.0
    balance: float | None = 0.1
    epsilon: float = 0.01
    nesting: str = "clusters_outside"
    fit_intercept: bool = True
    init: Any = "auto"
    n_init: int = 3
    criterion: str = "likelihood"
    max_iter: int = 1000
    tol: float = 0.01
    random_state: int = 0
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT

    def check(self, n_samples: int | None) -> None:
        """Raise InputError for a value that is out of range."""
        most = MAX_CLUSTERS if n_samples is None else min(MAX_CLUSTERS, n_samples - 1)
        _check_int("n_clusters", self.n_clusters, 2, most)
        _check_int("n_init", self.n_init, 1, None)
        _check_int("max_iter", self.max_iter, 1, None)
        for name, least in (("C", "above"), ("epsilon", "above"), ("smoothness", "of at least")):
            _check_number(name, getattr(self, name), least)
        if self.balance is not None:
            _check_number("balance", self.balance, "of at least")
        if not isinstance(self.tol, (int, float)) or not 0 <= self.tol < 1:
            raise InputError(f"tol must be a number in [0, 1). Got {self.tol!r}.")
        for name, choices in (("nesting", NESTINGS), ("criterion", CRITERIA)):
            if getattr(self, name) not in choices:
                raise InputError(
                    f"{name} must be one of {', '.join(choices)}. Got {getattr(self, name)!r}."
                )

    def settings(self, n_selected: int, n_features: int) -> Settings:
        """Return what the rounds need of this."""
        return Settings(
            n_selected,
            n_features,
            1 if self.n_clusters == 2 else self.n_clusters,
            float(self.C),
            float(self.smoothness),
            np.inf if self.balance is None else float(self.balance),
            float(self.epsilon),
            self.nesting == "planes_outside",
            self.fit_intercept,
            float(self.tol),
            self.max_iter,
        )


def _check_int(name: str, value: Any, least: int, most: int | None) -> None:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        allowed = f"in [{least}, {most}]" if most is not None else f"of at least {least}"
        raise InputError(f"{name} must be an int {allowed}. Got {value!r}.")


def _check_number(name: str, value: Any, least: str) -> None:
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number or not np.isfinite(value) or value < 0 or (value == 0 and least == "above"):
        raise InputError(f"{name} must be a finite number {least} 0. Got {value!r}.")


def m3fs_scores(
    blocks: RowBlocks,
    n_selected: int,
    parameters: Parameters,
    *,
    W: AffinityMatrix | None = None,
    full_sigma: float | None = None,
    spectral: SpectralEmbedding | None = None,
    out: Scratch | None = None,
    checkpoint: Location | None = None,
) -> FeatureScores:
    """Score features by how much they add to the margin between clusters.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    n_selected : int
        m: the sum of sigma.
    parameters : Parameters
    W : AffinityMatrix or None, default=None
        The graph, for smoothness.
    full_sigma : float or None, default=None
        Take the complete graph with heat weights of this width for smoothness instead.
    spectral : SpectralEmbedding or None, default=None
        Of W, for the spectral starts.
    out : Scratch or None, default=None
        Where the labels are stored. None: beside the data's small arrays.
    checkpoint : Path, ObjectPath or None, default=None
        A folder that outlives this process; a run that finds one continues.

    Returns
    -------
    result : FeatureScores
        sigma of the chosen start; details as the attributes of `M3FS`, ``labels`` and
        ``start_labels`` as `ArrayRef`.

    Raises
    ------
    InputError
        If a parameter is out of range or the start does not fit the data.
    MemoryLimitError
        If one block with its planes does not fit a worker.
    """
    n, before = blocks.n_samples, blocks.passes
    parameters.check(n)
    settings = parameters.settings(n_selected, blocks.n_features)
    limit = parse_bytes(parameters.memory_limit)
    keep_bytes = _memory_plan(blocks, settings, limit)
    if parameters.criterion == "likelihood":
        needed = m3fs_choice_bytes(blocks.layout)
        check_fits("m3fs", needed, limit, "the rows that starts are compared on")
    out = out or blocks.scratch.child(blocks.scratch.unique("m3fs"))
    folder = Scratch(checkpoint) if checkpoint else blocks.scratch.child(out.unique("rounds"))
    mean, smooth = _mean(blocks, settings), _form(blocks, settings, W, full_sigma)
    names, labels = start_labels(
        blocks,
        parameters.n_clusters,
        parameters.init,
        parameters.n_init,
        parameters.random_state,
        spectral,
        folder,
    )
    clusters = out.create("start_labels", (n, len(names)), np.uint8, blocks.rows)
    if len(blocks.bounds) == 1:
        found = run_resident(blocks, labels, clusters, settings, mean, smooth, folder.path)
    else:
        passes = Streamed(blocks, labels, folder.path, settings.n_columns == 1, keep_bytes)
        try:
            file = checkpoint / "state.npz" if checkpoint else None
            found = run_streamed(passes, clusters, settings, mean, smooth, file)
        finally:
            passes.close()
    states, hinges = found
    likely = None
    if parameters.criterion == "likelihood":
        likely = likelihoods(blocks, clusters, parameters.random_state)
    chosen = _chosen(states, likely)
    final = out.create("labels", (n,), np.int32, blocks.rows)
    run_tasks(_column_task, blocks.bounds, clusters, chosen, final, label="m3fs labels")
    details = _details(states[chosen], settings, smooth, hinges[chosen] / n)
    details["starts"] = [
        _about(state, name, hinge / n, None if likely is None else float(likely[i]))
        for i, (state, name, hinge) in enumerate(zip(states, names, hinges, strict=True))
    ]
    details |= {"chosen_start": names[chosen], "labels": final, "start_labels": clusters}
    details["n_passes"] = blocks.passes - before
    if not checkpoint:
        folder.close()
    return FeatureScores.from_scores(
        states[chosen].sigma, constant=blocks.moments().constant, **details
    )


def _mean(blocks: RowBlocks, settings: Settings) -> np.ndarray:
    """Return the column means of [X 1]."""
    mean = blocks.moments().mean
    return np.append(mean, 1.0) if settings.fit_intercept else mean


def _form(
    blocks: RowBlocks, settings: Settings, W: AffinityMatrix | None, full_sigma: float | None
) -> np.ndarray | None:
    """Return smoothness times the quadratic form of the graph, or None."""
    if settings.smoothness == 0:
        return None
    if full_sigma is not None:
        form = full_form(blocks, full_sigma)
    elif W is not None:
        form = smooth_form(blocks, W)
    else:
        raise InputError("smoothness above 0 needs a graph. Pass W, or set smoothness to 0.")
    D = settings.n_rows_of_v
    return np.ascontiguousarray(settings.smoothness * form[:D, :D])


def _chosen(states: list[Trajectory], likely: np.ndarray | None) -> int:
    """Return the start to believe.

    One that converged and kept all its clusters; of those the one whose clusters describe the
    rows best, or without likelihoods the least objective.
    """
    sound = [s for s in states if s.converged and s.sizes.min() >= _TINY * s.sizes.mean()]

    def order(state: Trajectory) -> tuple[float, float, int]:
        described = 0.0 if likely is None else round(float(likely[state.number]), _DIGITS)
        return -described, round(state.objective, _DIGITS), state.number

    return min(sound or states, key=order).number


def _details(
    state: Trajectory, settings: Settings, smooth: np.ndarray | None, loss: float
) -> dict[str, Any]:
    """Return what the chosen start says of itself."""
    d = settings.n_features
    history = np.array(state.history)
    if (state.sizes == 0).any():
        logger.warning(
            "m3fs: %d of %d clusters are empty. Raise C, loosen balance, or begin elsewhere.",
            int((state.sizes == 0).sum()),
            len(state.sizes),
        )
    intercept = state.V[d] if settings.fit_intercept else np.zeros(settings.n_columns)
    quadratic = 0.0
    if smooth is not None:
        quadratic = float(np.einsum("dp,de,ep->", state.V, smooth, state.V))
    return {
        "coef": np.ascontiguousarray(state.V[:d]),
        "intercept": np.ascontiguousarray(intercept),
        "n_planes": state.n_planes,
        "n_cccp_steps": state.n_steps,
        "n_iter": state.n_rounds,
        "objective": state.objective,
        "objective_history": history[:, 0],
        "violation_history": history[:, 1],
        "slack": state.slack,
        "violation": loss - state.slack,
        "smoothness_term": quadratic,
        "gap": state.gap,
        "converged": bool(state.converged),
    }


def _about(state: Trajectory, name: str, loss: float, likelihood: float | None) -> dict[str, Any]:
    """Return a start's line of the report."""
    return {
        "start": name,
        "objective": state.objective,
        "loss": loss,
        "slack": state.slack,
        "likelihood": likelihood,
        "sizes": [int(size) for size in state.sizes],
        "n_planes": state.n_planes,
        "n_cccp_steps": state.n_steps,
        "n_iter": state.n_rounds,
        "converged": bool(state.converged),
    }


def _column_task(
    bounds: tuple[int, int], clusters: ArrayRef, chosen: int, labels: ArrayRef
) -> None:
    labels.write(bounds[0], clusters.read(*bounds)[:, chosen].astype(np.int32))


def _memory_plan(blocks: RowBlocks, settings: Settings, limit: int) -> int:
    """Refuse what does not fit; return the bytes of X that a worker keeps between passes."""
    shape, D = blocks.layout, settings.n_rows_of_v
    smooth = settings.smoothness > 0
    one_task = m3fs_block_bytes(shape, settings.n_columns, D, smooth)
    what = f"a block of {shape.rows:,} rows with its planes"
    check_fits("m3fs", one_task, limit, f"{what} and {D} x {D} sums" if smooth else what)
    _, n_threads = worker_slots()
    return max(0, task_budget(limit) - n_threads * one_task)


def sample_of(blocks: RowBlocks, size: int, random_state: int) -> RowBlocks:
    """Return that many rows, drawn without replacement and transformed, as data of their own."""
    _check_int("sample_size", size, 2, blocks.n_samples)
    draw = rng(random_state, "m3fs rows").choice(blocks.n_samples, size, replace=False)
    scratch = blocks.scratch.child(blocks.scratch.unique("sample"))
    stored = gather_rows(blocks, np.sort(draw), scratch)
    return RowBlocks.from_any(stored.path, scratch=scratch)


def label_rows(blocks: RowBlocks, coef: np.ndarray, intercept: np.ndarray, out: ArrayRef) -> None:
    """Write the cluster of every row: one pass."""
    folder = blocks.scratch.child(blocks.scratch.unique("model"))
    shared = write_arrays(folder.path / "model.npz", V=np.vstack([coef, intercept]))
    blocks.map_blocks(_label_kernel, shared, out, label="labels")
    folder.close()


def _label_kernel(X: np.ndarray, first_row: int, shared: str, out: ArrayRef) -> None:
    F = decisions(X, read_arrays(shared)["V"])
    out.write(first_row, clusters_of(F).astype(np.int32))
