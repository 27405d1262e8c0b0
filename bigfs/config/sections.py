"""The settings of a pipeline, section by section: names, types, bounds, defaults, meanings."""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    model_validator,
)

from bigfs.config.fields import Bytes, PositiveInt, Section, fill
from bigfs.config.methods import (
    METHOD_SECTIONS,
    SECTIONS,
    FSGMMConfig,
    GFSKMeansConfig,
    GraphConfig,
    LFSConfig,
    M3FSConfig,
    MCFSConfig,
    Method,
    NDFSConfig,
    QAlphaConfig,
    SPECConfig,
    SpectralConfig,
    UDFSConfig,
)
from bigfs.config.words import quoted, shown
from bigfs.core.addresses import check_address
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT


class InputConfig(Section):
    """Where the data is."""

    uri: str = Field(
        min_length=1,
        description="The matrix: a .npy, .npz, .csv, .parquet, .mat or .zarr path, or "
        "sklearn:NAME for a set that comes with scikit-learn (sklearn:digits).",
    )
    variable: str | None = Field(
        None, description="Array to read where a file holds several. null: X, or the only one."
    )
    header: Literal["auto", True, False] = Field(
        "auto",
        description="Whether the first line of a .csv or .tsv names the columns. auto: text does, "
        "numbers are a sample; numbers that may be either are refused.",
    )
    missing: Literal["error", "mean", "zero", "drop_rows"] = Field(
        "error",
        description="NaN: stop and name the first, replace by the column's mean or by zero, or "
        "drop the row. Infinities always stop.",
    )


class EvaluateConfig(Section):
    """How good the selection is, measured against known labels."""

    labels: str = Field(
        min_length=1,
        description="Known classes: y.npy, FILE.npz::NAME, FILE.csv::COLUMN or sklearn:digits.",
    )
    n_repetitions: PositiveInt = Field(20, description="Runs of k-means to average.")
    n_init: PositiveInt = Field(10, description="Restarts within each run of k-means.")
    init: Literal["k-means++", "random"] = Field(
        "k-means++", description="First centers; random takes samples, as the papers do."
    )
    nearest_neighbor: bool = Field(
        True, description="Leave-one-out 1-nearest-neighbor error: exact, every pair of samples."
    )
    n_clusters: Annotated[int, Field(ge=2)] | None = Field(
        None, description="Clusters k-means looks for. null: the number of classes."
    )


class BlocksConfig(Section):
    """How many rows one task reads."""

    rows: PositiveInt | None = Field(
        None, description="Rows per block. null: 16 to 64 MB, from the data's shape."
    )


_DATE = "{date}"


def _as_date(value: Any) -> Any:
    """Return a date as text; YAML makes a date of one."""
    if value is None:
        return None
    try:
        return datetime.date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise ValueError(f"a date looks like 2026-11-21. Got {shown(value)}") from None


def _as_walltime(value: str) -> str:
    """Return a time limit as Slurm reads it."""
    if re.fullmatch(r"(\d+-)?\d+(:\d\d){0,2}", value) is None:
        raise ValueError(f"a time limit is [days-]hours:minutes:seconds. Got '{value}'")
    return value


# Settings of a cluster that only some kinds have.
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
    """The Dask cluster of the run: started here and stopped after it, or one that runs already."""

    kind: Literal["local", "remote", "slurm"] = Field(
        "local",
        description="Start processes on this machine, use a running scheduler, or submit a Slurm "
        "job for each worker (extra slurm).",
    )
    address: Annotated[str, AfterValidator(check_address)] | None = Field(
        None,
        description="Address of the running scheduler, or the .json file that it wrote (kind: "
        "remote only).",
    )
    n_workers: PositiveInt | None = Field(
        None,
        description="Processes to start, each of at most memory_limit (not kind: remote). null: 2.",
    )
    threads_per_worker: PositiveInt | None = Field(
        None, description="Tasks a process runs at once (not kind: remote). null: 1."
    )
    wait_seconds: PositiveInt | None = Field(
        None,
        description="How long to wait for the first worker. null: 60, and 3600 with kind: slurm, "
        "where jobs queue.",
    )
    interface: str | None = Field(
        None,
        description="Network interface, such as eth0, that scheduler and workers listen on (kind: "
        "slurm only, and needed there).",
    )
    queue: str | None = Field(
        None, description="Slurm partition (kind: slurm only). null: the cluster's default."
    )
    account: str | None = Field(
        None, description="Slurm account (kind: slurm only). null: the user's default."
    )
    walltime: Annotated[str, AfterValidator(_as_walltime)] | None = Field(
        None, description="Time limit of a worker's job (kind: slurm only). null: 04:00:00."
    )
    local_directory: str | None = Field(
        None,
        description="Worker's own disk, for what Dask spills (kind: slurm only). null: the "
        "current folder.",
    )
    log_directory: str | None = Field(
        None, description="Where jobs write their logs (kind: slurm only). null: current folder."
    )
    job_script_prologue: list[str] = Field(
        [], description="Shell lines before the worker starts (kind: slurm only)."
    )
    job_extra_directives: list[str] = Field(
        [], description="Further options of sbatch, such as --nice (kind: slurm only)."
    )

    @model_validator(mode="after")
    def _settings_follow_the_kind(self) -> ClusterConfig:
        ignored = [name for name, kinds in _KINDS.items() if self.kind not in kinds]
        given = [name for name in ignored if getattr(self, name)]
        if self.kind == "remote":
            if self.address is None:
                raise ValueError("kind 'remote' needs an address, such as tcp://127.0.0.1:8786")
            if given:
                raise ValueError(
                    "kind 'remote' uses the workers of the running cluster and would ignore "
                    f"{quoted(given)}; remove them"
                )
        if "address" in given:
            raise ValueError(f"kind '{self.kind}' would ignore the address; set kind to 'remote'")
        if given:
            raise ValueError(f"kind '{self.kind}' would ignore {quoted(given)}; remove them")
        fill(self, "wait_seconds", 3600 if self.kind == "slurm" else 60)
        if self.kind == "remote":
            return self
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


class Config(Section):
    """A bigfs pipeline: which features of a matrix to keep."""

    run: str = Field(
        min_length=1,
        description="Run directory: results and finished stages; run again to continue. A folder, "
        "or s3://BUCKET/NAME; {date} in its last part stands for the date.",
    )
    date: Annotated[str, BeforeValidator(_as_date)] | None = Field(
        None, description="What {date} in run stands for, such as 2026-11-21. null: today."
    )
    keep: PositiveInt | None = Field(
        None,
        description="With {date} in run: how many finished runs to keep; older ones are removed "
        "when a run ends. null: all.",
    )
    input: InputConfig = Field(description="The matrix to read.")
    preprocess: Literal["none", "standardize", "rescale", "minmax", "unit_norm", "log1p"] = Field(
        "none", description="Applied to the values as they are read; unit_norm scales rows."
    )
    method: Method = Field("mcfs", description="The method that scores the features.")
    n_features_to_select: PositiveInt = Field(description="How many features to keep.")
    mcfs: MCFSConfig | None = Field(
        None, description="Settings of MCFS (method: mcfs only). null: the defaults."
    )
    ndfs: NDFSConfig | None = Field(
        None, description="Settings of NDFS (method: ndfs only). null: the defaults."
    )
    m3fs: M3FSConfig | None = Field(
        None, description="Settings of M3FS (method: m3fs only). null: the defaults."
    )
    spec: SPECConfig | None = Field(
        None, description="Settings of SPEC (method: spec only). null: the defaults."
    )
    q_alpha: QAlphaConfig | None = Field(
        None, description="Settings of Q-alpha (method: q_alpha only). null: the defaults."
    )
    udfs: UDFSConfig | None = Field(
        None, description="Settings of UDFS (method: udfs only). null: the defaults."
    )
    fsgmm: FSGMMConfig | None = Field(
        None, description="Settings of FSGMM (method: fsgmm only). null: the defaults."
    )
    lfs: LFSConfig | None = Field(
        None, description="Settings of LFS (method: lfs only). null: the defaults."
    )
    gfs_kmeans: GFSKMeansConfig | None = Field(
        None, description="Settings of GFS-k-means (method: gfs_kmeans only). null: the defaults."
    )
    graph: GraphConfig | None = Field(
        None, description="The neighbor graph (methods that use one). null: the defaults."
    )
    spectral: SpectralConfig | None = Field(
        None, description="The eigenvectors (methods that use them). null: the defaults."
    )
    evaluate: EvaluateConfig | None = Field(
        None, description="Compare the selection with known labels at the end. null: do not."
    )
    memory_limit: Bytes = Field(
        DEFAULT_MEMORY_LIMIT,  # type: ignore[assignment]  # parsed by the validator
        description="Resident size promised for one worker process, such as 4 GiB.",
    )
    blocks: BlocksConfig = Field(BlocksConfig(), description="The pieces the data is read in.")
    cluster: ClusterConfig | None = Field(
        None,
        description="The Dask cluster of the run. null: the client in scope, or threads of this "
        "process.",
    )
    random_state: Annotated[int, Field(ge=0)] = Field(
        0, description="Seed of every random draw; the same seed gives the same ranking."
    )

    @property
    def series(self) -> str | None:
        """Last part of the run directory with ``{date}`` in it, None if it has none."""
        return self.date and self.run.rpartition("/")[2].replace(self.date, _DATE)

    @model_validator(mode="after")
    def _the_date_is_in_the_run(self) -> Config:
        other = re.search(r"\{\w*\}", self.run.replace(_DATE, ""))
        if other is not None:
            raise ValueError(f"run: {other[0]} stands for nothing; {_DATE} does, for the date")
        if _DATE in self.run:
            if _DATE not in self.run.rpartition("/")[2] or self.run.count(_DATE) > 1:
                raise ValueError(f"run takes {_DATE} once, in its last part. Got '{self.run}'")
            fill(self, "date", datetime.date.today().isoformat())
            object.__setattr__(self, "run", self.run.replace(_DATE, str(self.date)))
        elif self.date is not None and self.date not in self.run.rpartition("/")[2]:
            raise ValueError(f"date goes with {_DATE} in run, such as runs/nightly-{_DATE}")
        elif self.keep is not None and self.date is None:
            raise ValueError(f"keep goes with {_DATE} in run, such as runs/nightly-{_DATE}")
        return self

    @model_validator(mode="after")
    def _sections_follow_the_method(self) -> Config:
        used = SECTIONS[self.method]
        if self.method == "ndfs":
            if self.ndfs is not None and self.ndfs.init != "spectral":
                used = ("ndfs", "graph")
            _fill_default_weight(self)
        if self.method == "m3fs":
            if self.m3fs is not None and not self.m3fs.takes_eigenvectors:
                used = ("m3fs", "graph")
            _fill_default_weight(self)
        refused = [name for name in METHOD_SECTIONS if name not in used and getattr(self, name)]
        if refused:
            nulls = " ".join(f"--set {name}=null" for name in refused)
            raise ValueError(
                f"method '{self.method}' does not use {quoted(refused)}; remove what it would "
                f"ignore ({nulls}) or choose another method"
            )
        for name in used:
            fill(self, name, METHOD_SECTIONS[name]())
        return self


def _fill_default_weight(config: Config) -> None:
    """Weigh the edges by the heat kernel, as the papers do, unless told otherwise."""
    given = {} if config.graph is None else config.graph.model_dump(exclude_unset=True)
    object.__setattr__(config, "graph", GraphConfig(**{"weight": "heat", **given}))
