"""Scores of count data: one pass collects moments and the large values, which the clip may cut.

A second pass is needed if a clip lies below the threshold of the large values (fractions), or if
there are too many large values (few rows of large counts).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from bigfs.blocks.csr_kernels import csr_moments, kernel_bytes
from bigfs.blocks.kernels import Moments, merge_moments, tile_rows
from bigfs.blocks.rowblocks import RowBlocks, fold_parts
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost, Step, loop_seconds, pass_over
from bigfs.core.errors import InputError, RowError
from bigfs.core.text import FROM_0
from bigfs.core.units import MIB
from bigfs.selectors.method import Strategy
from bigfs.selectors.scoring import start_of
from bigfs.stages.scores import FeatureScores, rounded
from bigfs.stages.stage import Inputs
from bigfs.store.csr import as_block
from bigfs.store.scratch import ArrayRef, Scratch
from bigfs.store.values import check_classes

# Measured, per entry: its row, the total of that row, and the terms of the deviance.
_DEVIANCE_BYTES = 6 * 8
# Per entry: the rows of one batch are copied.
_COPY_BYTES = 8
# Memory of a tile of a dense block in CSR form.
_TILE_BYTES = 96 * MIB
# A value is kept if it exceeds this multiple of the square root of its column's sum. The variance
# of counts is at least about their mean m, so the clip m + sqrt(n variance) is above sqrt(n m),
# which is twice this threshold.
_ROOTS = 0.5
# Upper bound of the number of values kept per column, on average.
_MOST_KEPT = 4


@dataclass
class ExactSums:
    """Exact sums of whole numbers and their squares: the result does not depend on the blocks."""

    count: int  # rows
    total: np.ndarray  # of shape (n_features,), float64
    products: np.ndarray  # of shape (n_features,), float64: sums of squares

    @property
    def are_exact(self) -> bool:
        """True if all sums are small enough to be represented exactly."""
        return bool(self.products.max(initial=0) < 2**53)

    def moments(self) -> Moments:
        """Return the moments; the minimum and maximum of a varying column are only bounds."""
        n, columns = self.count, zip(self.products.tolist(), self.total.tolist(), strict=True)
        squares = np.array([(n * int(p) - int(t) ** 2) / n for p, t in columns], dtype=np.float64)
        mean, varies = self.total / n, squares > 0
        return Moments(n, mean, squares, np.where(varies, 0, mean), np.where(varies, np.inf, mean))


@dataclass
class Counts:
    """Moments, large values and deviance sums of each batch, over a set of rows."""

    # By batch: `ExactSums` as long as all values are whole numbers, else `Moments`.
    moments: dict[int, Any] = field(default_factory=dict)
    # By batch: columns and values that `_large` keeps, in row order; None if there are too many.
    large: dict[int, tuple[np.ndarray, np.ndarray] | None] = field(default_factory=dict)
    # By batch, of shape (n_features,), float64: the sum of ``x log(x/n_i) + (n_i - x)
    # log((n_i - x)/n_i)`` over the rows, where n_i is the total of row i.
    log_products: dict[int, np.ndarray] = field(default_factory=dict)
    whole_numbers: bool = True  # True if all values are whole numbers

    def add(self, other: Counts) -> Counts:
        """Add the counts of other rows in place."""
        for batch, moments in other.moments.items():
            own, kept = self.moments.get(batch), other.large[batch]
            if own is not None:
                moments, before = _joined(own, moments), self.large[batch]
                if before is None or kept is None:
                    kept = None
                else:
                    columns, values = map(np.append, before, kept)
                    kept = _large(columns, values, moments)
            self.moments[batch], self.large[batch] = moments, kept
        for batch, sums in other.log_products.items():
            self.log_products[batch] = self.log_products.get(batch, 0.0) + sums
        self.whole_numbers &= other.whole_numbers
        return self


def count_kernel(X: Any, first_row: int, batches: ArrayRef | None, deviance: bool) -> Counts:
    """Return the moments of each batch in a block, and its deviance sums if ``deviance`` is True.

    Raises
    ------
    InputError
        If a value is negative; the message names its row and column.
    """
    total = Counts()
    for batch, rows in _by_batch(X, first_row, batches, check=True):
        are_whole = bool((rows.data == np.floor(rows.data)).all())
        moments = _moments(rows, are_whole)
        part = Counts({batch: moments}, {batch: None}, whole_numbers=are_whole)
        if deviance:
            part.log_products[batch] = _log_products(rows)
        else:
            part.large[batch] = _large(rows.indices, rows.data, moments)
        total.add(part)
    return total


def _large(
    columns: np.ndarray, values: np.ndarray, moments: Moments | ExactSums
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the values that may be above the clip, given the moments of their rows.

    None if there are too many. Merging with more rows only raises the sum of a column, so a value
    that is left out here stays below the threshold.
    """
    limits = _limits(moments)
    kept = values > limits.take(columns)
    if np.count_nonzero(kept) > _MOST_KEPT * len(limits):
        return None
    return columns[kept], values[kept]


def _limits(moments: Moments | ExactSums) -> np.ndarray:
    """Return the threshold of each column, above which values are kept."""
    if isinstance(moments, ExactSums):
        return _ROOTS * np.sqrt(moments.total)
    return _ROOTS * np.sqrt(moments.mean * moments.count)


def _joined(a: Moments | ExactSums, b: Moments | ExactSums) -> Moments | ExactSums:
    """Return the merged moments of two sets of rows."""
    if isinstance(a, ExactSums) and isinstance(b, ExactSums):
        sums = ExactSums(a.count + b.count, a.total + b.total, a.products + b.products)
        if sums.are_exact:
            return sums
    return merge_moments(
        *(part.moments() if isinstance(part, ExactSums) else part for part in (a, b))
    )


def _beyond(
    columns: np.ndarray, values: np.ndarray, mean: np.ndarray, clip: np.ndarray
) -> np.ndarray:
    """Return the sum of ``(x - mean)^2 - (clip - mean)^2`` per column over values above the clip.

    Clipping reduces the sums of squares by this amount.
    """
    above = np.flatnonzero(values > clip.take(columns))
    columns, values = columns[above], values[above].astype(np.float64)
    terms = np.square(values - mean[columns]) - np.square((clip - mean)[columns])
    return np.bincount(columns, terms, len(mean))


def _moments(rows: Any, are_whole: bool) -> Moments | ExactSums:
    """Return exact sums of counts, or for other values the moments from their deviations."""
    from scipy.sparse import csc_array

    if not are_whole:
        return csr_moments(rows)
    n, x = rows.shape[0], rows.data.astype(np.float64)

    def sums(values: np.ndarray) -> np.ndarray:  # by column
        return csc_array((values, rows.indices, rows.indptr), shape=rows.shape[::-1]) @ np.ones(n)

    exact = ExactSums(n, sums(x), sums(np.square(x, out=x)))
    return exact if exact.are_exact else csr_moments(rows)


def clipped_kernel(
    X: Any, first_row: int, batches: ArrayRef | None, mean: ArrayRef, clip: ArrayRef
) -> np.ndarray:
    """Return the sums of `_beyond` for a block, shape (n_batches, n_features)."""
    means, clips = mean.load(), clip.load()
    total = np.zeros(means.shape)
    for batch, rows in _by_batch(X, first_row, batches):
        total[batch] += _beyond(rows.indices, rows.data, means[batch], clips[batch])
    return total


def _by_batch(
    X: Any, first_row: int, batches: ArrayRef | None, check: bool = False
) -> Iterator[tuple[int, Any]]:
    """Yield the rows of each batch in CSR form; a dense block is processed in tiles."""
    n_rows = X.shape[0]
    step = n_rows if hasattr(X, "indptr") else tile_rows(X.shape[1])
    for begin in range(0, n_rows, step):
        tile = X if step >= n_rows and hasattr(X, "indptr") else X[begin : begin + step]
        rows = as_block(tile, X.dtype)
        if check:
            _check_counts(rows, first_row + begin)
        if batches is None:
            yield 0, rows
            continue
        codes = batches.read(first_row + begin, first_row + begin + rows.shape[0])
        for batch in np.unique(codes).tolist():
            own = codes == batch
            yield batch, rows if own.all() else rows[np.flatnonzero(own)]


def _check_counts(rows: Any, first_row: int) -> None:
    if rows.nnz and rows.data.min() < 0:
        entry = int((rows.data < 0).argmax())
        row = first_row + int(np.searchsorted(rows.indptr, entry, side="right")) - 1
        raise RowError(
            f"HighlyVariable: Negative values in data: row {row}, column "
            f"{int(rows.indices[entry])} is {rows.data[entry]:g}. Pass raw counts, not centered "
            f"or scaled data. {FROM_0}"
        )


def _log_products(rows: Any) -> np.ndarray:
    from scipy.special import xlogy

    x = rows.data.astype(np.float64)
    row_of = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    totals = np.bincount(row_of, x, minlength=rows.shape[0])[row_of]
    terms = xlogy(x, x / totals)
    # In a row of fractions, rounding can make the total smaller than its only value.
    rest = np.maximum(totals - x, 0.0)
    terms += xlogy(rest, rest / totals)
    return np.bincount(rows.indices, terms, minlength=rows.shape[1])


logger = logging.getLogger("bigfs")

_SPAN = 0.3
# A local parabola needs three points within the span; with fewer the package crashes.
_LEAST_FEATURES = 10
_PSEUDOINVERSE = ("reciprocal condition number", "pseudoinverse used", "near singularities")
# Vectors of a partial result: mean, squares, minimum, maximum, and sums for the deviance.
_VECTORS = 5
# Vectors of the large values: a column index of 4 bytes and a value of up to 8.
_KEPT_VECTORS = 12 * _MOST_KEPT // 8
# Measured: loop steps per stored count.
_LOOPS = 20


def choose(shape: Shape, selection: Selection) -> Deviances | ClippedVariances:
    """Return the strategy for the flavor."""
    codes = _batches(selection, None)
    n_batches = 1 if codes is None else int(codes.max()) + 1
    kind = Deviances if selection.parameters.flavor == "deviance" else ClippedVariances
    return kind(shape, selection, n_batches)


def _batches(selection: Selection, n_samples: int | None, *places: Any) -> np.ndarray | None:
    """Return the batch number of each row, in sorted order of the batches; None without batches.

    Parameters
    ----------
    selection : Selection
    n_samples : int or None
        Required number of rows. None: not checked.
    *places
        Rows that were dropped while reading, and the row dimensions, as passed to `start_of`.
    """
    if selection.parameters.batch_key is None:
        return None
    values = np.asarray(start_of(selection, n_samples, *places))
    n_rows = values.size if n_samples is None else n_samples
    if values.shape != (n_rows,) or values.dtype.kind not in "fiubUS" or not n_rows:
        raise InputError(
            f"HighlyVariable: batch_key must name a batch for each of the {n_rows} rows. Got "
            f"an array of {values.dtype} with shape {values.shape}."
        )
    batches, numbers = np.unique(values, return_inverse=True)
    if n_samples is None:  # checked only once, before anything runs
        check_classes(batches, n_rows, "HighlyVariable: batch_key", refuse=True)
    return numbers.astype(np.int32)


@dataclass(frozen=True)
class _OfBatches(Strategy):
    """Passes over the counts that all flavors share."""

    n_batches: int
    _deviance: ClassVar[bool] = False

    def _kernel_bytes(self) -> int:
        """Return the bytes that the kernels need in addition to a block."""
        entries = self.shape.block_entries
        if entries is None:
            return _TILE_BYTES
        own = _DEVIANCE_BYTES * entries if self._deviance else kernel_bytes(self.shape)
        return own + (_COPY_BYTES * entries if self.n_batches > 1 else 0)

    def _pass(self, what: str, n_vectors: int) -> Step:
        """Return the step of a pass whose result has ``n_vectors`` vectors per batch."""
        vectors = 8 * n_vectors * self.n_batches * self.shape.n_features
        seconds = loop_seconds(self.shape.n_values, _LOOPS)
        step = pass_over(self.shape, what, self._kernel_bytes() + 2 * vectors, seconds=seconds)
        folded = fold_parts(self.shape.n_blocks) * vectors
        if folded <= step.task_bytes:
            return step
        what = f"{what}: sums of {self.n_batches:,} batches in a fold"
        return replace(step, what=what, task_bytes=folded)

    def _counts(self, blocks: RowBlocks) -> tuple[Counts, ArrayRef | None]:
        """Return the counts of all batches, and the stored batch numbers of the rows."""
        if blocks.offset is not None:
            raise InputError(
                f"HighlyVariable: preprocess '{blocks.transform.kind}' turns zero counts into "
                "nonzero values. Pass raw counts (preprocess: none)."
            )
        places = blocks.source.dropped, blocks.source.row_dimensions
        codes, stored = _batches(self.selection, blocks.n_samples, *places), None
        if codes is not None:
            stored = blocks.scratch.put(blocks.scratch.unique("batches"), codes, blocks.rows)
        counts = blocks.reduce(count_kernel, Counts.add, stored, self._deviance, label="counts")
        for batch, sums in counts.moments.items():
            counts.moments[batch] = sums.moments() if isinstance(sums, ExactSums) else sums
        if not counts.whole_numbers:
            logger.warning(
                "HighlyVariable: some values are not integers. The method expects raw counts, "
                "before normalization."
            )
        return counts, stored


class Deviances(_OfBatches):
    """Binomial deviance of every feature, from one pass."""

    _deviance = True

    def cost(self) -> StageCost:
        """Return the cost of the pass."""
        return StageCost((self._pass("a block and its deviances", _VECTORS),))

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the deviances, summed over batches."""
        counts, _ = self._counts(inputs.blocks)
        scores = np.zeros(self.shape.n_features)
        for batch in sorted(counts.moments):
            moments = counts.moments[batch]
            scores += deviance(moments.mean * moments.count, counts.log_products[batch])
        constant, details = _of_all_rows(counts)
        return FeatureScores.from_scores(scores, constant=constant, **details)


class ClippedVariances(_OfBatches):
    """Variances of the clipped values over those of the trend, from one or two passes."""

    def cost(self) -> StageCost:
        """Return the cost of the passes and of the trend; counts rarely need the second pass."""
        d = self.shape.n_features
        trend = Step("the trend of variances", 1024 * d + 16 * MIB, by_client=True)
        counts = self._pass("a block and its moments", _VECTORS - 1 + _KEPT_VECTORS)
        clipped = replace(self._pass("a block and its clipped values", 3), seconds=0.0)
        return StageCost((counts, trend, clipped), at_most=True)

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the mean scores over batches, ranked by the flavor's rule."""
        blocks, parameters = inputs.blocks, self.parameters
        counts, stored = self._counts(blocks)
        # There may be fewer batches than `n_batches`: dropped rows may include all of a batch.
        batches = [counts.moments[batch] for batch in sorted(counts.moments)]
        few = next((i for i, b in enumerate(batches) if b.count < 2), None)
        if few is not None:
            raise _too_small(few, self.n_batches, batches[few], "at least two rows are needed")
        means = np.array([batch.mean for batch in batches])
        deviations = np.array([self._trend(i, batch) for i, batch in enumerate(batches)])
        n_rows = np.array([[batch.count] for batch in batches])
        clips = means + deviations * np.sqrt(n_rows)
        known = [
            _beyond(*kept, means[i], clips[i])
            for i, batch in enumerate(batches)
            if (kept := counts.large[i]) and ((clips[i] >= _limits(batch)) | batch.constant).all()
        ]
        if len(known) == len(batches):
            beyond = np.array(known)
        else:
            with blocks.scratch.temporary("clips") as folder:
                shared = stored, folder.put("means", means), folder.put("clips", clips)
                beyond = blocks.reduce(clipped_kernel, np.add, *shared, label="clipped variances")
        # A value far above the others shifts the mean by 1 / n_rows of it, so at least that share
        # of the sum of squares remains, and the relative rounding error is below n_rows epsilon.
        squares = np.array([batch.squares for batch in batches])
        scores = (squares - beyond) / ((n_rows - 1) * deviations**2)
        constant, details = _of_all_rows(counts)
        m, paper = self.selection.n_features_to_select, parameters.flavor == "seurat_v3_paper"
        ranking, details["n_batches"] = rank_over_batches(scores, m, constant, paper=paper)
        return FeatureScores(scores.mean(axis=0), ranking, details, constant=constant)

    def _trend(self, batch: int, moments: Moments) -> np.ndarray:
        """Return the standard deviation that the trend predicts from each feature's mean."""
        try:
            return trend_deviations(moments.mean, moments.squares / (moments.count - 1))
        except ValueError as error:
            raise _too_small(batch, self.n_batches, moments, str(error)) from None


def _too_small(batch: int, n_batches: int, moments: Moments, why: str) -> InputError:
    which = f"batch {batch} (in sorted order)" if n_batches > 1 else "the data"
    varying = int((moments.squares > 0).sum())
    cure = "Merge it with another or drop it" if n_batches > 1 else "Use more rows or features"
    return InputError(
        f"HighlyVariable: no variance trend can be fitted to {which}, {moments.count:,} rows with "
        f"{varying:,} varying features ({why}). {cure}, or use flavor 'deviance'."
    )


def trend_deviations(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return the standard deviation predicted by a local regression of log variance on log mean.

    Parameters
    ----------
    mean, variance : ndarray of shape (n_features,), float64
        Mean and variance of the counts; the variance has divisor n - 1.

    Returns
    -------
    deviations : ndarray of shape (n_features,), float64
        1 for features that do not vary.

    Raises
    ------
    ValueError
        If the regression has too few points, fails, or is not finite.
    """
    varies = variance > 0
    expected = np.zeros(len(mean))
    if varies.any():
        if varies.sum() < _LEAST_FEATURES:
            raise ValueError(f"at least {_LEAST_FEATURES} varying features are needed")
        from skmisc.loess import loess

        model = loess(np.log10(mean[varies]), np.log10(variance[varies]), span=_SPAN, degree=2)
        try:
            model.fit()
        except ValueError as error:
            message = error.args[0] if error.args else ""
            message = message.decode() if isinstance(message, bytes) else str(message)
            # If many features share a mean, loess uses a pseudoinverse and raises an error that
            # reports it, although the fit is usable.
            if not any(phrase in message for phrase in _PSEUDOINVERSE):
                raise ValueError(message) from None
            logger.warning(
                "HighlyVariable: many features have the same mean, so the variance trend is less "
                "accurate there (%s). These features occur in few rows and are seldom selected. "
                "To avoid this warning, drop them: scanpy.pp.filter_genes(adata, min_cells=3).",
                " ".join(message.split()),
            )
        expected[varies] = model.outputs.fitted_values
        if not np.isfinite(expected).all():
            raise ValueError("the regression is not finite")
    return np.sqrt(10**expected)


def deviance(totals: np.ndarray, log_products: np.ndarray) -> np.ndarray:
    """Return the binomial deviance of each feature from a constant share of every row's total.

    Parameters
    ----------
    totals : ndarray of shape (n_features,), float64
        c_j, the sum of each feature.
    log_products : ndarray of shape (n_features,), float64
        Sums as in `Counts`.
    """
    from scipy.special import xlog1py, xlogy

    total = totals.sum()
    if total == 0:
        return np.zeros(len(totals))
    shares = totals / total
    values = 2 * (log_products - xlogy(totals, shares) - xlog1py(total - totals, -shares))
    # In exact arithmetic the deviance is 0 for a feature with the same share of every row. Rounding
    # can make it negative, and can make the share of a feature that has all counts exceed 1, where
    # the logarithm is NaN.
    return np.maximum(np.nan_to_num(values, nan=0.0), 0.0)


def rank_over_batches(
    scores: np.ndarray, n_selected: int, constant: np.ndarray, *, paper: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Rank the features by their ranks within batches, and count the batches that select them.

    Parameters
    ----------
    scores : ndarray of shape (n_batches, n_features), float64
    n_selected : int
        Only ranks below this number are used.
    constant : ndarray of shape (n_features,), bool
        Features that are ranked last.
    paper : bool
        If True, sort by the number of batches first, then by the median rank; otherwise the
        reverse.

    Returns
    -------
    ranking : ndarray of shape (n_features,), int64
        Ties in both go to the lower index; features that no batch selects are sorted by mean
        score.
    n_high : ndarray of shape (n_features,), int64
        Number of batches in which the rank is below ``n_selected``.
    """
    # Ties are left to NumPy's default sort, as in scanpy, so that the same features are selected:
    # a stable sort would select up to 16 of 2,000 features differently.
    order = np.argsort(-rounded(scores), axis=1)
    ranks = np.argsort(order, axis=1).astype(np.float64)
    high = ranks < n_selected
    n_high = high.sum(axis=0).astype(np.int64)
    median = np.ma.median(np.ma.masked_array(ranks, ~high), axis=0).filled(np.inf)
    rest = np.where(n_high > 0, 0.0, -scores.mean(axis=0))
    first, second = (-n_high, median) if paper else (median, -n_high)
    ranking = np.lexsort((np.arange(scores.shape[1]), rest, second, first, constant))
    return ranking.astype(np.int64), n_high


def _of_all_rows(counts: Counts) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the mask of constant features, and the moments that are part of the result."""
    moments = (counts.moments[batch] for batch in sorted(counts.moments))
    total = reduce(merge_moments, moments)
    variances = total.squares / max(1, total.count - 1)
    return total.constant, {"means": total.mean, "variances": variances}
