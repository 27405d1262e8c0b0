"""Settings of a selection, shared by estimators and pipelines.

The sections of methods are defined with the methods; `with_methods` adds them to a model.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field, create_model, model_validator

from bigfs.config import sections
from bigfs.config.fields import (
    MemoryLimit,
    Names,
    PositiveFloat,
    PositiveInt,
    Section,
    Seed,
    Share,
    as_section,
    fill,
)
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT
from bigfs.core.paths import SOURCE, listed_in, within
from bigfs.core.text import quoted, shown

DATE = "{date}"
Transforms = Literal[
    "none", "standardize", "rescale", "minmax", "unit_norm", "log1p", "normalize_total",
    "normalize_log1p",
]  # fmt: skip
Preprocess = Literal["auto", Transforms]
SHARED_SECTIONS: dict[str, type[Section]] = {
    "graph": sections.GraphConfig,
    "spectral": sections.SpectralConfig,
}
_Model = TypeVar("_Model", bound="Selection")


class Selection(Section):
    """The method, its settings, and the number of features to keep.

    Attributes
    ----------
    preprocess
        Applied to the values as they are read; unit_norm scales rows to norm 1,
        normalize_total to a sum of 10,000, and normalize_log1p takes log1p of that. auto:
        normalize_log1p for sparse counts (highly_variable: none), minmax for dense features
        of different units, none for all other data.
    method
        The method that scores the features.
    n_features_to_select
        Number of features to keep. auto: chosen from a curve; {auto: explained_variance |
        explained_eigenvectors | neighbors_kept | stability, share: 0.95, at_most: 200}
        names the curve. Not for counts of cells: give a number, such as 2000.
    redundancy
        Skip a feature whose absolute correlation with a better one that is kept is above
        this, such as 0.95. null: skip none.
    least_gap
        Skip a feature that is nearer than this to a better one that is kept; names must be
        numbers, such as wavelengths. null: skip none.
    include
        Features that are always selected, by names, globs or ranges as in input.columns;
        the method selects the rest. They come first, with the best score; the agreement of
        fits does not count them. null: none.
    graph
        The neighbor graph (methods that use one). null: the defaults.
    spectral
        The eigenvectors (methods that use them). null: the defaults.
    blocks
        The blocks in which the data are read.
    random_state
        Seed of all random draws; the same seed gives the same ranking. null: a random one.
    """

    # The methods (`bigfs.selectors.method.Method`) by name.
    methods: ClassVar[Mapping[str, Any]] = {}

    preprocess: Preprocess = "auto"
    method: str = "mcfs"
    n_features_to_select: sections.NumberOfFeatures
    redundancy: Share | None = None
    least_gap: PositiveFloat | None = None
    include: Names | None = None
    graph: sections.GraphConfig | None = None
    spectral: sections.SpectralConfig | None = None
    memory_limit: MemoryLimit = DEFAULT_MEMORY_LIMIT  # type: ignore[assignment]  # a text
    blocks: sections.Blocks = sections.BlocksConfig()
    random_state: Seed = 0

    @property
    def parameters(self) -> Any:
        """The section of the chosen method; an empty section if it has no parameters."""
        return getattr(self, self.method, None) or self.methods[self.method].parameters()

    @property
    def used_graph(self) -> sections.GraphConfig:
        """The graph section, for methods that use a graph, where it is always set."""
        assert self.graph is not None
        return self.graph

    def with_parameters(self: _Model, **changes: Any) -> _Model:
        """Return a copy with changed values in the section of the method, without validation."""
        changed = self.parameters.model_copy(update=changes)
        return self.model_copy(update={self.method: changed})

    @model_validator(mode="after")
    def _sections_follow_the_method(self) -> Selection:
        method = self.methods[self.method]
        if method.parameters.model_fields:
            fill(self, method.name, method.parameters())
        read = (method.name, *method.sections(self.parameters))
        refused = [
            name
            for name in section_models(self.methods)
            if name not in read and getattr(self, name) is not None
        ]
        if refused:
            nulls = " ".join(f"--set {name}=null" for name in refused)
            raise ValueError(
                f"method '{self.method}' does not use {quoted(refused)}; remove what it would "
                f"ignore ({nulls}) or choose another method"
            )
        if "graph" in read:
            given = {} if self.graph is None else self.graph.model_dump(exclude_unset=True)
            finished = self.graph is not None and self.graph.is_finished
            defaults = {} if finished else method.graph_defaults
            graph = sections.GraphConfig(**{**defaults, **given})
            object.__setattr__(self, "graph", graph)
        if "spectral" in read:
            fill(self, "spectral", sections.SpectralConfig())
        return self


def _as_update(value: Any) -> Any:
    """Return None for ``never`` and an empty section for ``auto``; other values are unchanged."""
    return {"never": None, "auto": {}}.get(value, value) if isinstance(value, str) else value


def _as_date(value: Any) -> Any:
    """Return a date (which YAML parses to a date object) in ISO format; None for null."""
    if value is None:
        return None
    try:
        return datetime.date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise ValueError(f"must be a date such as 2026-11-21. Got {shown(value)}") from None


def name_of_input(uri: str) -> str:
    """Return a plain name for an input, such as "cells" for data/cells.csv.gz."""
    uri = (listed_in(uri) or [uri])[0]
    plain = [part for part in uri.split("/") if part and not any(c in part for c in "*?[")]
    last = (plain or ["input"])[-1].removeprefix("sklearn:")
    return re.sub(r"[^\w-]", "_", last.lstrip(".").partition(".")[0]) or "input"


class _RunSection(Section):
    """The run directory and the input: first in a pipeline file.

    Attributes
    ----------
    run
        Run directory: results and finished stages; run again to continue. A folder, or
        s3://BUCKET/NAME. {date} in its last part stands for the date, {input} for the name
        of the input and {method} for the method.
    date
        What {date} in run stands for, such as 2026-11-21. null: today.
    keep
        With {date} in run: how many finished runs to keep; older ones are removed when a
        run ends. null: all.
    input
        The matrix to read.
    update
        auto: if rows were only appended to the input since the latest run of the series
        ({date} in run), that run is updated, within limits. never, or null: do a full run.
    """

    run: str = Field(min_length=1)
    date: Annotated[str, BeforeValidator(_as_date)] | None = None
    keep: PositiveInt | None = None
    input: sections.InputConfig
    update: Annotated[sections.UpdateConfig | None, BeforeValidator(_as_update)] = None

    @property
    def series(self) -> str | None:
        """Last part of the run directory with ``{date}`` for the date; None without a date."""
        return self.date and self.run.rpartition("/")[2].replace(self.date, DATE)

    @model_validator(mode="after")
    def _the_date_is_in_the_run(self) -> _RunSection:
        names = {"{input}": name_of_input(self.input.uri), "{method}": getattr(self, "method", "")}
        for placeholder, name in names.items():
            object.__setattr__(self, "run", self.run.replace(placeholder, name))
        other = re.search(r"\{\w*\}", self.run.replace(DATE, ""))
        if other is not None:
            raise ValueError(
                f"run: unknown placeholder {other[0]}. Known: {', '.join([DATE, *names])}"
            )
        if DATE in self.run:
            if DATE not in self.run.rpartition("/")[2] or self.run.count(DATE) > 1:
                raise ValueError(f"run takes {DATE} once, in its last part. Got '{self.run}'")
            fill(self, "date", datetime.date.today().isoformat())
            object.__setattr__(self, "run", self.run.replace(DATE, str(self.date)))
        elif self.date is not None and self.date not in self.run.rpartition("/")[2]:
            raise ValueError(f"date needs {DATE} in run, such as runs/nightly-{DATE}")
        elif self.date is None:
            below = getattr(getattr(self, "output", None), "diff_below", None)
            for name, value in (("keep", self.keep), ("output.diff_below", below)):
                if value is not None:
                    raise ValueError(f"{name} needs {DATE} in run, such as runs/nightly-{DATE}")
        return self


class Config(Selection, _RunSection):
    """A bigfs pipeline: which features of a matrix to keep.

    Attributes
    ----------
    evaluate
        Compare the selection with known labels at the end. null: only if input.labels is set.
    stability
        Stability of the selection, from fits on samples. null: only if quick or
        n_features_to_select needs it.
    quick
        Select the features that the fits of stability agree on, without a graph of all
        rows.
    curves
        Curves over the number of features, and the reason why each is selected or left out;
        at most one more pass over the data. false: only if n_features_to_select is auto.
    output
        What is written in addition to the result.
    report
        report.html of the command line. null: none.
    cluster
        The Dask cluster of the run. null: the client in scope, or threads of this process.
    """

    evaluate: sections.EvaluateConfig | None = None
    stability: sections.StabilityConfig | None = None
    quick: bool = False
    curves: bool = True
    output: Annotated[sections.OutputConfig, BeforeValidator(as_section)] = sections.OutputConfig()
    report: sections.ReportConfig | None = sections.ReportConfig()
    cluster: sections.ClusterConfig | None = None

    @model_validator(mode="after")
    def _fits_on_samples_have_a_section(self) -> Config:
        number = self.n_features_to_select
        if self.quick or (isinstance(number, sections.Auto) and number.auto == "stability"):
            fill(self, "stability", sections.StabilityConfig())
        return self

    @model_validator(mode="after")
    def _names_are_those_of_the_input(self) -> Config:
        """Add the URI of the input to labels, a graph or batches that are named within it."""
        name, section = self.methods[self.method].labels, self.parameters
        start = getattr(section, name, None)
        if isinstance(start, str) and start == SOURCE:
            named = section.model_copy(update={name: f"{self.input.uri}::{SOURCE}"})
            object.__setattr__(self, self.method, named)
        sections.link_labels(self)
        if self.graph is not None and self.graph.representation.startswith(("obsm/", "obsp/")):
            member = f"{self.input.uri}::{self.graph.representation}"
            object.__setattr__(self.graph, "representation", member)
        batches = self.input.batch_key
        if batches is not None and "batch_key" not in type(section).model_fields:
            raise ValueError(
                f"method '{self.method}' does not score batches separately and would ignore "
                "input.batch_key; remove it"
            )
        if batches is not None:
            uri = within(self.input.uri, self.input.variable, batches)
            fill(getattr(self, self.method), "batch_key", uri)
        return self

    @property
    def opening(self) -> dict[str, Any]:
        """The settings for `bigfs.open_matrix`; columns of labels are never features."""
        named = self.methods[self.method].labels
        start = sections.column_in(getattr(self.parameters, named, None), self.input)
        judged = sections.column_in(self.evaluate and self.evaluate.labels, self.input)
        labels = {name for name in (self.input.labels, judged, start) if name}
        return {**self.input.opening, "labels": sorted(labels) or None}


def section_models(methods: Mapping[str, Any]) -> dict[str, type[Section]]:
    """Return the sections that only some methods read: those of methods and the shared ones."""
    own = {name: method.parameters for name, method in methods.items()}
    return {name: model for name, model in own.items() if model.model_fields} | SHARED_SECTIONS


def with_methods(model: type[_Model], methods: Mapping[str, Any]) -> type[_Model]:
    """Return a model whose ``method`` is one of the given names, with a section for each method."""
    fields: dict[str, Any] = {
        "method": (
            Literal[tuple(methods)],
            Field("mcfs", description="The method that scores the features."),
        )
    }
    for name, method in methods.items():
        if method.parameters.model_fields:
            about = f"Settings of {method.title} (method: {name} only). null: the defaults."
            fields[name] = (method.parameters | None, Field(None, description=about))
    bound = create_model(model.__name__, __base__=model, __doc__=model.__doc__, **fields)
    bound.methods = dict(methods)
    return bound
