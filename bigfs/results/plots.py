"""Matplotlib plots of a selection, for Python, notebooks and the report.

Features may have positions in an image, or along an axis such as wavelength.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.text import cut, in_picture, printable
from bigfs.results.sample import Sample, sample_of, sample_of_result, selected_first
from bigfs.stages.curves import Curves
from bigfs.store.columns import as_number
from bigfs.store.labels import read_values

if TYPE_CHECKING:
    from bigfs.results.result import Result

# Colors that color-blind people can distinguish (Okabe and Ito).
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#666666")
KEPT, OTHER, MARK = COLORS[0], "#bbbbbb", COLORS[1]
_CURVES = {
    "explained_variance": "variance of all features explained",
    "explained_eigenvectors": "eigenvectors of the graph explained",
    "neighbors_kept": "nearest neighbors kept",
    "stability": "stability",
}
_NAMED, _POINTS_SIZE, _WIDEST = 40, 6, 40


@dataclass(frozen=True, repr=False)
class Plots:
    """Plots of a selection.

    Each method draws on ``ax``, or on a new figure if that is None, and returns the matplotlib
    axes. Returned by ``result.plot`` and ``bigfs.plot(selector, X)``.

    Attributes
    ----------
    title : str
    scores_ : ndarray of shape (n_features,), float64
    ranking : ndarray of shape (n_features,), int64
        Feature indices, best first: the selected features, then the others.
    n_selected : int
    names : list of str
    curves_ : Curves or None
    sample : callable
        Returns a `Sample` of the rows; called by the plots that show rows.
    """

    title: str
    scores_: np.ndarray
    ranking: np.ndarray
    n_selected: int
    names: list[str]
    curves_: Curves | None
    sample: Callable[[], Sample]

    def __repr__(self) -> str:
        return f"<Plots of {self.title}: {', '.join(_DRAWN)}>"

    def scores(self, ax: Any = None, *, n_features: int = 30) -> Any:
        """Draw the scores of the best features as bars, the selected ones in blue.

        Parameters
        ----------
        ax : Axes or None, default=None
        n_features : int, default=30
            Number of features to show, best first.

        Returns
        -------
        ax : Axes

        Examples
        --------
        >>> import bigfs
        >>> from sklearn.datasets import load_iris
        >>> selector = bigfs.MaxVariance(2).fit(load_iris().data)
        >>> ax = bigfs.plot(selector).scores()
        """
        best = self.ranking[:n_features]
        ax = _axes(ax, (6, 0.8 + 0.24 * len(best)))
        colors = [KEPT if place < self.n_selected else OTHER for place in range(len(best))]
        ax.barh(np.arange(len(best)), self.scores_[best], color=colors)
        self._name_rows(ax, best)
        ax.invert_yaxis()
        ax.set_xlabel("score")
        return ax

    def curves(self, ax: Any = None) -> Any:
        """Draw the curves over the number of features, with a line at the selected number.

        Parameters
        ----------
        ax : Axes or None, default=None

        Returns
        -------
        ax : Axes

        Raises
        ------
        InputError
            If the selection has no curves. Runs have them (unless ``curves`` is false), and fits
            with ``n_features_to_select="auto"``.
        """
        if self.curves_ is None:
            raise InputError(
                "This selection has no curves: runs have them unless curves is false, and fits "
                "have them with n_features_to_select='auto'."
            )
        ax = _axes(ax, (6, 3.6))
        for name, color in zip(_CURVES, COLORS, strict=False):
            if name in self.curves_.values:
                values = 100 * np.maximum(self.curves_.values[name], 0.0)
                ax.plot(self.curves_.sizes, values, color=color, label=_CURVES[name])
        ax.axvline(self.n_selected, color=MARK, linewidth=1, label=f"{self.n_selected} selected")
        ax.set(xlabel="selected features", ylabel="percent", ylim=(0, 102))
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend(frameon=False)
        return ax

    def map(self, ax: Any = None, labels: Any = None) -> Any:
        """Draw a sample of the rows in two dimensions, colored by cluster.

        Parameters
        ----------
        ax : Axes or None, default=None
        labels : array-like of shape (n_samples,) or None, default=None
            Known classes to color by. None: known labels of the run, or else clusters of the
            method, or else groups that k-means finds.

        Returns
        -------
        ax : Axes

        Raises
        ------
        InputError
            If there is not one label for each row.
        """
        sample = self.sample()
        groups, named = sample.groups, sample.group_name
        if labels is not None:
            known = np.asarray(labels)
            if known.shape != (sample.n_samples,):
                raise InputError(
                    f"labels must hold one label for each of the {sample.n_samples:,} rows. Got "
                    f"shape {known.shape}."
                )
            values, groups = np.unique(known[sample.rows], return_inverse=True)
            named = "labels"
        ax = _axes(ax, (6, 4.4))
        for group in np.unique(groups).tolist():
            inside = sample.points[groups == group]
            label = str(group) if labels is None else str(values[group])
            ax.scatter(*inside.T, s=_POINTS_SIZE, color=COLORS[group % len(COLORS)], alpha=0.6,
                       linewidths=0, rasterized=True, label=in_picture(label))  # fmt: skip
        ax.set(xlabel=f"{len(sample.points):,} rows by two {sample.axes}", xticks=[], yticks=[])
        if 1 < len(np.unique(groups)) <= 20:
            ax.legend(title=named, frameon=False, markerscale=2, loc="center left",
                      bbox_to_anchor=(1, 0.5))  # fmt: skip
        return ax

    def mask(self, image_shape: Sequence[int], ax: Any = None) -> Any:
        """Draw the selected features as pixels of an image; the better, the darker.

        Parameters
        ----------
        image_shape : (int, int)
            Rows and columns; features are pixels in row-major order.
        ax : Axes or None, default=None

        Returns
        -------
        ax : Axes

        Raises
        ------
        InputError
            If the number of pixels differs from the number of features.
        """
        check_image(image_shape, len(self.names))
        strength = np.full(len(self.names), np.nan)
        strength[self.ranking[: self.n_selected]] = np.linspace(1, 0.3, self.n_selected)
        ax = _axes(ax, (4.4, 4.4))
        ax.imshow(strength.reshape(image_shape), cmap="Blues", vmin=0, vmax=1)
        ax.spines[:].set_visible(True)
        ax.set(xticks=[], yticks=[])
        return ax

    def spectrum(self, axis: Any = None, ax: Any = None, *, unit: str = "") -> Any:
        """Draw the scores along an axis such as wavelength, with the selected features marked.

        The mean of a sample of the rows is drawn in gray in the background.

        Parameters
        ----------
        axis : array-like of shape (n_features,) or None, default=None
            The position of each feature. None: the names of the features, which must be numbers
            that do not merely count them.
        ax : Axes or None, default=None
        unit : str, default=""
            Unit of the axis, for its label. Default: that of the data, if they have one.

        Returns
        -------
        ax : Axes

        Raises
        ------
        InputError
            If there is not one finite number for each feature.
        """
        places = self._places(axis)
        order, kept = np.argsort(places, kind="stable"), self.ranking[: self.n_selected]
        ax = _axes(ax, (6, 3.6))
        mean, label = self._mean_row()
        if mean is not None:
            behind = ax.twinx()
            behind.plot(places[order], mean[order], color=OTHER, linewidth=1)
            behind.set(yticks=[], ylabel="mean of the rows")
            behind.yaxis.label.set_color(OTHER)
            ax.set_zorder(behind.get_zorder() + 1)
            ax.patch.set_visible(False)
        ax.plot(places[order], self.scores_[order], color=KEPT, linewidth=1)
        ax.scatter(places[kept], self.scores_[kept], color=MARK, s=14, zorder=3, label="selected")
        named = f"position, {unit}" if unit else label or "position"
        ax.set(xlabel=in_picture(named), ylabel="score")
        ax.legend(frameon=False)
        return ax

    def heatmap(self, ax: Any = None, *, n_features: int = _NAMED) -> Any:
        """Draw the means of the best selected features in each cluster of the rows.

        Parameters
        ----------
        ax : Axes or None, default=None
        n_features : int, default=40
            Largest number of selected features to show, best first.

        Returns
        -------
        ax : Axes
            Values are in standard deviations of the feature from its mean.
        """
        sample, kept = self.sample(), self.ranking[: min(n_features, self.n_selected)]
        groups = np.unique(sample.groups)
        means = np.stack([sample.X[sample.groups == g][:, kept].mean(axis=0) for g in groups])
        ax = _axes(ax, (1.5 + 0.45 * len(groups) + 2, 1 + 0.24 * len(kept)))
        image = ax.imshow(means.T, cmap="RdBu_r", vmin=-2, vmax=2, aspect="auto")
        ax.figure.colorbar(image, ax=ax, label="standard deviations from the mean")
        ax.set_xticks(range(len(groups)), [str(group) for group in groups.tolist()])
        self._name_rows(ax, kept)
        ax.set_xlabel(sample.group_name or "all rows")
        return ax

    def correlation(self, ax: Any = None, *, n_features: int = 60) -> Any:
        """Draw the correlations of the best selected features in a sample of the rows.

        Parameters
        ----------
        ax : Axes or None, default=None
        n_features : int, default=60
            Largest number of selected features to show, best first.

        Returns
        -------
        ax : Axes
        """
        matrix = self.sample().correlation[:n_features, :n_features]
        ax = _axes(ax, (5.2, 4.4))
        image = ax.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1)
        ax.figure.colorbar(image, ax=ax, label="correlation")
        if len(matrix) <= _NAMED:
            self._name_rows(ax, self.ranking[: len(matrix)], fontsize=7)
        ax.set(xticks=[])
        return ax

    def _name_rows(self, ax: Any, features: np.ndarray, **font: Any) -> None:
        """Label the rows of a plot with the names of their features."""
        names = [cut(printable(self.names[feature]), _WIDEST) for feature in features.tolist()]
        ax.set_yticks(range(len(names)), names, parse_math=False, **font)

    def _places(self, axis: Any) -> np.ndarray:
        if axis is None:
            places = _numbers_of(self.names)
            if not np.isfinite(places).all() or _are_counted(places):
                raise InputError(
                    "spectrum needs the position of each feature as axis: the feature names are "
                    "not numbers, or only count the features."
                )
            return places
        places = np.asarray(axis)
        is_one_each = places.shape == (len(self.names),) and places.dtype.kind in "iuf"
        if not is_one_each or not np.isfinite(places).all():
            raise InputError(
                f"axis must hold a finite number for each of the {len(self.names)} features. Got "
                f"{places.dtype} of shape {places.shape}."
            )
        return places.astype(np.float64)

    def _mean_row(self) -> tuple[np.ndarray | None, str]:
        """Return the mean of a sample of the rows, and the label of the features' axis.

        None and "" if there is no sample.
        """
        try:
            sample = self.sample()
        except InputError:  # a fitted selector without data
            return None, ""
        return sample.mean, sample.features_axis


_DRAWN = ("scores", "curves", "map", "mask", "spectrum", "heatmap", "correlation")


def plot(selector: Any, X: Any = None) -> Plots:
    """Return the plots of a fitted selector.

    Parameters
    ----------
    selector : estimator
        A fitted selector of bigfs.
    X : array-like, sparse matrix, DataFrame, path or URI, or None, default=None
        The data it was fitted to, for plots that show rows (``map``, ``heatmap``,
        ``correlation``); they read a sample of the rows.

    Returns
    -------
    plots : Plots

    Raises
    ------
    NotFittedError
        If the selector has not been fitted.

    Examples
    --------
    >>> import bigfs
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data
    >>> selector = bigfs.MaxVariance(20).fit(X)
    >>> ax = bigfs.plot(selector).mask((8, 8))
    >>> ax = bigfs.plot(selector, X).map()
    """
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(selector, "ranking_")
    ranking = selected_first(selector.ranking_, selector.selected)
    features = getattr(selector, "feature_names_in_", None)
    names = None if features is None else [str(name) for name in features]

    @cache
    def sample() -> Sample:
        if X is None:
            raise InputError("This plot shows rows and needs the data: bigfs.plot(selector, X).")
        labels = getattr(selector, "labels_", None)
        return sample_of(X, ranking, len(selector.selected), labels, names)

    return Plots(
        type(selector).__name__,
        selector.scores_,
        ranking,
        len(selector.selected),
        names or [str(feature) for feature in range(len(ranking))],
        getattr(selector, "curves_", None),
        sample,
    )


def plots_of(result: Result) -> Plots:
    """Return the plots of a finished run."""
    names = [result.name_of(feature) for feature in range(result.n_features)]
    ranking, n_selected = selected_first(result.ranking, result.selected), len(result.selected)
    curves, stability = result.curves, result.stability
    if curves is not None and stability is not None and "stability" not in curves.values:
        # Stability is not defined for a selection of all features.
        some = curves.sizes < result.n_features
        values = np.full(len(curves.sizes), np.nan)
        values[some] = stability.curves(curves.sizes[some])[0]["stability"]
        curves = replace(curves, values={**curves.values, "stability": values})
    sample = cache(partial(sample_of_result, result))
    return Plots(result.method, result.scores, ranking, n_selected, names, curves, sample)


def check_image(shape: Sequence[int] | None, n_features: int) -> None:
    """Raise InputError unless an image of the given shape has ``n_features`` pixels."""
    if shape and (len(shape) != 2 or min(shape) < 1):
        raise InputError(
            f"The shape of an image is (rows, columns), both at least 1. Got {tuple(shape)}."
        )
    if shape and math.prod(shape) != n_features:
        raise InputError(
            f"report.image_shape: {' x '.join(map(str, shape))} is {math.prod(shape)} pixels, but "
            f"the data have {n_features} features. Correct it, or remove it."
        )


def positions_of(names: Sequence[str]) -> np.ndarray | None:
    """Return the names of the features as positions.

    None if they are not numbers in ascending or descending order, or only number the features.
    """
    places = _numbers_of(names)
    steps = np.diff(places)
    in_order = len(places) > 2 and ((steps > 0).all() or (steps < 0).all())
    return places if in_order and not _are_counted(places) else None


def _are_counted(places: np.ndarray) -> bool:
    return np.array_equal(places, np.arange(len(places)) + places[:1])


def _numbers_of(names: Sequence[str]) -> np.ndarray:
    """Return names as numbers, NaN for names that are not numbers."""
    return np.array([as_number(name) for name in names], dtype=np.float64)  # None is NaN


def _axes(ax: Any, size: tuple[float, float]) -> Any:
    """Return the given axes, or those of a new pyplot figure, which notebooks show."""
    if ax is None:
        import matplotlib.pyplot as plt

        ax = plt.subplots(figsize=size, layout="constrained")[1]
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def check_report(settings: Any, n_features: int) -> None:
    """Raise InputError if the report's image or axis does not match the number of features."""
    if settings is not None:
        check_image(settings.image_shape, n_features)
        read_axis(settings.axis, n_features)


def read_axis(file: str | None, n_features: int) -> np.ndarray | None:
    """Return the position of each feature; None without a file.

    Parameters
    ----------
    file : str or None
        Text file with a number for each feature; or an array or column, specified like labels:
        ``FILE.npy``, ``FILE.nc::wavelength``, ``FILE.csv::COLUMN``.
    n_features : int

    Raises
    ------
    InputError
        If the file cannot be read, or does not hold a finite number for each feature.
    """
    if not file:
        return None
    is_text = Path(file).suffix.lower() in (".txt", ".csv")  # false for FILE.csv::COLUMN
    try:
        values = np.loadtxt(file, delimiter=",", ndmin=1) if is_text else read_values(file)
    except InputError as error:
        raise InputError(f"report.axis: {error}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(f"report.axis: {file} cannot be read: {reason.rstrip('.')}.") from None
    values = np.ravel(values)
    if values.dtype.kind not in "iuf" or len(values) != n_features or not np.isfinite(values).all():
        raise InputError(
            f"report.axis: {file} must hold a finite number for each of the {n_features} features. "
            f"Got {len(values)} values of {values.dtype}."
        )
    return np.asarray(values, dtype=np.float64)
