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
from bigfs.store.source import Source

logger = logging.getLogger("bigfs")

_SHOWN = 10
_WIDEST = 40
# From this absolute correlation on, a feature is as good as its closest selected one.
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
        What more and fewer features would do, how the number was chosen, and why each feature is
        in or out; None for runs without that stage.
    evaluation : dict or None
        The evaluation stage's figures, if the run had one.
    redundant_with : ndarray of shape (n_features,), int64, or None
        The kept feature for which one was passed over, -1 for all others; None without redundancy.
    stages : dict
        Per finished stage: seconds, passes, bytes read, measured peak bytes.
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
        """Coefficients of the method's regressions, read when asked; None where it has none.

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
        """The replacements that ``lfs`` accepted, in order; None for other methods."""
        return self._stored.details.get("trace")

    def row_array(self, name: str) -> ArrayRef | None:
        """Return an array with a row for every sample, read by range; None where there is none.

        Parameters
        ----------
        name : str
            "labels" of a method that clusters, or "embedding", the graph's eigenvectors.
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
        # Not the manifest of this object, which is read when asked: a run asks before it ends.
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
        """Versions of the packages that computed the result; later ones may have looked at it."""
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
        """Features by how many fits on samples select them, best first; None without stability.

        Ties by the fits' mean score, then by mean rank. Shape (n_features,), int64.
        """
        sure = self.stability
        if sure is None or self._fits is None:
            return None
        return consensus_ranking(sure.frequencies, self._fits.scores, sure.rankings)

    @property
    def is_quick(self) -> bool:
        """True if the result is the consensus of fits on samples."""
        return bool(self.settings.get("quick"))

    @property
    def stability_lines(self) -> list[str]:
        """Stability of the selection in sentences; empty if it was not computed."""
        if self.stability is None:
            return []
        lines = self.stability.lines(self.settings["stability"]["threshold"])
        if self.is_quick:
            line = "The selection is what these fits agree on; no graph of all rows was built."
            lines.append(f"{line} Scores are means of the fits.")
        return lines

    @property
    def details(self) -> dict[str, Any]:
        """Further results of the method, by name."""
        return self._stored.details

    @cached_property
    def certificate(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Proof that regressions of ``mcfs`` on wide data are exact; None where not needed.

        First the certificate of each path, shape (n_clusters,): the most by which any feature's
        correlation exceeds lambda at any knot, as a share of the largest at the start. Then how
        many features were candidates in each round, shape (n_rounds,).
        """
        if "largest_violation" not in self.details:
            return None
        return self.details["largest_violation"], self.details["n_screened"]

    def support(self, n_features_to_select: int) -> np.ndarray:
        """Return the indices of another number of selected features, ascending.

        For ``mcfs`` and numbers up to that of the run (and 500), what a run with it would select.
        With ``include``, ``redundancy``, ``least_gap`` or ``quick`` a run with it may select
        others, and a warning says so.

        Raises
        ------
        InputError
            If the number is not an int in [1, n_features].
        """
        n_selected = check_n_selected("support (export --m)", n_features_to_select, self.n_features)
        names = ("include", "redundancy", "least_gap", "quick")
        apart = [name for name in names if self.settings.get(name)]
        if apart and n_selected != len(self.selected):
            logger.warning(
                "%s: the ranking is for %d features. A run with n_features_to_select: %d may "
                "select others.",
                " and ".join(apart), len(self.selected), n_selected,
            )  # fmt: skip
        return self._stored.support(n_selected)

    def transform(self, X: Any) -> Any:
        """Keep the selected columns of other data with the same features.

        Parameters
        ----------
        X : array-like, sparse matrix, DataFrame, Dask array, zarr array, path or URI
            Of shape (n_samples, n_features). Columns are taken by name where both X and the
            features of the run have names.

        Returns
        -------
        X_selected : same kind as X
            A Dask array for Dask and zarr arrays, paths and URIs.

        Raises
        ------
        InputError
            If X has other features.
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
        if names and self.feature_names:
            columns = self._columns_named(names)
        elif len(X.shape) == 2 and X.shape[1] == self.n_features:
            columns = self.selected
        else:
            raise InputError(
                f"X has shape {tuple(X.shape)}; the run had {self.n_features} features."
            )
        return X.iloc[:, columns] if hasattr(X, "iloc") else X[:, columns]

    def _columns_named(self, names: list[str]) -> np.ndarray:
        """Return the places of the selected features among the names of other data."""
        places = {name: place for place, name in enumerate(names)}
        wanted = [self.name_of(feature) for feature in self.selected.tolist()]
        missing = [name for name in wanted if name not in places]
        if missing:
            raise InputError(f"X has no column {missing[0]!r}, which the run selected.")
        return np.array([places[name] for name in wanted])

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
            NAME.zarr, .parquet, .npy, .csv or .h5ad. It appears when it is complete. A .h5ad of a
            run on an AnnData has everything of it but the columns that are left out.
        n_features_to_select : int or None, default=None
            Another number of features, as in `support`. None: that of the run.
        by_rank : bool, default=False
            Columns from the best feature on; otherwise in the order of the input.
        ids : bool, default=False
            Add a column with the rows' ids (``input.index``), or ``row`` that numbers them from 0
            (.csv and .parquet).
        overwrite : bool, default=False
            Replace a file that is there, or a store that bigfs wrote.

        Returns
        -------
        dest : Path or ObjectPath

        Raises
        ------
        InputError
            If the format is not known, ``dest`` is there, or the data are not what the run read.
        StorageError
            If writing fails.
        """
        kept = self.selected if n_features_to_select is None else self.support(n_features_to_select)
        if by_rank:
            kept = self.ranking[np.isin(self.ranking, kept)]
        if is_within(as_location(dest), self.path):
            raise InputError(f"{dest} lies in the run directory. Give a place outside it.")
        uri = str(self.manifest["data"]["uri"])  # absolute: the settings are of another directory
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
                    "%s gets the selected columns alone. What else %s holds goes along where it is "
                    "one AnnData on a local disk, in its place and with all its rows.", dest, uri,
                )  # fmt: skip
        return export_columns(columns, dest, ids=ids, overwrite=overwrite, original=original)

    @cached_property
    def _stored(self) -> FeatureScores:
        """Everything that the method returned."""
        return FeatureScores.open(self._directory.stage_path("result"))

    @cached_property
    def _fits(self) -> FeatureScores | None:
        """The stored result of fits on samples."""
        if "stability" in self.stages:
            return FeatureScores.open(self._directory.stage_path("stability"))
        return self._stored if self.is_quick else None

    @cached_property
    def _directory(self) -> RunDirectory:
        directory = RunDirectory(self.path).read()
        if directory.manifest["stages"].get("result") != self.stages["result"]:
            raise InputError(
                f"{self.path} was run again since this result was opened. Open it anew: "
                "bigfs.open_result."
            )
        return directory

    def __getstate__(self) -> dict[str, Any]:
        # What is read when asked is read again, from the run directory.
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def name_of(self, feature: int) -> str:
        """Return a feature's name, or its index where features have no names."""
        return self.feature_names[feature] if self.feature_names else str(feature)

    def to_frame(self) -> Any:
        """Return all features as a pandas frame, best first, with the columns of features.csv."""
        import pandas as pd

        return pd.DataFrame(self._columns())

    def _columns(self) -> dict[str, Any]:
        """Return the columns of the table of all features, best first, by their names."""
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
        """Return the answer, how sure it is, warnings and the best features, for notebooks."""
        table = self.to_frame().head(max(_SHOWN, min(len(self.selected), _WIDEST)))
        lines = [f"<p><b>{html.escape(self._outcome())}</b></p>"]
        lines += [f"<p>{html.escape(line)}</p>" for line in (*self.stability_lines, *self.notes)]
        return "".join(lines) + table.to_html(index=False)

    @property
    def scores_(self) -> np.ndarray:
        """The scores, under the name that a fitted selector has for them."""
        return self.scores

    @property
    def ranking_(self) -> np.ndarray:
        """The ranking, under the name that a fitted selector has for it."""
        return self.ranking

    @cached_property
    def plot(self) -> Plots:
        """Pictures of the result: ``plot.scores()``, ``plot.map()``, as `bigfs.plot` has them."""
        return plots_of(self)

    def _outcome(self) -> str:
        return (
            f"{self.method}: {len(self.selected)} of {self.n_features} features selected "
            f"from {self.n_samples:,} samples"
        )

    def features_csv(self) -> str:
        """Return the table of all features: the columns of `to_frame`.

        A cell is empty where a column says nothing of a feature. A name that a spreadsheet would
        run as a formula (it begins with =, +, - or @) has an apostrophe before it.
        """
        return csv_text(self._columns())

    def summary(self) -> str:
        """Return the result in words, for a terminal."""
        lines = [self._outcome(), ""]
        names = [_shortened(self.name_of(feature)) for feature in self.ranking[:_SHOWN].tolist()]
        sure = self.stability
        table = [["rank", "feature", "score", "" if sure is None else "frequency"]]
        for rank, (feature, name) in enumerate(zip(self.ranking, names, strict=False), start=1):
            often = "" if sure is None else f"{100 * sure.frequencies[feature]:.0f} %"
            table.append([str(rank), name, f"{self.scores[feature]:.4g}", often])
        lines += aligned(table, " <", "  ")
        if len(self.selected) > _SHOWN:
            lines.append(f"  ... and {len(self.selected) - _SHOWN} more")
        lines += self._subset_lines()
        if self.stability is not None:
            lines += ["", "  how sure", *(f"  {line}" for line in self.stability_lines)]
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
                f"Wide data: exact paths from {screened[-1]:,} screened features; no other one "
                f"exceeds lambda at any knot by more than {violation.max(initial=0.0):.1e} of its "
                "start."
            )
        lines += [f"Result: {self.path}", f"All features, ranked: {self.path / FEATURES}"]
        uri = str(self.settings["input"]["uri"])
        is_h5ad = uri.lower().endswith(".h5ad")
        dest, file = ("DEST.h5ad", uri) if is_h5ad else ("DEST.parquet", "FILE.csv")
        place, labels = shlex.quote(str(self.path)), shlex.quote(f"{file}::COLUMN")
        lines.append(f"The selected columns: bigfs export {place} {dest}")
        if self.evaluation is None:
            lines.append(f"Against known classes: bigfs evaluate {place} --labels {labels}")
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
        """Warnings of the stages about their results, in sentences."""
        of_stages = [note for stage in self.stages.values() for note in stage.get("notes", ())]
        return [*self.manifest.get("notes", ()), *of_stages]

    def _quality_lines(self) -> list[str]:
        """Return how many neighbors the graph has found, and the number of clusters."""
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
        If a file of the result was changed.
    """
    directory = opened_run(path)
    stages = directory.manifest["stages"]
    stored = directory.stage_path("result")
    if (directory.path / TABLE).exists() and "result" not in stages:
        raise InputError(
            f"{path} holds a comparison. Its table has the scores of every method: see {TABLE} in "
            "it. Results come from 'bigfs run'."
        )
    here = shlex.quote(f"run={directory.path}")
    verb = "compare" if directory.manifest.get("method") == COMPARISON else "run"
    command = f"bigfs {verb} {shlex.quote(str(directory.path / CONFIG))} --set {here}"
    again = f"Run it again where it was started, with '{command}'; it continues where it stopped."
    if not directory.is_intact("result"):
        done = f"(finished stages: {', '.join(stages) or 'none'})"
        raise InputError(f"{path}: this run has no complete result {done}. {again}")
    directory.check_unchanged("result")
    if _earlier(directory.manifest, stages) is not None:
        logger.warning(
            "%s was run again with other settings, which did not finish: this is the result of the "
            "run before. %s", path, again,
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
    """Return the configuration of a result that a later run has not replaced; None for its own."""
    earlier = manifest.get(EARLIER, {})
    is_own = not earlier or earlier["committed"] != stages["result"].get("committed")
    return None if is_own else str(earlier["config"])


def mean_score(scores: dict[str, Any], name: str) -> float | None:
    """Return the mean of a score, or the score where it is not repeated; None without it."""
    return scores.get(f"{name}_mean", scores.get(name))


def score_cell(scores: dict[str, Any], name: str) -> str:
    """Return a score in percent with its deviation, if it has one, for a table."""
    value, spread = mean_score(scores, name), scores.get(f"{name}_std")
    if value is None:
        return "-"
    return f"{100 * value:5.1f}" + ("" if spread is None else f" ± {100 * spread:<4.1f}")


def _number_lines(curves: Curves) -> list[str]:
    """Return how many features there are and why, and how many others they stand for."""
    lines, number, n_selected = [], curves.number, len(curves.order)
    if number is not None:
        about = f"{number['rule']}; up to {number['largest']} were looked at"
        lines.append(f"  {n_selected} features by {number['auto']}: {about}.")
    explained, n_known = 100 * np.nansum(curves.adds), int(np.isfinite(curves.adds).sum())
    which = "The selected" if n_known == n_selected else f"{n_known:,} of the selected"
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
    """Return the figures of selected, all and random features as a small table."""
    components = evaluation.get("n_components")
    by = f" on {components} principal components" if components else ""
    lines = [
        f"  against the labels {evaluation['labels']} (k-means{by}, {evaluation['n_repetitions']} "
        "repetitions, mean and deviation in percent)",
    ]
    table = [["features", "NMI", "ACC", "Rand index", "1-NN error"]]
    titles = {"selected": f"selected {n_selected}", "all": "all", "chance": f"random {n_selected}"}
    scores = ("nmi", "acc", "rand", "nearest_neighbor_error")
    for key in (key for key in titles if key in evaluation):
        table.append([titles[key], *(score_cell(evaluation[key], name) for name in scores)])
    return [*lines, *aligned(table, "<<<<<", "  ")]
