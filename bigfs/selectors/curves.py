"""The stage that computes the curves, after the scores, for every method.

The curves need the products of the leading features with all features and the eigenvectors, and a
sample of the rows; the rest is done with small matrices on the client. If the method has stored X'X
and X'Y, only a few blocks are read, for the sample; else one pass over the data gives both. This
also holds for wide data: the d x d matrix is never formed for the curves, and if a worker has no
room for the wanted number of leading features, fewer are examined.

Runs on workers; imports no scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bigfs.blocks.kernels import as_dense, tile_bytes
from bigfs.blocks.rowblocks import fold_parts
from bigfs.config import Selection
from bigfs.config.sections import Auto, GraphConfig
from bigfs.core.cost import Shape, StageCost, Step, loop_seconds, pass_over, product_seconds
from bigfs.core.memory import task_budget
from bigfs.core.units import MIB
from bigfs.graph.recall import sample_rows
from bigfs.runtime.progress import track
from bigfs.selectors.cross import (
    GROUP,
    Cross,
    dense_cross,
    merge_cross,
    own_bytes,
    sparse_own_cross,
)
from bigfs.selectors.number import (
    at_least,
    choose_number,
    is_by_fits,
    largest_number,
)
from bigfs.selectors.redundancy import included
from bigfs.selectors.registry import METHODS
from bigfs.selectors.scoring import choose_scoring
from bigfs.solvers import nested
from bigfs.spectral.choice import largest_count
from bigfs.stages.curves import Curves, curve_sizes
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stability import Stability
from bigfs.stages.stage import Inputs, Stage
from bigfs.stages.sums import read_products
from bigfs.store.scratch import ArrayRef, Scratch

# Curves end at this multiple of the number of selected features, and at this number if it is less,
# but not before the number of selected features.
_BEYOND, _FAR = 4, 200
# Upper bounds of the rows of the sample, and of the values in it.
_SAMPLE_ROWS, _SAMPLE_VALUES = 500, 2**23
# Number of blocks that the sample is read from if no pass is needed.
_SAMPLE_BLOCKS = 20


def curves_stage(selection: Selection, fits: Stage | None = None, *, quick: bool = False) -> Stage:
    """Return the stage of the curves, which follows the result of a selection.

    Parameters
    ----------
    selection : Selection
    fits : Stage or None, default=None
        The stability stage of the selection, if there is one.
    quick : bool, default=False
        True if the result is the consensus of fits on samples, which has already chosen the
        number of features.
    """
    number = selection.n_features_to_select
    settings = {
        "n_features_to_select": number.model_dump() if isinstance(number, Auto) else number,
        "n_neighbors": _n_neighbors(selection),
        "random_state": selection.random_state,
        "memory_limit": selection.memory_limit,
    }
    if fits is not None and is_by_fits(number):
        settings["stability"] = fits.settings
    choose = partial(_choose, selection=selection, quick=quick)
    return Stage("curves", 9, settings, choose, sparse=True)


def _choose(shape: Shape, selection: Selection, quick: bool) -> OnePass:
    """Return the strategy: without a pass if the method has stored its products."""
    left = not quick and choose_scoring(shape, selection).strategy.leaves_products
    return (FromProducts if left else OnePass).of(shape, selection, quick=quick)


def _n_neighbors(selection: Selection) -> int:
    return (selection.graph or GraphConfig()).n_neighbors


@dataclass(frozen=True)
class OnePass:
    """Curves from one pass: products of the leading features with all, and a sample of rows."""

    shape: Shape
    selection: Selection
    quick: bool  # True if the result is the consensus of fits on samples
    largest: int  # the largest number of features on the curves
    n_leading: int  # upper bound of the number of features whose products are computed
    n_targets: int  # upper bound of the number of eigenvectors
    n_rows: int  # number of rows of the sample
    notes: tuple[str, ...]

    @classmethod
    def of(cls, shape: Shape, selection: Selection, *, quick: bool = False) -> OnePass:
        """Return the strategy for data of a shape."""
        method, number = METHODS[selection.method], selection.n_features_to_select
        up_to = method.one_fit_up_to(selection.parameters)
        d, n_targets, notes = shape.n_features, 0, []
        if not quick and "spectral" in method.needs(selection.parameters):
            n_targets = largest_count(method.n_components(selection.parameters))
        if isinstance(number, Auto):
            largest = largest_number(number, shape.n_samples, d)
            if largest > up_to:
                notes.append(
                    f"The ranking of {method.title} depends on how many features it selects; this "
                    f"one is for {largest}. Run it with the chosen number to get its ranking."
                )
        else:
            largest = min(d, max(number, min(_BEYOND * number, _FAR)))
        # If the selections of a fit are not nested, their union has more than `largest` features.
        wanted = min(d, 2 * largest if largest <= up_to < np.inf else largest)
        budget = task_budget(selection.memory_limit)
        room = budget // 2 - shape.read_bytes - _tile_bytes(d + n_targets)
        room -= own_bytes(shape, GROUP)
        each = 8 * (d + n_targets) * _parts(shape)
        n_leading = max(1, min(wanted, room // each))
        if n_leading < (largest if isinstance(number, Auto) else number):
            if isinstance(number, Auto):
                what = f"Not all numbers of features up to {largest:,} were considered"
            else:
                what = f"The gain of features is known for the first {n_leading:,} only, and the "
                what += "closest selected feature is not known for any"
            notes.append(
                f"{what}: workers have no memory for products of more features with all {d:,}. "
                "Raise memory_limit."
            )
        n_rows = max(20, min(_SAMPLE_VALUES, budget // 200) // d)
        n_rows = min(shape.n_samples, _SAMPLE_ROWS, n_rows)
        largest = min(largest, n_leading)
        return cls(shape, selection, quick, largest, n_leading, n_targets, n_rows, tuple(notes))

    @property
    def number(self) -> int | Auto:
        """The number of features to select, or the settings that choose it."""
        return self.selection.n_features_to_select

    def cost(self) -> StageCost:
        """Return the cost of the pass and of the matrices on the client."""
        shape, d = self.shape, self.shape.n_features
        products = 8 * self.n_leading * (d + self.n_targets)
        rows = self.n_rows * d * shape.itemsize
        what = f"products of {self.n_leading:,} leading features with {d:,}"
        block = shape.read_bytes + _tile_bytes(d + self.n_targets)
        block += own_bytes(shape, self.n_leading)
        needed = block + _parts(shape) * (products + 2 * 8 * d) + 2 * rows
        client = 4 * products + 3 * 8 * self.n_rows * d + 8 * 8 * self.n_rows**2 + 8 * MIB
        rate = product_seconds if shape.n_entries is None else loop_seconds
        path_seconds = product_seconds(d, self.largest, self.largest)
        products_seconds = rate(shape.n_values, self.largest)
        return StageCost(
            (
                replace(pass_over(shape, what, seconds=products_seconds), task_bytes=needed),
                Step(f"curves from the {what}", client, by_client=True, seconds=path_seconds),
            ),
        )

    def run(self, inputs: Inputs, out: Scratch) -> None:
        """Compute and store the curves and the selection."""
        result = FeatureScores.open(inputs.finished["result"])
        targets = inputs.spectral.embedding_ref if "spectral" in inputs.finished else None
        self.measure(inputs, result, targets).store(out)

    def measure(self, inputs: Inputs, result: FeatureScores, targets: ArrayRef | None) -> Curves:
        """Return the curves of the opened data.

        Parameters
        ----------
        inputs : Inputs
        result : FeatureScores
            Scores and ranking of the features.
        targets : ArrayRef of shape (n_samples, n_targets) or None
            Eigenvectors of the graph, if the method uses them.
        """
        blocks = inputs.blocks
        first = [] if isinstance(self.number, Auto) else _path(result, self.number).tolist()
        leading, largest = _leading(result, first[: self.n_leading], self.largest, self.n_leading)
        sizes = curve_sizes(largest)
        if not isinstance(self.number, Auto) and self.number <= largest:
            sizes = np.union1d(sizes, [self.number])
        paths = [_path(result, m) for m in sizes.tolist()]
        cross, rows = self._read(inputs, leading, targets)
        products = _LeadingProducts(cross, leading, blocks.n_samples, blocks.n_features)
        values = products.curves(paths)
        n_neighbors = min(_n_neighbors(self.selection), self.shape.n_samples - 1)
        kept = _kept(np.concatenate(rows).astype(np.float64), paths, n_neighbors)
        values["neighbors_kept"] = kept.mean(axis=1)
        errors = {"neighbors_kept": kept.std(axis=1) / np.sqrt(kept.shape[1])}
        if is_by_fits(self.number):
            fits = inputs.finished.get("stability")  # None if the result itself comes from fits
            details = result.details if fits is None else FeatureScores.open(fits).details
            of_fits, their_errors = Stability.from_details(details).curves(sizes)
            values, errors = values | of_fits, errors | their_errors
        number, about = self.number, result.details.get("number")
        if isinstance(number, Auto):
            if about is None:
                about = choose_number(number, sizes, values, errors, blocks.n_samples)
                about = at_least(about, len(included(blocks.source, self.selection.include)))
            number = about["n_features_to_select"]
        return Curves(
            sizes=sizes,
            values=values,
            errors=errors,
            **self._reasons(_path(result, number), result, products),
            number=about,
            n_rows=kept.shape[1],
            n_neighbors=n_neighbors,
            notes=list(self.notes),
        )

    def _read(
        self, inputs: Inputs, leading: np.ndarray, targets: ArrayRef | None
    ) -> tuple[Cross, list[np.ndarray]]:
        """Return the products of the leading features, and the rows of the sample.

        The products are those with all features, followed by those with the eigenvectors.
        """
        sample = (inputs.blocks.n_samples, self.selection.random_state, self.n_rows)
        shared = leading, targets, sample
        return inputs.blocks.reduce(_kernel, _merge, *shared, label="curves")

    def _reasons(
        self, order: np.ndarray, result: FeatureScores, products: _LeadingProducts
    ) -> dict[str, Any]:
        """Return the selection and the reasons why each feature is in it or not.

        They are fields of `Curves`.
        """
        known = order[np.isin(order, products.leading)]
        gains, d = products.gains(known), self.shape.n_features
        adds = np.full(len(order), np.nan)
        adds[np.isin(order, known)] = gains[:, :d].sum(axis=1) / products.total
        closest, correlation = products.closest(known)
        if len(known) < len(order):
            closest, correlation = np.full(d, -1), np.full(d, np.nan)
        closest[order], correlation[order] = -1, 0.0
        what, parts = "eigenvector", np.zeros((d, gains.shape[1] - d))
        explains_parts = None if self.quick else METHODS[self.selection.method].explains
        if explains_parts is not None:
            what, parts = explains_parts(result.details)
        else:
            parts[known] = gains[:, d:] / _or_one(products.squares[d:])
        explains = [_part(what, parts[feature]) for feature in order.tolist()]
        return {
            "order": order,
            "adds": adds,
            "explains": explains,
            "closest": closest,
            "correlation": correlation,
        }


class FromProducts(OnePass):
    """Curves from the products stored by the method, and a sample of rows from a few blocks."""

    def cost(self) -> StageCost:
        """Return the cost of the matrices on the client and of one block."""
        shape, d = self.shape, self.shape.n_features
        client = super().cost().steps[-1]
        needed = client.task_bytes + 8 * d * (d + self.n_targets) + shape.read_bytes
        step = replace(client, what="curves from the Gram matrix", task_bytes=needed)
        return StageCost((step,))

    def _read(
        self, inputs: Inputs, leading: np.ndarray, targets: ArrayRef | None
    ) -> tuple[Cross, list[np.ndarray]]:
        blocks = inputs.blocks
        gram = read_products(inputs.finished["result"], blocks.n_samples)
        squares = inputs.spectral.norms**2 - gram.count * gram.y_mean**2
        cross = Cross(
            gram.count,
            np.concatenate([gram.mean, gram.y_mean]),
            gram.mean[leading],
            np.asfortranarray(np.vstack([gram.gram[:, leading], gram.xty[leading].T])),
            np.concatenate([gram.gram.diagonal(), np.maximum(squares, 0.0)]),
        )
        reader, rows, left = blocks.start_pass(0), [], self.n_rows
        few = np.unique(np.linspace(0, len(blocks.bounds) - 1, _SAMPLE_BLOCKS).astype(int))
        with track("curves", len(few)) as progress:
            for place, number in enumerate(few.tolist()):
                start, stop = blocks.bounds[number]
                wanted = min(stop - start, -(-left // (len(few) - place)))
                left -= wanted
                seed = self.selection.random_state + number
                chosen = sample_rows(stop - start, seed, wanted)
                rows.append(np.array(reader.read(start, stop)[chosen]))
                progress.advance(1)
        return cross, rows


def _or_one(values: np.ndarray) -> np.ndarray:
    """Return the values with 1 in place of 0, for use as divisors."""
    return np.where(values > 0, values, 1.0)


def _tile_bytes(n_columns: int) -> int:
    """Return the bytes of a block's tiles in float64: a tile, its source, and leading columns."""
    return 3 * tile_bytes(n_columns)


def _parts(shape: Shape) -> int:
    """Return the number of partial products a worker holds: those of a fold and one in transit."""
    return fold_parts(shape.n_blocks) + 1


def _path(result: FeatureScores, m: int) -> np.ndarray:
    """Return the selection of ``m`` features, in the order of the ranking."""
    if result.supports is None:
        return result.ranking[:m]
    return result.ranking[np.isin(result.ranking, result.support(m))]


def _leading(
    result: FeatureScores, first: list[int], largest: int, most: int
) -> tuple[np.ndarray, int]:
    """Return the union of the selections of 1, 2, ... features, and the largest number that fits.

    Parameters
    ----------
    result : FeatureScores
    first : list of int
        Features that are included in any case, before all others.
    largest : int
        Largest number of features of a selection.
    most : int
        Upper bound of the number of features in the union.

    Returns
    -------
    leading : ndarray of int64
        The union.
    largest : int
        Largest number of features whose selection is contained in it.
    """
    if result.supports is None:  # selections are nested
        leading = result.ranking[: min(max(largest, len(first)), most)]
        return leading.astype(np.int64), min(largest, len(leading))
    together = dict.fromkeys(first)
    for m in range(1, largest + 1):
        fresh = [feature for feature in _path(result, m).tolist() if feature not in together]
        if len(together) + len(fresh) > most:
            largest = max(1, m - 1)
            break
        together |= dict.fromkeys(fresh)
    return np.array(list(together)[:most], dtype=np.int64), largest


def _part(what: str, weights: np.ndarray) -> str:
    """Return the name of the part that a feature contributes most to.

    If the weights are booleans, all parts whose weight is True are listed. The text is empty if all
    weights are zero.
    """
    weights = np.asarray(weights)
    if not weights.any():
        return ""
    if weights.dtype == bool:
        return f"{what} {', '.join(map(str, np.flatnonzero(weights).tolist()))}"
    return f"{what} {int(np.abs(weights).argmax())}"


@dataclass
class _LeadingProducts:
    """Products of the leading columns with all columns, and quantities derived from them."""

    # Products of all columns of X, followed by the eigenvectors, with the leading features.
    cross: Cross
    leading: np.ndarray  # of shape (n_leading,), int64
    # Numbers of rows and of features.
    n: int
    d: int
    _last: tuple[bytes, np.ndarray] | None = None  # cache: the last path and its gains

    @property
    def squares(self) -> np.ndarray:
        """Squared norms of the centered columns, followed by those of the eigenvectors."""
        return self.cross.squares

    @property
    def total(self) -> float:
        """Sum of the squared norms of all features; 1 if all are constant."""
        return float(self.squares[: self.d].sum()) or 1.0

    def _places(self, path: np.ndarray) -> list[int]:
        places = {feature: place for place, feature in enumerate(self.leading.tolist())}
        return [places[feature] for feature in path.tolist()]

    def gains(self, path: np.ndarray) -> np.ndarray:
        """Return the gains of each feature of a path; see `bigfs.solvers.nested.explained_by`."""
        key = path.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = None  # free the memory before the next gains are computed
            rows = np.ascontiguousarray(self.cross.cross.T[self._places(path)])
            self._last = key, nested.explained_by(rows, path)
        return self._last[1]

    def curves(self, paths: list[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the explained shares of the selections, by the names of the curves.

        If all selections are prefixes of the last one, they are computed together.
        """
        d, last = self.d, paths[-1]
        is_path = all(np.array_equal(path, last[: len(path)]) for path in paths)
        of_last = self._shares(last) if is_path else np.empty(0)
        rows = [of_last[len(p) - 1] if is_path else self._shares(p)[-1] for p in paths]
        names = ["explained_variance", "explained_others", "explained_eigenvectors"]
        kept = names[: 3 if len(self.squares) > d else 2]
        return {name: np.array([row[i] for row in rows]) for i, name in enumerate(kept)}

    def _shares(self, path: np.ndarray) -> np.ndarray:
        """Return the explained shares of the first 1, 2, ... features of a path.

        Returns
        -------
        shares : ndarray of shape (n_path, 3)
            Shares of the variance, of the variance of the other features beyond chance, and of the
            eigenvectors (0 without eigenvectors).
        """
        gains, d = self.gains(path), self.d
        variance = np.cumsum(gains[:, :d].sum(axis=1)) / self.total
        others = nested.explained_others(gains[:, :d], path, self.squares[:d], self.n)
        eigenvectors = np.zeros(len(path))
        if len(self.squares) > d:
            shares = np.cumsum(gains[:, d:], axis=0) / _or_one(self.squares[d:])
            eigenvectors = shares.mean(axis=1)
        return np.column_stack([variance, others, eigenvectors])

    def closest(self, selected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the closest selected feature of every feature, and their correlation.

        The closest feature is the one of largest absolute correlation; -1 and 0 if all correlations
        are 0.
        """
        scale = _or_one(np.sqrt(self.squares[: self.d]))
        closest, correlation = np.full(self.d, -1), np.zeros(self.d)
        for feature, place in zip(selected.tolist(), self._places(selected), strict=True):
            own = self.cross.cross[: self.d, place] / scale[feature] / scale
            closer = np.abs(own) > np.abs(correlation)
            closest[closer], correlation[closer] = feature, own[closer]
        return closest, np.clip(correlation, -1.0, 1.0)


def _kept(rows: np.ndarray, paths: list[np.ndarray], k: int) -> np.ndarray:
    """Return the share of its ``k`` nearest rows that each row keeps in each selection.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features), float64
    paths : list of ndarray of int
        Selections of features.
    k : int
        Number of nearest rows; at most ``n_rows - 1`` are used.

    Returns
    -------
    kept : ndarray of shape (n_paths, n_rows), float64
    """
    rows = rows - rows.mean(axis=0)
    k = min(k, len(rows) - 1)
    in_all = nested.squared_distances(rows @ rows.T)
    near = in_all <= nested.kth_smallest(in_all, k)
    kept, before, gram = [], paths[0][:0], np.zeros_like(in_all)
    for path in paths:
        if not np.array_equal(path[: len(before)], before):
            before, gram = path[:0], np.zeros_like(in_all)
        joining = rows[:, path[len(before) :]]
        gram += joining @ joining.T
        before = path
        kept.append(nested.neighbors_kept(nested.squared_distances(gram), near, k))
    return np.array(kept)


def _kernel(
    X: np.ndarray,
    first_row: int,
    leading: np.ndarray,
    Y: ArrayRef | None,
    sample: tuple[int, int, int],
) -> tuple[Cross, list[np.ndarray]]:
    """Return the products of ``[X Y]`` with the leading columns of X, and the sampled rows.

    The sampled rows are those of this block.
    """
    n = X.shape[0]
    rows = None if Y is None else Y.read(first_row, first_row + n)
    if hasattr(X, "indptr"):
        total = sparse_own_cross(X, leading)
        if rows is not None:
            total = _below(total, rows, as_dense(X[:, leading]))
    else:
        total = dense_cross([X] if rows is None else [X, rows], leading)
    chosen = sample_rows(*sample)
    inside = chosen[(chosen >= first_row) & (chosen < first_row + n)] - first_row
    return total, [as_dense(X[inside])]


def _below(total: Cross, rows: np.ndarray, side: np.ndarray) -> Cross:
    """Return the products of a CSR block with those of further dense columns appended."""
    of_rows = dense_cross([rows], side)
    return Cross(
        total.count,
        np.concatenate([total.mean, of_rows.mean]),
        total.other_mean,
        # One copy, in Fortran order.
        np.hstack([total.cross.T, of_rows.cross.T]).T,
        np.concatenate([total.squares, of_rows.squares]),
    )


def _merge(
    a: tuple[Cross, list[np.ndarray]], b: tuple[Cross, list[np.ndarray]]
) -> tuple[Cross, list[np.ndarray]]:
    return merge_cross(a[0], b[0]), a[1] + b[1]
