"""The settings of a pipeline by section: names, types, bounds, defaults and descriptions."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from bigfs.config.fields import (
    TEXT,
    Fraction,
    Labels,
    Names,
    NonEmpty,
    PositiveInt,
    Section,
    Share,
    Values,
    Width,
    any_of,
    as_list,
    as_section,
    fill,
)
from bigfs.config.messages import explained
from bigfs.core.errors import check_rows
from bigfs.core.paths import as_text, check_address, column_of, within
from bigfs.core.text import quoted

# The settings of an input that `bigfs.open_matrix` accepts; commands have an option for each.
OPENING = (
    "variable", "layer", "feature_types", "header", "csv", "columns", "index", "labels",
    "features", "no_data", "transpose", "rows", "booleans", "dates", "categories",
)  # fmt: skip


def _as_uri(value: Any) -> Any:
    """Return a list of sources as one text; other values are unchanged."""
    is_list = isinstance(value, list) and all(isinstance(entry, str) and entry for entry in value)
    return as_text(value) if is_list and value else value


Uri = Annotated[
    str,
    BeforeValidator(_as_uri),
    any_of(TEXT, {"type": "array", "items": {"type": "string"}, "minItems": 1}),
]


Missing = Annotated[
    Literal["error", "mean", "zero", "drop_rows"],
    Field(
        description="Missing values: stop with an error, replace by the column mean or by zero, "
        "or drop the row. Infinities are always an error.",
    ),
]


class MissingConfig(Section):
    """Policy for missing values, for models without an input section."""

    missing: Missing = "error"


class CsvConfig(Section):
    """Format of a text table; bigfs inspect proposes settings.

    Attributes
    ----------
    delimiter
        Character between cells; a blank: one or more blanks. null: a comma, or a tab for
        .tsv and .tab.
    decimal
        Decimal separator.
    comment
        Character that begins a comment, which ends with the line.
    na_values
        Additional cell values that represent missing data, such as ? or -9999.
    encoding
        Encoding of the file, such as latin-1.
    skip_rows
        Lines before the table.
    """

    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    decimal: Literal[".", ","] = "."
    comment: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    na_values: Annotated[list[str | int | float], BeforeValidator(as_list)] | None = None
    encoding: NonEmpty = "utf-8"
    skip_rows: Annotated[int, Field(ge=0)] = 0


class RowsConfig(Section):
    """Rows to read.

    Attributes
    ----------
    every
        Read every k-th row, starting with the first.
    column
        Column (or array) of the input, or FILE::COLUMN, whose values determine the rows to
        read. It is then not a feature.
    keep
        Read the rows in which the column has one of these values.
    drop
        Leave out the rows in which the column has one of these values.
    at_least
        Read the rows in which the column is at least this.
    at_most
        Read the rows in which the column is at most this.
    """

    every: PositiveInt | None = None
    column: NonEmpty | None = None
    keep: Values | None = None
    drop: Values | None = None
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _conditions_go_with_a_column(self) -> RowsConfig:
        check_rows(self.model_dump(exclude_none=True))
        return self


class InputConfig(Section):
    """The input data.

    Attributes
    ----------
    uri
        The matrix: a .npy, .npz, .csv, .parquet, .feather, .mat, .h5ad or .zarr path, 10x
        counts (.h5 or a folder), or sklearn:NAME for a dataset that scikit-learn ships
        (sklearn:digits). A list, a glob, or a folder of .parquet or .csv parts is read as
        one matrix: rows are concatenated.
    variable
        Array to read if a file holds several, or the modality of a .h5mu. null: X, or
        the only one.
    layer
        Layer of an AnnData (.h5ad, .zarr) or of a loom file, or raw. null: its X.
    feature_types
        Feature types to read from 10x counts, such as "Antibody Capture". null: genes, if
        there are several types.
    header
        Whether the first line of a .csv or .tsv holds the column names. auto: yes if it is
        text, no if it is numbers; numbers that may be either are an error.
    csv
        Format of a text table: {delimiter: ";", decimal: ",", comment: "#", na_values:
        ["?", -9999], encoding: latin-1, skip_rows: 3}. null: separated by commas, or by tabs
        for .tsv and .tab.
    columns
        Features to use: names, globs, or ranges if names are numbers; the prefix ! excludes:
        ["gene_*", "!gene_7"] or ["400..900", "!650..700"]. null: all, or all columns of a
        table that have no other role.
    features
        For an array of several dimensions (zarr, .h5, .nc, .mat, .npy, .npz, .tif): name or
        number of the feature dimension, or several such as [1, 2], which are combined in
        the order of the array; the others are stacked into rows. null: the last of two.
    no_data
        Value of such an array that represents missing data.
    transpose
        Whether the table or matrix is transposed, such as genes by cells: its columns (or
        those named by columns) are read as rows, and its row ids (index) are the feature
        names.
    rows
        Rows to read: {every: 10}, or those with certain values in a column, such as
        {column: quality, at_least: 0.8}. null: all.
    booleans
        Boolean columns of a table: read as 1 and 0, or dropped.
    dates
        Date columns of a table: rejected with an error, read as days since 1970-01-01, or
        dropped.
    categories
        Categorical or string columns of a table: rejected with an error, numbered in sorted
        order, replaced by one 0/1 feature for each of up to 1,000 values, or dropped.
    index
        Column of a table with the row ids, which are kept with the rows.
    labels
        Column of a table (or array of the file) with known classes. It is never a feature. A
        run compares its selection with them; ingest leaves them out.
    batch_key
        Column of an AnnData's obs with the batch of each row, for methods that score
        batches separately (highly_variable). null: one batch.
    """

    uri: Uri = Field(min_length=1)
    variable: str | None = None
    layer: NonEmpty | None = None
    feature_types: Names | None = None
    header: Literal["auto", True, False] = "auto"
    csv: CsvConfig | None = None
    missing: Missing = "error"
    columns: Names | None = None
    features: NonEmpty | int | Annotated[list[NonEmpty | int], Field(min_length=1)] | None = None
    no_data: float | None = None
    transpose: bool = False
    rows: RowsConfig | None = None
    booleans: Literal["numbers", "drop"] = "numbers"
    dates: Literal["error", "numbers", "drop"] = "error"
    categories: Literal["error", "numbers", "one_hot", "drop"] = "error"
    index: NonEmpty | None = None
    labels: NonEmpty | None = None
    batch_key: NonEmpty | None = None

    @model_validator(mode="after")
    def _the_array_may_be_in_the_uri(self) -> InputConfig:
        uri, name = column_of(self.uri)
        if name and not uri.startswith("sklearn:"):
            if self.variable is not None:
                raise ValueError(
                    f"uri names the array '{name}', and variable names one too; remove one"
                )
            object.__setattr__(self, "uri", uri)
            object.__setattr__(self, "variable", name)
        return self

    @property
    def opening(self) -> dict[str, Any]:
        """The settings that `bigfs.open_matrix` takes."""
        return self.model_dump(include=set(OPENING))


class GraphConfig(Section):
    """The nearest-neighbor graph of the samples.

    Attributes
    ----------
    n_neighbors
        Neighbors of each sample.
    metric
        Distance between samples.
    weight
        Weight of an edge: 1, exp(-distance^2 / sigma), x'y or cosine; stored: the values of
        a graph in obsp, for which it is the default unless its name ends in distances.
    sigma
        Width of the heat kernel, in units of squared distance (weight: heat only); median:
        the squared median neighbor distance. null: a separate width for each edge, the
        larger distance of its ends to their last neighbor.
    algorithm
        Neighbor search; auto is exact for small data.
    representation
        Representation by which samples are compared: raw features; pca:p, the first p principal
        components; or obsm/NAME, an array of the AnnData, such as obsm/X_pca. obsp/NAME: a
        graph that the AnnData contains. auto: pca:50 for sparse counts that preprocess auto
        normalizes; pca:50, 100 or 200 for 50,000 and more dense rows of more than 256
        features, the fewest that keep 85 of 100 neighbors in a sample, with workers of 1.5
        GiB or more, unless the run is updated; raw for all other data.
    eps
        If data are searched in parts, a sample also goes to parts whose center is within
        1 + eps times the distance to its nearest. null: 0.15, or 0.1 if that makes more
        than 1.4 copies of a row, or what recall_target requires.
    recall_target
        Share of the true neighbors to find, such as 0.99: the search is extended until the
        lower bound of the estimate reaches it. null: the share is only measured.
    if_missed
        What to do if recall_target cannot be reached.
    """

    n_neighbors: PositiveInt = 5
    metric: Literal["euclidean", "cosine", "correlation"] = "euclidean"
    weight: Literal["binary", "heat", "dot", "cosine", "stored"] = "binary"
    sigma: Width | None = None
    algorithm: Literal["auto", "exact", "pynndescent"] = "auto"
    representation: Annotated[
        str, Field(pattern=r"^(auto|raw|pca:[1-9][0-9]*|(.+::)?obs[mp]/[^/:]+)$")
    ] = "auto"
    eps: Annotated[float, Field(ge=0, le=10)] | None = None
    recall_target: Fraction | None = None
    if_missed: Literal["error", "warn"] = "error"

    # The array or graph of an in-memory AnnData that `representation` names, opened, and a key of
    # its content.
    _member: tuple[Any, str] | None = PrivateAttr(None)

    @property
    def of_annotated(self) -> bool:
        """True if the representation is an array or a graph of an AnnData."""
        return self.representation.rpartition("::")[2].startswith(("obsm/", "obsp/"))

    @property
    def is_finished(self) -> bool:
        """True if the representation is a graph of ``obsp``, so that no search is needed."""
        return self.of_annotated and "obsp/" in self.representation

    @model_validator(mode="after")
    def _a_finished_graph_is_not_searched(self) -> GraphConfig:
        if not self.is_finished:
            if self.weight == "stored":
                raise ValueError(
                    "weight 'stored' needs a graph in obsp, but representation is "
                    f"'{self.representation}'; name a graph, such as obsp/connectivities"
                )
            return self
        if "weight" not in self.model_fields_set and not self.representation.endswith("distances"):
            object.__setattr__(self, "weight", "stored")
        fields, of_search = type(self).model_fields, ("metric", "algorithm", "eps", "recall_target")
        ignored = [name for name in of_search if getattr(self, name) != fields[name].default]
        if self.weight in ("dot", "cosine"):
            ignored.append("weight")
        if self.sigma == "median":
            ignored.append("sigma")
        if ignored:
            raise ValueError(
                f"the graph '{self.representation}' is already built: weight must be stored, "
                "binary or heat, and sigma a number or null; remove "
                f"{quoted(ignored)}, which cannot be used"
            )
        return self

    @model_validator(mode="after")
    def _components_are_euclidean(self) -> GraphConfig:
        if self.representation.startswith("pca") and self.metric != "euclidean":
            raise ValueError(
                f"representation '{self.representation}' needs metric 'euclidean', since "
                f"centering changes angles, but metric is '{self.metric}'; change one of them"
            )
        return self

    @model_validator(mode="after")
    def _sigma_belongs_to_heat(self) -> GraphConfig:
        if self.sigma is not None and self.weight != "heat":
            raise ValueError(
                f"sigma is the width of the heat kernel, but weight '{self.weight}' "
                "would ignore it; set weight to 'heat' or remove sigma"
            )
        return self


class SpectralConfig(Section):
    """The eigenvectors of the graph.

    Attributes
    ----------
    solver
        Eigensolver; chebyshev is the fastest for many rows. auto: eigsh if it fits and
        rows are few, chebyshev otherwise.
    tol
        Tolerance of the eigenvectors: the accepted residual as a share of the eigenvalue, or
        the angle to the true vector.
    """

    solver: Literal["auto", "eigsh", "chebyshev"] = "auto"
    tol: Fraction = 3e-3


class StabilityConfig(Section):
    """Stability of the selection, from fits on pairs of samples that share no rows.

    Attributes
    ----------
    n_pairs
        Pairs of samples; the method is fitted to both samples of each.
    sample_size
        Rows of a sample; a fit must fit in one worker. null: half of the rows; with quick at
        most 3,000.
    threshold
        Features that at least this share of the fits selects are called stable.
    """

    n_pairs: PositiveInt = 25
    sample_size: Annotated[int, Field(ge=2)] | None = None
    threshold: Annotated[float, Field(gt=0.5, le=1)] = 0.6


class Auto(Section):
    """The automatic choice of the number of features.

    Attributes
    ----------
    auto
        The curve over the number of features that decides; stability is measured by fits on
        samples, with the settings of that section.
    share
        Share of the curve's plateau to reach. The plateau of explained_variance is the
        largest variance of the other features that the selected ones explain beyond chance.
    at_most
        The largest number of features to consider.
    """

    auto: Literal[
        "explained_variance",
        "explained_eigenvectors",
        "neighbors_kept",
        "stability",
    ] = "explained_variance"
    share: Share = 0.95
    at_most: PositiveInt = 200


def _number_or_auto(value: Any, number: ValidatorFunctionWrapHandler) -> Any:
    """Return an integer, or an `Auto` for ``auto`` or a section; raise ValueError otherwise."""
    if isinstance(value, Auto):
        return value
    if value == "auto":
        return Auto()
    if isinstance(value, dict):
        try:
            return Auto.model_validate(value)
        except ValidationError as error:
            raise ValueError(" ".join(explained(Auto, error))) from None
    if isinstance(value, float) and 0 < value < 1:
        raise ValueError(
            f"must be a whole number, or auto; a share is not accepted. Got {value:g}; "
            "{auto: explained_variance, share: 0.95} keeps the fewest features that reach this "
            "share of the curve's plateau"
        )
    return number(value)


# A number or `Auto`; typed as the number, which it is by the time a method reads it.
NumberOfFeatures = Annotated[
    PositiveInt,
    WrapValidator(_number_or_auto),
    PlainSerializer(lambda value: value.model_dump() if isinstance(value, Auto) else value),
    any_of({"const": "auto"}, {"type": "integer", "minimum": 1}, Auto.model_json_schema()),
]


class EvaluateConfig(Section):
    """The evaluation of the selection against known labels.

    Attributes
    ----------
    labels
        Known classes: y.npy, FILE.npz::NAME, FILE.csv::COLUMN or sklearn:digits. null:
        those of input.labels.
    n_repetitions
        Runs of k-means to average.
    n_init
        Initializations of each run; the one with the lowest inertia counts.
    init
        Initial centers; random uses random rows, as the papers do.
    nearest_neighbor
        Leave-one-out 1-nearest-neighbor error, exact: over all pairs of samples.
    n_clusters
        Number of clusters of k-means. null: the number of classes.
    n_components
        Number of principal components by which more than 100 features are evaluated. null:
        by the features themselves.
    """

    labels: Labels = None
    n_repetitions: PositiveInt = 20
    n_init: PositiveInt = 1
    init: Literal["k-means++", "random"] = "k-means++"
    nearest_neighbor: bool = True
    n_clusters: Annotated[int, Field(ge=2)] | None = None
    n_components: PositiveInt | None = 50


def column_in(uri: Any, source: InputConfig) -> str | None:
    """Return COLUMN if ``FILE::COLUMN`` names a column or array of the input; otherwise None."""
    file, name = column_of(uri) if isinstance(uri, str) else ("", "")
    return name or None if os.path.normpath(file) == os.path.normpath(source.uri) else None


def link_labels(config: Any) -> None:
    """Fill in the labels of the evaluation from those of the input, or vice versa.

    Raises
    ------
    ValueError
        If there is an evaluation without labels.
    """
    source, evaluate = config.input, config.evaluate
    if source.labels is not None:
        uri = within(source.uri, source.variable, source.labels)
        fill(config, "evaluate", EvaluateConfig(labels=uri))
        fill(config.evaluate, "labels", uri)
    elif evaluate is not None:
        if evaluate.labels is None:
            raise ValueError(
                "missing key 'labels' in 'evaluate', such as FILE.csv::COLUMN; or name the column "
                "as input.labels"
            )
        fill(source, "labels", column_in(evaluate.labels, source))


class BlocksConfig(Section):
    """The number of rows that one task reads.

    Attributes
    ----------
    rows
        Rows per block. null: 16 to 64 MB, from the data's shape.
    """

    rows: Annotated[PositiveInt, Field(le=10**9)] | None = None


Blocks = Annotated[BlocksConfig, BeforeValidator(as_section)]


def _as_walltime(value: str) -> str:
    """Return a time limit unchanged; raise ValueError unless it has Slurm's format."""
    if re.fullmatch(r"(\d+-)?\d+(:\d\d){0,2}", value) is None:
        raise ValueError(f"must have the form [days-]hours:minutes:seconds. Got '{value}'")
    return value


# Settings of a cluster that apply only to the listed kinds.
_KINDS: dict[str, tuple[str, ...]] = {
    "address": ("remote",),
    "n_workers": ("local", "slurm"),
    "threads_per_worker": ("local", "slurm"),
    **dict.fromkeys(
        ("interface", "queue", "account", "walltime", "local_directory", "log_directory")
        + ("job_script_prologue", "job_extra_directives"),
        ("slurm",),
    ),
}


class ClusterConfig(Section):
    """The Dask cluster of the run: started and stopped by the run, or already running.

    Attributes
    ----------
    kind
        Start processes on this machine, use a running scheduler, or submit a Slurm job for
        each worker (extra slurm).
    address
        Address of the running scheduler, or the .json file that it wrote (kind: remote
        only).
    n_workers
        Processes to start, each of at most memory_limit (not kind: remote). null: 2.
    threads_per_worker
        Tasks a process runs at once (not kind: remote). null: 1.
    wait_seconds
        How long to wait for the first worker. null: 60, or 3600 with kind: slurm, where
        jobs queue.
    interface
        Network interface, such as eth0, that scheduler and workers listen on (kind: slurm
        only, and required there).
    queue
        Slurm partition (kind: slurm only). null: the cluster's default.
    account
        Slurm account (kind: slurm only). null: the user's default.
    walltime
        Time limit of a worker's job (kind: slurm only). null: 04:00:00.
    local_directory
        The workers' own disk, for data that Dask spills (kind: slurm only). null: the current
        folder.
    log_directory
        Where jobs write their logs (kind: slurm only). null: the current folder.
    job_script_prologue
        Shell lines before the worker starts (kind: slurm only).
    job_extra_directives
        Further options of sbatch, such as --nice (kind: slurm only).
    """

    kind: Literal["local", "remote", "slurm"] = "local"
    address: Annotated[str, AfterValidator(check_address)] | None = None
    n_workers: PositiveInt | None = None
    threads_per_worker: PositiveInt | None = None
    wait_seconds: PositiveInt | None = None
    interface: str | None = None
    queue: str | None = None
    account: str | None = None
    walltime: Annotated[str, AfterValidator(_as_walltime)] | None = None
    local_directory: str | None = None
    log_directory: str | None = None
    job_script_prologue: list[str] = []
    job_extra_directives: list[str] = []

    @model_validator(mode="after")
    def _settings_follow_the_kind(self) -> ClusterConfig:
        ignored = [name for name, kinds in _KINDS.items() if self.kind not in kinds]
        given = [name for name in ignored if getattr(self, name)]
        if self.kind == "remote" and self.address is None:
            raise ValueError("kind 'remote' needs an address, such as tcp://127.0.0.1:8786")
        if self.kind == "remote" and given:
            raise ValueError(
                "kind 'remote' uses the workers of the running cluster and would ignore "
                f"{quoted(given)}; remove them"
            )
        if "address" in given:
            raise ValueError(f"kind '{self.kind}' would ignore the address; set kind to 'remote'")
        if given:
            raise ValueError(f"kind '{self.kind}' would ignore {quoted(given)}; remove them")
        fill(self, "wait_seconds", 3600 if self.kind == "slurm" else 60)
        if self.kind != "remote":
            fill(self, "n_workers", 2)
            fill(self, "threads_per_worker", 1)
        if self.kind == "slurm":
            if self.interface is None:
                raise ValueError(
                    "kind 'slurm' needs the network interface that scheduler and workers may "
                    "listen on, such as eth0 ('ip -brief address' lists them)"
                )
            fill(self, "walltime", "04:00:00")
        return self


class UpdateConfig(Section):
    """Limits within which a finished run of the series is updated instead of repeated.

    Attributes
    ----------
    most_new
        Largest share of rows that are new; above it, a full run is done.
    most_since_full
        Largest share of rows that are new since the last full run.
    most_in_a_row
        Largest number of updates in a row, after which a full run is done.
    least_recall
        Smallest recall of an updated graph; below it, the graph is rebuilt.
    most_residual
        Largest residual of an updated eigenvector; or spectral.tol, if that is larger.
        Eigenvalues are off by about its square, divided by the gap to the next.
    """

    most_new: Share = 0.1
    most_since_full: Share = 0.5
    most_in_a_row: PositiveInt = 30
    least_recall: Fraction = 0.9
    most_residual: Fraction = 2e-5


class ReportConfig(Section):
    """The page that `bigfs run` writes at the end.

    Attributes
    ----------
    image_shape
        Rows and columns, if features are the pixels of an image.
    axis
        A number for each feature, such as its wavelength: text, or an array or a column,
        named as labels are (FILE.npy, scene.nc::wavelength).
    """

    image_shape: Annotated[list[PositiveInt], Field(min_length=2, max_length=2)] | None = None
    axis: Annotated[str, AfterValidator(lambda file: str(Path(file).absolute()))] | None = Field(
        None, min_length=1
    )


class OutputConfig(Section):
    """Outputs of a run in addition to its result.

    Attributes
    ----------
    anndata
        A copy of the AnnData that was read, in the folder annotated.zarr of the run, with
        bigfs_rank, bigfs_score and bigfs_selected in its var.
    diff_below
        Exit code 6 if less than this share of the larger selection, such as 0.8, is common to
        this run and the former run of the series ({date} in run). null: never.
    metrics
        File for rows, seconds, memory, recall and the share in common with the former run,
        in the Prometheus text format. null: none.
    """

    anndata: bool = False
    diff_below: Share | None = None
    metrics: str | None = Field(None, min_length=1)
