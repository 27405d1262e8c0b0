"""Starts of M3FS, from k-means on the rows or on eigenvectors of their graph, and their choice.

If several starts are run to convergence, the one whose clusters describe the rows best is chosen:
every cluster is modeled as a Gaussian with its own mean and covariance, and every result as the
mixture of its clusters, with hard assignment of the rows. The objective is not suited to compare
results: it favors clusters of equal size, and depends on the features only through the rule.

With many features and clusters a start takes long, and its result is close to the initial clusters:
then only the starts that describe the rows best are run. On the shared data sets with more than two
clusters and more than 2,000 unknowns, the chosen start had the highest likelihood from the
beginning (correlation of initial and final likelihoods 0.91 to 1). With few features, and with two
clusters of text, the initial order of the starts says little about the final one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.kmeans import kmeans, kmeans_steps
from bigfs.blocks.rowblocks import gather_rows, gather_steps
from bigfs.core.cost import Shape, Step
from bigfs.core.seeds import derive_seed, rng
from bigfs.core.units import MIB
from bigfs.runtime.execute import map_reduce, run_tasks
from bigfs.selectors.embedded import View, centers_step, label_views, view_centers
from bigfs.selectors.m3fs import EXTRA_EIGENVECTORS, M3FSParameters
from bigfs.selectors.scoring import checked_labels
from bigfs.spectral.choice import largest_count
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.store.scratch import ArrayRef, Scratch

_RESTARTS = 10
# Added to the variance of every direction, as a share of the features' mean variance: a cluster
# may have fewer rows than there are features.
RIDGE = 0.2
# Likelihoods and objectives are rounded to this many decimals before they are compared.
DIGITS = 9
# With more than two clusters and more unknowns than this, only the likeliest starts are run.
_MANY_UNKNOWNS = 4096
_FEW_STARTS = 3


def most_starts(parameters: M3FSParameters) -> int:
    """Return an upper bound of the number of starts."""
    of_rows = parameters.n_init if parameters.starts_at("kmeans") else 0
    # Each number of eigenvectors as it is, and with rows scaled.
    of_eigenvectors = 2 * len(EXTRA_EIGENVECTORS) if parameters.starts_at("spectral") else 0
    return of_rows + of_eigenvectors or 1


def start_steps(shape: Shape, parameters: M3FSParameters) -> tuple[Step, ...]:
    """Return the steps of `start_labels`."""
    n_starts, n_clusters = most_starts(parameters), largest_count(parameters.n_clusters)
    width = n_clusters + max(EXTRA_EIGENVECTORS)
    needed = shape.rows * (8 * width + 24 * n_starts)
    steps = [
        Step("the labels of a block for every start", needed, shape.n_blocks, times=2),
        Step(f"{shape.n_samples:,} row numbers", 16 * shape.n_samples, by_client=True),
    ]
    if parameters.starts_at("kmeans"):
        steps += kmeans_steps(shape, n_clusters, times=parameters.n_init)
    if parameters.starts_at("spectral"):
        tasks = 2 * len(EXTRA_EIGENVECTORS)
        steps.append(centers_step(shape.n_samples, n_clusters, width, tasks))
    return tuple(steps)


def start_labels(
    blocks: RowBlocks,
    n_clusters: int,
    init: Any,
    n_init: int,
    random_state: int,
    spectral: SpectralEmbedding | None,
    scratch: Scratch,
) -> tuple[list[str], ArrayRef]:
    """Return the names of the starts, and their labels: an array (n_samples, n_starts), uint8.

    Starts with the same clusters are merged.

    Parameters
    ----------
    blocks : RowBlocks
    n_clusters : int
    init : {"auto", "kmeans", "spectral"} or array-like of shape (n_samples,)
    n_init : int
        Number of restarts of k-means.
    random_state : int
    spectral : SpectralEmbedding or None
        Embedding for the spectral starts; ignored by the others.
    scratch : Scratch
        Folder in which the labels are stored.
    """
    n = blocks.n_samples
    if not isinstance(init, str):
        labels = checked_labels(init, n, n_clusters).astype(np.uint8)
        return ["given"], scratch.put("starts", labels[:, None], blocks.rows)
    names, sources = [], []
    if init != "spectral":
        for restart in range(n_init):
            seed = derive_seed(random_state, "m3fs start", restart)
            result = kmeans(blocks, n_clusters, random_state=seed)
            names.append(f"kmeans {restart}")
            sources.append(result.labels_ref)
    if init != "kmeans":
        assert spectral is not None
        of_views, labels_ref = _spectral_labels(spectral, blocks, n_clusters, random_state, scratch)
        names += of_views
        sources.append(labels_ref)
    n_starts = sum(source.shape[1] if len(source.shape) > 1 else 1 for source in sources)
    together = scratch.create("starts", (n, n_starts), np.uint8, blocks.rows)
    overlap = map_reduce(
        _collect_task, blocks.bounds, np.add, sources, together, n_clusters, label="m3fs starts"
    )
    kept = _distinct(overlap)
    return [names[i] for i in kept], kept_starts(blocks, together, kept, scratch)


def _collect_task(
    bounds: tuple[int, int], sources: list[ArrayRef], together: ArrayRef, n_clusters: int
) -> np.ndarray:
    """Collect the labels of one block, and count the rows that two starts' clusters share.

    Returns
    -------
    overlap : ndarray of shape (n_starts, n_starts, n_clusters, n_clusters), int64
        Contingency tables of each start with the earlier ones; zero for the other pairs.
    """
    parts = [source.read(*bounds).reshape(bounds[1] - bounds[0], -1) for source in sources]
    labels = np.concatenate(parts, axis=1).astype(np.int64)
    together.write(bounds[0], labels.astype(np.uint8))
    S, c = labels.shape[1], n_clusters
    out = np.zeros((S, S, c, c), dtype=np.int64)
    for i in range(S):
        for j in range(i):
            met = np.bincount(labels[:, i] * c + labels[:, j], minlength=c * c)
            out[i, j] = met.reshape(c, c)
    return out


def _distinct(overlap: np.ndarray) -> list[int]:
    """Return the starts that do not equal an earlier one up to a permutation of the clusters."""
    kept: list[int] = []
    for i in range(len(overlap)):
        met = overlap[i, kept] > 0
        same = (met.sum(axis=1) <= 1).all(axis=1) & (met.sum(axis=2) <= 1).all(axis=1)
        if not same.any():
            kept.append(i)
    return kept


def kept_starts(blocks: RowBlocks, labels: ArrayRef, kept: list[int], scratch: Scratch) -> ArrayRef:
    """Return a new array with the labels of the given starts."""
    name, shape = scratch.unique("kept_starts"), (blocks.n_samples, len(kept))
    out = scratch.create(name, shape, np.uint8, blocks.rows)
    write_starts(blocks, labels, kept, out)
    return out


def write_starts(blocks: RowBlocks, labels: ArrayRef, kept: list[int], out: ArrayRef) -> None:
    """Write the labels of the given starts; for one start ``out`` may have shape (n_samples,)."""
    run_tasks(_pick_task, blocks.bounds, labels, kept, out, label="m3fs starts", unit="blocks")


def _pick_task(bounds: tuple[int, int], labels: ArrayRef, kept: list[int], out: ArrayRef) -> None:
    picked = labels.read(*bounds)[:, kept].astype(out.dtype)
    out.write(bounds[0], picked.reshape(len(picked), *out.shape[1:]))


def _spectral_labels(
    spectral: SpectralEmbedding,
    blocks: RowBlocks,
    n_clusters: int,
    random_state: int,
    scratch: Scratch,
) -> tuple[list[str], ArrayRef]:
    """Cluster the rows of embeddings of several widths, as they are and scaled to norm one."""
    n, embedding = blocks.n_samples, spectral.embedding_ref
    width = min(embedding.shape[1], n - 2)
    widths = sorted({min(max(1, n_clusters + extra), width) for extra in EXTRA_EIGENVECTORS})
    views = [View(f"spectral {q}", q, False, _RESTARTS) for q in widths]
    views += [View(f"spectral {q}, rows scaled", q, True, _RESTARTS) for q in widths if q > 1]
    label = "m3fs spectral starts"
    centers = view_centers(views, embedding, n_clusters, random_state, scratch, label)
    used = [i for i, of_view in enumerate(centers) if len(of_view) > 1]
    views, centers = [views[i] for i in used], [centers[i] for i in used]
    out = scratch.create("spectral", (n, len(used)), np.uint8, blocks.rows)
    label_views(blocks.bounds, views, embedding, centers, out, label)
    return [view.name for view in views], out


def starts_to_run(n_starts: int, size: tuple[int, int], criterion: str) -> int:
    """Return the number of starts that are run to convergence, for V of shape ``size``."""
    many = size[1] > 1 and size[0] * size[1] > _MANY_UNKNOWNS
    return min(n_starts, _FEW_STARTS) if many and criterion == "likelihood" else n_starts


def likeliest(values: np.ndarray, count: int) -> list[int]:
    """Return the numbers of the ``count`` likeliest starts, ascending; ties go to the first."""
    ranked = np.argsort(-np.round(values, DIGITS), kind="stable")
    return [int(number) for number in np.sort(ranked[:count])]


def compared_rows(shape: Shape) -> int:
    """Return the number of rows on which the results of the starts are compared."""
    return min(shape.n_samples, 10_000, max(100, 2**22 // shape.n_features))


def choice_steps(shape: Shape, n_starts: int) -> tuple[Step, ...]:
    """Return the steps of `likelihoods`."""
    size, d, what = compared_rows(shape), shape.n_features, "the rows on which starts are compared"
    # The rows as stored, in float64, and those of a cluster; the smaller product of its rows with
    # its workspace.
    needed = size * d * (shape.itemsize + 16) + 24 * min(size, d) ** 2 + 8 * MIB
    return (
        *gather_steps(shape, size),
        Step(what, needed, n_starts),
        Step(what, 16 * shape.n_samples, by_client=True),
    )


def likelihoods(blocks: RowBlocks, clusters: ArrayRef, random_state: int) -> np.ndarray:
    """Return the likelihood of the clusters of each start, from one pass over the data.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    clusters : ArrayRef of shape (n_samples, n_starts), uint8
    random_state : int
        Seed for drawing the compared rows, if there are more than `compared_rows`.

    Returns
    -------
    likelihoods : ndarray of shape (n_starts,), float64
        Mean log-likelihood of a row, see `mean_log_likelihood`.
    """
    n, size = blocks.n_samples, compared_rows(blocks.layout)
    ids = np.sort(rng(random_state, "m3fs compared").choice(n, size, replace=False))
    rows = gather_rows(blocks, ids, "m3fs sample")
    labels = blocks.scratch.put(blocks.scratch.unique("compared"), clusters.take(ids))
    starts = list(range(clusters.shape[1]))
    values = run_tasks(_likelihood_task, starts, rows, labels, label="m3fs choice")
    blocks.scratch.remove(rows, labels)
    return np.array(values)


def _likelihood_task(number: int, rows: ArrayRef, labels: ArrayRef) -> float:
    return mean_log_likelihood(rows.load(), labels.load()[:, number])


def mean_log_likelihood(X: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean log-likelihood of rows, each under the Gaussian of its own cluster.

    With n_c rows in cluster c, S_c their covariance, and r `RIDGE` of the mean variance::

        sum_c n_c / n (log n_c / n - 1/2 log |2 pi (S_c + r I)| - 1/2 tr (S_c + r I)^-1 S_c)

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
    labels : ndarray of shape (n_samples,), int

    Returns
    -------
    likelihood : float
        0 if no feature varies.
    """
    X = X.astype(np.float64)
    n, d = X.shape
    ridge = RIDGE * float(X.var(axis=0).mean())
    if ridge == 0:
        return 0.0
    total = 0.0
    for c in np.unique(labels):
        Z = X[labels == c]
        Z -= Z.mean(axis=0)
        # The smaller of the two products has all nonzero eigenvalues.
        moments = Z @ Z.T if len(Z) < d else Z.T @ Z
        values = np.maximum(np.linalg.eigvalsh(moments) / len(Z), 0.0)
        entropy = d * np.log(2 * np.pi * ridge) + np.log1p(values / ridge).sum()
        entropy += (values / (values + ridge)).sum()
        total += len(Z) * (np.log(len(Z) / n) - entropy / 2)
    return float(total / n)
