"""The result of a finished run: scores, ranking, selected features, and its cost."""

from __future__ import annotations

import html
import logging
import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bigfs.blocks.lazy import as_lazy, is_stored, open_stored
from bigfs.core.errors import InputError
from bigfs.core.text import aligned, csv_text, cut, printable
from bigfs.core.units import format_bytes, format_seconds
from bigfs.core.yamltext import read_yaml
from bigfs.results.export import (
    SelectedColumns,
    export_columns,
    open_run_data,
    original_of,
    refuse_input,
)
from bigfs.results.plots import Plots, plots_of
from bigfs.solvers.agreement import consensus_ranking
from bigfs.stages.curves import Curves, feature_columns
from bigfs.stages.scores import FeatureScores, check_n_selected
from bigfs.stages.stability import Stability
from bigfs.store.formats.annotated import OBS_NAMES
from bigfs.store.location import Location, as_location, is_within, read_output
from bigfs.store.records import COMPARISON, CONFIG, EARLIER, FEATURES, TABLE
from bigfs.store.retention import opened_run
from bigfs.store.rundir import RunDirectory
from bigfs.store.scratch import ArrayRef, read_attributes
from bigfs.store.source import Source, positions_by_name

logger = logging.getLogger("bigfs")

_SHOWN = 10
_WIDEST = 40
# Absolute correlation from which a feature counts as interchangeable with a selected one.
ALIKE = 0.9


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run, read from its directory.

    Attributes
    ----------
    path : Path or ObjectPath
        The run directory.
    method : str
    n_samples, n_features : int
    feature_names : list of str or None
    scores : ndarray of shape (n_features,), float64
        Larger is better.
    ranking : ndarray of shape (n_features,), int64
        Feature indices, best first.
    selected : ndarray of shape (n_features_to_select,), int64
        Indices of the selected features, ascending.
    curves : Curves or None
        Curves over the number of features, how the number was chosen, and why each feature was
        selected or left out; None for runs without that stage.
    evaluation : dict or None
        Scores of the evaluation stage; None for runs without that stage.
    redundant_with : ndarray of shape (n_features,), int64, or None
        For a feature that was skipped as redundant, the kept feature that it is redundant with; -1
        for all others. None without the setting ``redundancy``.
    stages : dict
        For each finished stage: seconds, passes, bytes read, measured peak bytes.
    """

    path: Location
    method: str
    n_samples: int
    n_features: int
    feature_names: list[str] | None
    scores: np.ndarray
    ranking: np.ndarray
    selected: np.ndarray
    curves: Curves | None
    evaluation: dict[str, Any] | None
    redundant_with: np.ndarray | None
    stages: dict[str, dict[str, Any]]

    @cached_property
    def coef(self) -> Any:
        """Coefficients of the method's regressions, read lazily; None if the method has none.

        For ``mcfs`` a scipy CSR array of shape (n_clusters, n_features).
        """
        return self._stored.details.get("coef")

    @cached_property
    def feature_subsets(self) -> list[np.ndarray] | None:
        """Indices of the features that each cluster keeps (``lfs``); None for other methods."""
        masks = self._stored.details.get("feature_masks")
        return None if masks is None else [np.flatnonzero(mask) for mask in masks]

    @cached_property
    def trace(self) -> list[dict[str, Any]] | None:
        """The replacements that ``lfs`` accepted, in their order; None for other methods."""
        return self._stored.details.get("trace")

    def row_array(self, name: str) -> ArrayRef | None:
        """Return an array with one row per sample, which is read by ranges; None if not available.

        Parameters
        ----------
        name : str
            "labels" for the clusters of a clustering method, or "embedding" for the eigenvectors of
            the graph.
        """
        if name != "embedding":
            array = self._stored.details.get(name)
            return array if isinstance(array, ArrayRef) else None
        if "spectral" not in self.stages:
            return None
        return ArrayRef.at(self._directory.stage_path("spectral") / name)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The resolved configuration, as sections."""
        # Not `self.manifest`, which would be cached: a run asks for its settings before it ends.
        stored, manifest = self.path / CONFIG, RunDirectory(self.path).read().manifest
        earlier = _earlier(manifest, self.stages)
        text = read_output(stored) if earlier is None else earlier
        settings: dict[str, Any] = read_yaml(text, str(stored))
        return settings

    @property
    def manifest(self) -> dict[str, Any]:
        """The record of the run: stages, versions, the key of the data."""
        return self._directory.manifest

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the packages that computed the result; the manifest may have later ones."""
        return dict(self.stages["result"].get("versions", {}))

    @cached_property
    def recall(self) -> dict[str, Any] | None:
        """Share of the true neighbors in the graph, with its interval; None without a graph."""
        if "graph" not in self.stages:
            return None
        graph = read_attributes(self._directory.stage_path("graph"))["graph"]
        estimate: dict[str, Any] | None = graph.get("recall")
        return estimate

    @cached_property
    def stability(self) -> Stability | None:
        """Stability of the selection, from fits on samples of the rows; None if not computed."""
        if self._fits is None:
            return None
        return Stability.from_details(self._fits.details).at(len(self.selected))

    @cached_property
    def consensus_ranking(self) -> np.ndarray | None:
        """Features sorted by the number of fits that select them, best first.

        Ties are broken by the fits' mean score, then by mean rank. Shape (n_features,), int64. None
        without stability.
        """
        stability = self.stability
        if stability is None or self._fits is None:
            return None
        return consensus_ranking(stability.frequencies, self._fits.scores, stability.rankings)

    @property
    def is_quick(self) -> bool:
        """True if the result is the consensus of fits on samples."""
        return bool(self.settings.get("quick"))

    @property
    def stability_lines(self) -> list[str]:
        """Sentences on the stability of the selection; empty if it was not computed."""
        if self.stability is None:
            return []
        lines = self.stability.lines(self.settings["stability"]["threshold"])
        if self.is_quick:
            line = "The selection is the consensus of these fits; no graph of all rows was built."
            lines.append(f"{line} Scores are means over the fits.")
        return lines

    @property
    def details(self) -> dict[str, Any]:
        """Further results of the method, by name."""
        return self._stored.details

    @cached_property
    def certificate(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Proof that the regressions of ``mcfs`` on wide data are exact; None if not needed.

        The first array, of shape (n_clusters,), holds the certificate of each path: the largest
        amount by which the correlation of any feature exceeds lambda at any knot, relative to the
        largest correlation at the start. The second, of shape (n_rounds,), holds the number of
        candidate features in each round.
        """
        if "largest_violation" not in self.details:
            return None
        return self.details["largest_violation"], self.details["n_screened"]

    def support(self, n_features_to_select: int) -> np.ndarray:
        """Return the indices of the features selected for another number, in ascending order.

        For ``mcfs`` and numbers up to that of the run (and 500), these are the features that a run
        with that number would select. With ``include``, ``redundancy``, ``least_gap`` or ``quick``,
        such a run may select other features, and a warning is logged.

        Raises
        ------
        InputError
            If the number is not an int in [1, n_features].
        """
        n_selected = check_n_selected("support (export --m)", n_features_to_select, self.n_features)
        names = ("include", "redundancy", "least_gap", "quick")
        dependent = [name for name in names if self.settings.get(name)]
        if dependent and n_selected != len(self.selected):
            logger.warning(
                "%s: the ranking is for %d features. A run with n_features_to_select: %d may "
                "select others.",
                " and ".join(dependent), len(self.selected), n_selected,
            )  # fmt: skip
        return self._stored.support(n_selected)

    def transform(self, X: Any) -> Any:
        """Return the selected columns of other data with the same features.

        Parameters
        ----------
        X : array-like, sparse matrix, DataFrame, Dask array, zarr array, path or URI
            Data of shape (n_samples, n_features). Columns are selected by name if both X and the
            features of the run have names; names that only number the features are none.

        Returns
        -------
        X_selected : same kind as X
            A Dask array for Dask and zarr arrays, paths and URIs.

        Raises
        ------
        InputError
            If X has other features, or a name of a selected one several times.
        """
        names: list[str] | None = None
        if hasattr(X, "iloc"):
            names = [str(name) for name in X.columns]
        elif is_stored(X):
            X = open_stored(
                X, [self.name_of(j) for j in self.selected] if self.feature_names else []
            )
            names = X.feature_names if isinstance(X, Source) else None
            X = as_lazy(X)
        elif not hasattr(X, "shape"):
            X = np.asarray(X)
        columns = positions_by_name(self.selected, self.feature_names, names)
        if columns is None and (len(X.shape) != 2 or X.shape[1] != self.n_features):
            raise InputError(
                f"X has shape {tuple(X.shape)}; the run had {self.n_features} features."
            )
        columns = self.selected if columns is None else columns
        return X.iloc[:, columns] if hasattr(X, "iloc") else X[:, columns]

    def export(
        self,
        dest: str | Location,
        *,
        n_features_to_select: int | None = None,
        by_rank: bool = False,
        ids: bool = False,
        overwrite: bool = False,
    ) -> Location:
        """Write the selected columns of the run's data, block by block.

        Parameters
        ----------
        dest : str, Path or ObjectPath
            NAME.zarr, .parquet, .feather, .npy, .csv or .h5ad. It appears when it is complete. If
            the run read an AnnData, a .h5ad keeps all of it except the columns that were not
            selected.
        n_features_to_select : int or None, default=None
            Another number of features, as in `support`. None: that of the run.
        by_rank : bool, default=False
            Sort columns by rank, best first; otherwise they are in the order of the input.
        ids : bool, default=False
            Add a column with the ids of the rows (``input.index``), or a column ``row`` that
            numbers them from 0 (.csv and .parquet).
        overwrite : bool, default=False
            Replace an existing file, or a store that bigfs wrote.

        Returns
        -------
        dest : Path or ObjectPath

        Raises
        ------
        InputError
            If the format is not known, ``dest`` exists, or the data have changed since the run.
        StorageError
            If writing fails.
        """
        kept = self.selected if n_features_to_select is None else self.support(n_features_to_select)
        if by_rank:
            kept = self.ranking[np.isin(self.ranking, kept)]
        if is_within(as_location(dest), self.path):
            raise InputError(f"{dest} lies in the run directory. Give a place outside it.")
        uri = str(self.manifest["data"]["uri"])  # absolute, unlike the path in the settings
        refuse_input(dest, uri)
        data = open_run_data(self.path)
        if ids and data.index is None and len(data.dropped):
            raise InputError(
                "ids number the rows that were read, and this run left out rows (input.rows, or "
                "input.missing: drop_rows). Export without ids."
            )
        names = [self.name_of(feature) for feature in kept.tolist()]
        columns = SelectedColumns(data, kept, names)
        original = None
        if str(dest).lower().endswith(".h5ad") and data.index == OBS_NAMES:
            layer = self.settings["input"].get("layer")
            filled = bool(self.stages.get("data", {}).get("filled_values"))
            if not len(data.dropped):
                original = original_of(uri, layer, self.n_samples, self.feature_names, filled)
            if original is not None and filled:
                logger.warning("%s keeps missing values, which the run filled.", dest)
            if original is None:
                logger.warning(
                    "%s has only the selected columns. The rest of %s is included if that is a "
                    "single AnnData on a local disk, still in place and with all rows.", dest, uri,
                )  # fmt: skip
        return export_columns(columns, dest, ids=ids, overwrite=overwrite, original=original)

    @cached_property
    def _stored(self) -> FeatureScores:
        """Everything that the method returned."""
        return FeatureScores.open(self._directory.stage_path("result"))

    @cached_property
    def _fits(self) -> FeatureScores | None:
        """The stored result of the fits on samples; None without stability."""
        if "stability" in self.stages:
            return FeatureScores.open(self._directory.stage_path("stability"))
        return self._stored if self.is_quick else None

    @cached_property
    def _directory(self) -> RunDirectory:
        directory = RunDirectory(self.path).read()
        if directory.manifest["stages"].get("result") != self.stages["result"]:
            raise InputError(
                f"{self.path} was run again since this result was opened. Open it again with "
                "bigfs.open_result."
            )
        return directory

    def __getstate__(self) -> dict[str, Any]:
        # Cached properties are not pickled; they are read from the run directory again.
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def name_of(self, feature: int) -> str:
        """Return the name of a feature, or its index if features have no names."""
        return self.feature_names[feature] if self.feature_names else str(feature)

    def to_frame(self) -> Any:
        """Return all features as a DataFrame, best first, with the columns of features.csv."""
        import pandas as pd

        return pd.DataFrame(self._columns())

    def _columns(self) -> dict[str, Any]:
        """Return the columns of the table of all features, best first, by name."""
        return feature_columns(
            self.ranking,
            self.scores,
            self.selected,
            [self.name_of(feature) for feature in range(self.n_features)],
            curves=self.curves,
            redundant_with=self.redundant_with,
            frequencies=None if self.stability is None else self.stability.frequencies,
            consensus=None if self.is_quick else self.consensus_ranking,
        )

    def __repr__(self) -> str:
        return f"<Result of {self._outcome()}: {self.path}>"

    def _repr_html_(self) -> str:
        """Return the outcome, its stability, warnings and the best features as HTML."""
        table = self.to_frame().head(max(_SHOWN, min(len(self.selected), _WIDEST)))
        lines = [f"<p><b>{html.escape(self._outcome())}</b></p>"]
        lines += [f"<p>{html.escape(line)}</p>" for line in (*self.stability_lines, *self.notes)]
        return "".join(lines) + table.to_html(index=False)

    @property
    def scores_(self) -> np.ndarray:
        """The scores, under the attribute name of fitted selectors."""
        return self.scores

    @property
    def ranking_(self) -> np.ndarray:
        """The ranking, under the attribute name of fitted selectors."""
        return self.ranking

    @cached_property
    def plot(self) -> Plots:
        """Plots of the result, such as ``plot.scores()`` and ``plot.map()``; see `bigfs.plot`."""
        return plots_of(self)

    def _outcome(self) -> str:
        return (
            f"{self.method}: {len(self.selected)} of {self.n_features} features selected "
            f"from {self.n_samples:,} samples"
        )

    def features_csv(self) -> str:
        """Return the table of all features as CSV, with the columns of `to_frame`.

        A cell is empty if a column has no value for a feature. A name that a spreadsheet would
        execute as a formula (one that begins with =, +, - or @) is prefixed with an apostrophe.
        """
        return csv_text(self._columns())

    def summary(self) -> str:
        """Return a summary of the result for a terminal."""
        lines = [self._outcome(), ""]
        names = [_shortened(self.name_of(feature)) for feature in self.ranking[:_SHOWN].tolist()]
        stability = self.stability
        table = [["rank", "feature", "score", "" if stability is None else "frequency"]]
        for rank, (feature, name) in enumerate(zip(self.ranking, names, strict=False), start=1):
            often = "" if stability is None else f"{100 * stability.frequencies[feature]:.0f} %"
            table.append([str(rank), name, f"{self.scores[feature]:.4g}", often])
        lines += aligned(table, " <", "  ")
        if len(self.selected) > _SHOWN:
            lines.append(f"  ... and {len(self.selected) - _SHOWN} more")
        lines += self._subset_lines()
        if stability is not None:
            lines += ["", "  stability", *(f"  {line}" for line in self.stability_lines)]
        if self.curves is not None:
            lines += ["", *_number_lines(self.curves)]
        if self.evaluation is not None:
            lines += ["", *_evaluation_lines(self.evaluation, len(self.selected))]
        stages = [["stage", "time", "peak memory", "predicted", "passes over X"]]
        lines += ["", *aligned([*stages, *self.stage_rows], "<<<<<", "  "), ""]
        lines += [*self._quality_lines(), *self.notes]
        if self.certificate is not None:
            violation, screened = self.certificate
            lines.append(
                f"Paths are exact: {screened[-1]:,} features were screened, and no other exceeds "
                f"lambda at any knot by more than {violation.max(initial=0.0):.1e} of the initial "
                "lambda."
            )
        lines += [f"Result: {self.path}", f"All features, ranked: {self.path / FEATURES}"]
        uri = str(self.settings["input"]["uri"])
        is_h5ad = uri.lower().endswith(".h5ad")
        dest, file = ("DEST.h5ad", uri) if is_h5ad else ("DEST.parquet", "FILE.csv")
        place, labels = shlex.quote(str(self.path)), shlex.quote(f"{file}::COLUMN")
        lines.append(f"Export the selected columns: bigfs export {place} {dest}")
        if self.evaluation is None:
            lines.append(f"Compare with known classes: bigfs evaluate {place} --labels {labels}")
        return "\n".join(lines)

    def _subset_lines(self) -> list[str]:
        lines = []
        for cluster, subset in enumerate(self.feature_subsets or []):
            kept = subset[:_SHOWN].tolist()
            names = ", ".join(_shortened(self.name_of(feature)) for feature in kept)
            more = f" and {len(subset) - _SHOWN} more" if len(subset) > _SHOWN else ""
            lines.append(f"  cluster {cluster} keeps {names}{more}")
        return ["", *lines] if lines else []

    @property
    def notes(self) -> list[str]:
        """Warnings about the data and of the stages about their results, as sentences."""
        of_stages = [note for stage in self.stages.values() for note in stage.get("notes", ())]
        return [*self.manifest.get("notes", ()), *of_stages]

    def _quality_lines(self) -> list[str]:
        """Return lines on the recall of the graph and the number of clusters."""
        lines = []
        if self.recall is not None:
            value, low, high = (100 * self.recall[key] for key in ("value", "low", "high"))
            lines.append(
                f"Graph recall: {value:.1f} % of the true neighbors ({low:.1f} to {high:.1f} %)."
            )
        n_clusters = (self.settings.get(self.method) or {}).get("n_clusters")
        if n_clusters is not None:
            used = self.details.get("n_clusters", n_clusters)
            how = "as given, or by default" if used == n_clusters else f"n_clusters: {n_clusters}"
            lines.append(f"Number of clusters: {used} ({how}).")
        return lines

    @property
    def stage_rows(self) -> list[list[str]]:
        """Name, time, peak memory, predicted memory and passes over X of each stage, as text."""
        rows = []
        for name, record in self.stages.items():
            took, peak = format_seconds(record["seconds"]), record["measured_peak_bytes"]
            predicted = record.get("predicted_peak_bytes")
            sizes = [format_bytes(peak), format_bytes(predicted) if predicted else "-"]
            rows.append([name, took, *sizes, str(record["passes"])])
        return rows


def _shortened(name: str) -> str:
    return cut(printable(name).replace("\n", " ").replace("\t", " "), _WIDEST)


def open_result(path: str | Location) -> Result:
    """Open the result of a finished run.

    Parameters
    ----------
    path : str, Path or ObjectPath
        A run directory.

    Returns
    -------
    result : Result

    Raises
    ------
    InputError
        If the path is not a run directory, or its run has not finished.
    CorruptStoreError
        If a file of the result was modified.
    """
    directory = opened_run(path)
    stages = directory.manifest["stages"]
    stored = directory.stage_path("result")
    if (directory.path / TABLE).exists() and "result" not in stages:
        raise InputError(
            f"{path} holds a comparison, not the result of 'bigfs run'. Its {TABLE} has the scores "
            "of every method."
        )
    here = shlex.quote(f"run={directory.path}")
    verb = "compare" if directory.manifest.get("method") == COMPARISON else "run"
    command = f"bigfs {verb} {shlex.quote(str(directory.path / CONFIG))} --set {here}"
    again = f"Run it again in the folder where it started, with '{command}', to continue it."
    if not directory.is_intact("result"):
        done = f"(finished stages: {', '.join(stages) or 'none'})"
        raise InputError(f"{path}: this run has no complete result {done}. {again}")
    directory.check_unchanged("result")
    if _earlier(directory.manifest, stages) is not None:
        logger.warning(
            "%s was run again with other settings, and that run did not finish: this is the result "
            "of the previous run. %s", path, again,
        )  # fmt: skip
    about = read_attributes(stored)
    names = ("scores", "ranking", "selected")
    arrays: dict[str, Any] = {name: ArrayRef.at(stored / name).load() for name in names}
    curves = evaluation = redundant_with = None
    if directory.is_intact("curves"):
        directory.check_unchanged("curves")
        curves = Curves.open(directory.stage_path("curves"))
        ranking, scores = curves.reordered(arrays["ranking"], arrays["scores"])
        arrays = {"scores": scores, "ranking": ranking, "selected": np.sort(curves.order)}
    elif about.get("largest") is not None:
        raise InputError(f"{path}: this run has not chosen the number of features yet. {again}")
    if directory.is_intact("evaluation"):
        evaluation = read_attributes(directory.stage_path("evaluation"))
    if "redundant_with" in about.get("arrays", ()):
        redundant_with = ArrayRef.at(stored / "redundant_with").load()
    return Result(
        path=directory.path,
        **{name: about[name] for name in ("method", "n_samples", "n_features", "feature_names")},
        **arrays,
        curves=curves,
        evaluation=evaluation,
        redundant_with=redundant_with,
        stages=stages,
    )


def _earlier(manifest: dict[str, Any], stages: dict[str, Any]) -> str | None:
    """Return the configuration of a result that a later, unfinished run has not replaced yet.

    None if the result belongs to the current configuration.
    """
    earlier = manifest.get(EARLIER, {})
    is_own = not earlier or earlier["committed"] != stages["result"].get("committed")
    return None if is_own else str(earlier["config"])


def mean_score(scores: dict[str, Any], name: str) -> float | None:
    """Return the mean of a score, or the score itself if measured only once; None if missing."""
    return scores.get(f"{name}_mean", scores.get(name))


def score_cell(scores: dict[str, Any], name: str) -> str:
    """Return a table cell with a score in percent, and its standard deviation if there is one."""
    value, spread = mean_score(scores, name), scores.get(f"{name}_std")
    if value is None:
        return "-"
    return f"{100 * value:5.1f}" + ("" if spread is None else f" ± {100 * spread:<4.1f}")


def _number_lines(curves: Curves) -> list[str]:
    """Return lines on how the number of features was chosen and what the selected ones explain."""
    lines, number, n_selected = [], curves.number, len(curves.order)
    if number is not None:
        about = f"{number['rule']}; up to {number['largest']} were considered"
        lines.append(f"  {n_selected} features by {number['auto']}: {about}.")
    explained, n_known = 100 * np.nansum(curves.adds), int(np.isfinite(curves.adds).sum())
    which = "The selected" if n_known == n_selected else f"{n_known:,} of the selected"
    which += " features"
    lines.append(f"  {which} explain {explained:.0f} % of the variance of all features.")
    left_out = len(curves.correlation) - n_selected
    if left_out and n_known == n_selected:
        alike = int((np.abs(curves.correlation) >= ALIKE).sum())
        have = "has" if alike == 1 else "have"
        lines.append(
            f"  {alike:,} of the {left_out:,} features left out {have} a correlation of {ALIKE} or "
            "more with a selected one."
        )
    return lines


def _evaluation_lines(evaluation: dict[str, Any], n_selected: int) -> list[str]:
    """Return a table of the scores of the selected, of all and of random features."""
    components = evaluation.get("n_components")
    by = f" on {components} principal components" if components else ""
    lines = [
        f"  against the labels {evaluation['labels']} (k-means{by}, {evaluation['n_repetitions']} "
        "repetitions, mean and standard deviation in percent)",
    ]
    table = [["features", "NMI", "ACC", "Rand index", "1-NN error"]]
    titles = {"selected": f"selected {n_selected}", "all": "all", "chance": f"random {n_selected}"}
    scores = ("nmi", "acc", "rand", "nearest_neighbor_error")
    for key in (key for key in titles if key in evaluation):
        table.append([titles[key], *(score_cell(evaluation[key], name) for name in scores)])
    return [*lines, *aligned(table, "<<<<<", "  ")]
