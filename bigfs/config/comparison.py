"""The settings of a comparison: several methods on one data set, or the table of a paper."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, create_model, model_validator

from bigfs.config import sections
from bigfs.config.fields import (
    MemoryLimit,
    PositiveInt,
    Section,
    Seed,
    Share,
    as_list,
    as_section,
)
from bigfs.config.messages import explained
from bigfs.config.selection import (
    SHARED_SECTIONS,
    Config,
    Preprocess,
    name_of_input,
    section_models,
)
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT
from bigfs.core.text import quoted, shown

# Names of the rows that a comparison adds to the rows of its methods.
ALL_FEATURES, CHANCE = "all features", "chance"


Sizes = Annotated[list[PositiveInt], BeforeValidator(as_list), Field(min_length=1)]


@dataclass(frozen=True)
class Entry:
    """One method of a comparison with its settings."""

    name: str  # name in the table
    config: Config  # configuration with which `bigfs run` would run it
    choice: dict[str, Any]  # settings from a grid, by dotted names
    # True to keep all features, for any requested number, so that its clusters are evaluated.
    everything: bool = False

    @property
    def point(self) -> str:
        """The point of the grid as text, such as "alpha 1, beta 10"; empty without a grid."""
        values = {name.partition(".")[2]: value for name, value in self.choice.items()}
        return ", ".join(
            f"{name} {value:g}"
            if isinstance(value, float) and float(f"{value:g}") == value
            else f"{name} {value}"
            for name, value in values.items()
        )


class Methods(Section):
    """The methods of a comparison, and the settings that apply to all of them.

    Attributes
    ----------
    run
        Run directory: finished stages; run again to continue.
    methods
        Methods to compare: a name, or a section with method, its settings and, if a method
        occurs twice, a name.
    n_features_to_select
        Numbers of features to keep.
    graph
        The neighbor graph for all methods that use one. null: the defaults.
    spectral
        The eigenvectors for all methods that use them. null: the defaults.
    cluster
        The Dask cluster of the run. null: the client in scope, or threads of this process.
    random_state
        Seed of all random draws; the same seed gives the same table. null: a random one.
    """

    pipeline: ClassVar[type[Config]] = Config

    run: str = Field(min_length=1)
    methods: Annotated[list[Any], Field(min_length=1)]
    n_features_to_select: Sizes
    graph: sections.GraphConfig | None = None
    spectral: sections.SpectralConfig | None = None
    memory_limit: MemoryLimit = DEFAULT_MEMORY_LIMIT  # type: ignore[assignment]  # a text
    cluster: sections.ClusterConfig | None = None
    random_state: Seed = 0

    @model_validator(mode="after")
    def _every_method_is_whole(self) -> Methods:
        expanded = [list(self._expand(entry, {"uri": "unknown"}, 1)) for entry in self.methods]
        names = [points[0].name for points in expanded]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f"methods has {quoted(twice)} more than once; give each of them a 'name' of its own"
            )
        return self

    def _expand(
        self,
        entry: Any,
        source: dict[str, Any],
        n_features: int | sections.Auto,
        *,
        common: dict[str, Any] | None = None,
        above: dict[str, Any] | None = None,
    ) -> Iterator[Entry]:
        """Yield the configurations of a method: one, or one for each point of its grid.

        ``common`` are defaults by plain names, which apply to methods that have such a setting and
        do not set it. ``above`` are settings by dotted names that override methods and grids.
        """
        given = {"method": entry} if isinstance(entry, str) else entry
        if not isinstance(given, dict) or not isinstance(given.get("method"), str):
            raise ValueError(
                "methods takes names, or sections with a 'method' each. Got " + shown(entry)
            )
        given = dict(given)
        method = given.pop("method")
        name = given.pop("name", None) or method
        if not isinstance(name, str):
            raise ValueError(f"methods, {method}: name must be a string. Got {shown(name)}")
        grid, keep = given.pop("grid", None) or {}, given.pop("keep", None)
        if keep not in (None, "all"):
            raise ValueError(f"methods, {name}: keep must be all or null. Got {shown(keep)}")
        if not isinstance(grid, dict) or not all(map(self._is_of_grid, grid.items())):
            raise ValueError(
                f"methods, {name}: grid takes lists of values by dotted names, such as "
                f"ndfs.alpha: [1, 10]. Got {shown(grid)}"
            )
        self._check_keys(name, given)
        mine = {k: v for k, v in (above or {}).items() if self._reads(method, k.partition(".")[0])}
        grid = {key: [mine[key]] if key in mine else values for key, values in grid.items()}
        for values in itertools.product(*grid.values()):
            choice = dict(zip(grid, values, strict=True))
            settings = self._merged(method, given, {**mine, **choice}, common or {})
            config = self._config(name, method, settings, source, n_features)
            yield Entry(name, config, choice, keep == "all")

    def _is_of_grid(self, item: tuple[Any, Any]) -> bool:
        """Return True if the key of a grid item is SECTION.KEY and its value a non-empty list."""
        name, values = item
        section, _, key = name.partition(".") if isinstance(name, str) else ("", "", "")
        known = section_models(self.pipeline.methods)
        return section in known and bool(key) and isinstance(values, list) and bool(values)

    def _check_keys(self, name: str, given: dict[str, Any]) -> None:
        known_sections = section_models(self.pipeline.methods)
        for key, value in given.items():
            if key not in known_sections:
                known = ", ".join(["method", "name", "grid", "keep", *known_sections])
                top = key in type(self).model_fields
                hint = "it holds for all methods: set it at the top level" if top else "unknown key"
                raise ValueError(f"methods, {name}: '{key}': {hint}. Known: {known}")
            if value is not None and not isinstance(value, dict):
                raise ValueError(
                    f"methods, {name}: '{key}' must be a section with keys. Got {shown(value)}"
                )

    def _merged(
        self, method: str, given: dict[str, Any], choice: dict[str, Any], common: dict[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Return the sections of a method; later ones win: common, its own, then the grid's."""
        settings: dict[str, dict[str, Any]] = {}
        for section in SHARED_SECTIONS:
            shared = getattr(self, section)
            if shared is not None:
                settings[section] = shared.model_dump(exclude_unset=True)
        declared = self.pipeline.methods.get(method)
        if declared is not None and declared.parameters.model_fields:
            own = declared.parameters.model_fields
            settings[method] = {key: value for key, value in common.items() if key in own}
        for section, values in given.items():
            settings[section] = {**settings.get(section, {}), **(values or {})}
        for dotted, value in choice.items():
            section, _, key = dotted.partition(".")
            settings[section] = {**settings.get(section, {}), key: value}
        for section in SHARED_SECTIONS:
            if section not in given and not self._reads(method, section, settings.get(method)):
                settings.pop(section, None)
        return settings

    def _reads(self, method: str, section: str, parameters: dict[str, Any] | None = None) -> bool:
        """Return True if a method, with these parameters, reads a section."""
        declared = self.pipeline.methods.get(method)
        if declared is None or section == method:  # an unknown method is refused later
            return declared is not None
        try:
            return section in declared.sections(
                declared.parameters.model_validate(parameters or {})
            )
        except ValidationError:  # refused when the whole configuration is validated
            return True

    def _config(
        self,
        name: str,
        method: str,
        settings: dict[str, Any],
        source: dict[str, Any],
        n_features: int | sections.Auto,
    ) -> Config:
        known = self.pipeline.methods.get(method)
        if known is not None and "batch_key" not in known.parameters.model_fields:
            source = {**source, "batch_key": None}
        shared = ("run", "preprocess", "redundancy", "memory_limit", "random_state", "stability")
        given = {name: getattr(self, name) for name in (*shared, "blocks") if hasattr(self, name)}
        given |= {"input": source, "method": method, "n_features_to_select": n_features, **settings}
        try:
            # A comparison evaluates given numbers of features and needs no curves.
            config = self.pipeline.model_validate({"preprocess": "none", "curves": False, **given})
            # Evaluation by labels is done by the comparison, not by each method.
            return config.model_copy(update={"evaluate": None})
        except ValidationError as error:
            problems = " ".join(explained(self.pipeline, error)).rstrip(".")
            raise ValueError(f"methods, {name}: {problems}") from None


class CompareConfig(Section):
    """Random selections, which every method is compared with.

    Attributes
    ----------
    chance
        Add a row of random selections; each other row says whether it is better.
    n_draws
        Random selections for each number of features.
    """

    chance: bool = True
    n_draws: Annotated[int, Field(ge=2)] = 10


class Comparison(Methods):
    """Several methods on one data set, with one table and one figure.

    Attributes
    ----------
    input
        The matrix to read.
    n_features_to_select
        Numbers of features to keep; auto: each method chooses its own.
    preprocess
        Applied to the values as they are read, as in a pipeline.
    redundancy
        Features that every method skips, as in a pipeline; random draws keep them.
    evaluate
        How the selections are evaluated with known labels. null: by their redundancy and the
        variance of all features that they explain.
    compare
        Chance, with which every method is compared.
    stability
        Measure the stability of every selection, by fits on samples. null: not measured.
    blocks
        The blocks in which the data are read.
    """

    input: sections.InputConfig
    n_features_to_select: Annotated[  # here `auto` is accepted as well
        list[sections.NumberOfFeatures], BeforeValidator(as_list), Field(min_length=1)
    ]
    preprocess: Preprocess = "auto"
    redundancy: Share | None = None
    evaluate: sections.EvaluateConfig | None = None
    compare: Annotated[CompareConfig, BeforeValidator(as_section)] = CompareConfig()
    stability: sections.StabilityConfig | None = None
    blocks: sections.Blocks = sections.BlocksConfig()

    @model_validator(mode="after")
    def _every_method_selects(self) -> Comparison:
        sections.link_labels(self)
        name = name_of_input(self.input.uri)
        object.__setattr__(self, "run", self.run.replace("{input}", name))
        if re.search(r"\{\w*\}", self.run):
            raise ValueError(
                "run of a comparison accepts only the placeholder {input}, the input's name"
            )
        entries = self.entries(1)
        if any(entry.everything for entry in entries):
            raise ValueError(
                "keep: all is only for tables of papers that evaluate methods' clusters"
            )
        reserved = {ALL_FEATURES, CHANCE} & {entry.name for entry in entries}
        if reserved:
            names = quoted(sorted(reserved))
            raise ValueError(f"{names} is reserved for a row of every table; choose another name")
        return self

    def entries(self, n_features: int | sections.Auto, *more: dict[str, Any]) -> list[Entry]:
        """Return the methods and ``more``, each with a configuration that keeps ``n_features``.

        Each point of a grid is an entry with its own name, such as "ndfs (alpha 1)".
        """
        source, methods = self.input.model_dump(), (*self.methods, *more)
        expanded = [point for entry in methods for point in self._expand(entry, source, n_features)]
        return [replace(e, name=f"{e.name} ({e.point})") if e.choice else e for e in expanded]


_Model = TypeVar("_Model", bound=Methods)


def with_pipeline(model: type[_Model], pipeline: type[Config]) -> type[_Model]:
    """Return a model whose methods are configured by the given pipeline model."""
    bound = create_model(model.__name__, __base__=model, __doc__=model.__doc__)
    bound.pipeline = pipeline
    return bound
