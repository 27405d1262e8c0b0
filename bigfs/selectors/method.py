"""A method as one declared object: its parameters, what it needs, its strategies, its estimator."""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from bigfs.config import Selection
from bigfs.config.fields import Section
from bigfs.core.cost import Shape, StageCost
from bigfs.core.errors import InputError

if TYPE_CHECKING:  # reading a configuration does not load what runs it
    from bigfs.stages.scores import FeatureScores
    from bigfs.stages.stage import Inputs
    from bigfs.store.scratch import Scratch


@dataclass(frozen=True)
class Strategy(ABC):
    """One way to score the features: the plan prints its cost, the run executes it.

    Attributes
    ----------
    shape : Shape
        Of the data.
    selection : Selection
    """

    shape: Shape
    selection: Selection

    @property
    def leaves_products(self) -> bool:
        """True if X'X and X'Y are stored beside the scores, for the curves."""
        return False

    @property
    def parameters(self) -> Any:
        """The section of the method."""
        return self.selection.parameters

    @abstractmethod
    def cost(self) -> StageCost:
        """Return the cost."""

    @abstractmethod
    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the scores; arrays with a row for every sample are written to ``out``."""


@dataclass(frozen=True)
class Bound:
    """The largest value of a parameter that the shape of the data allows.

    Attributes
    ----------
    parameter : str
    size : {"n_samples", "n_features"}
    less : int, default=0
        The largest value is the size less this.
    least : int, default=1
        The least value: data that do not allow it are too small for the method.
    """

    parameter: str
    size: Literal["n_samples", "n_features"]
    less: int = 0
    least: int = 1

    def exceeded(self, parameters: Section, sizes: Mapping[str, int | None]) -> int | None:
        """Return the largest value if the parameter is above it; None elsewhere."""
        value, size = getattr(parameters, self.parameter), sizes[self.size]
        if not isinstance(value, int) or size is None or value <= size - self.less:
            return None
        return size - self.less

    def check(self, owner: str, parameters: Section, sizes: Mapping[str, int | None]) -> None:
        """Raise InputError if the parameter is too large for the data.

        A default is lowered instead, where that leaves something of it.
        """
        value, largest = getattr(parameters, self.parameter), self.exceeded(parameters, sizes)
        default = type(parameters).model_fields[self.parameter].default
        if largest is None or (value == default and largest >= self.least):
            return
        what = {"n_samples": "rows", "n_features": "features"}[self.size]
        if largest < self.least:
            raise InputError(
                f"{owner} needs at least {self.least + self.less} {what}. X has {sizes[self.size]}."
            )
        raise InputError(
            f"{owner}: {self.parameter} must be at most {largest}, since X has "
            f"{sizes[self.size]} {what}. Got {value}."
        )


class NoParameters(Section):
    """The section of a method that has no parameters."""


def nothing(parameters: Any) -> tuple[str, ...]:
    """Return the stages or sections of a method that needs none."""
    return ()


def needs_graph(parameters: Any) -> tuple[str, ...]:
    """Return the stages of a method that takes the neighbor graph."""
    return ("graph",)


def needs_eigenvectors(parameters: Any) -> tuple[str, ...]:
    """Return the stages of a method that takes eigenvectors of the graph."""
    return ("graph", "spectral")


def needs_eigengap(parameters: Any) -> tuple[str, ...]:
    """Return the stages that choose ``n_clusters: auto``, for a method that needs no others."""
    return ("graph", "spectral") if parameters.n_clusters == "auto" else ()


@dataclass(frozen=True)
class Method:
    """The declaration of a method.

    Attributes
    ----------
    name : str
        In a pipeline; also the name of its section.
    estimator : str
        Name of the class; it lives in the module ``estimator`` of the method's package, or in
        the method's module if that is a single file.
    module : str
        The package or module that declares the method.
    parameters : type of Section
    title : str
        In prose; that of the class if none is given.
    choose_by : str, default="choose"
        The function of the module ``strategies`` that returns its strategy.
    needs : callable
        ``needs(parameters)`` returns the stages it takes: "graph", "spectral".
    reads : callable or None, default=None
        ``reads(parameters)`` returns the shared sections that it reads. None: those of its stages.
    graph_defaults : mapping
        Defaults of the graph section that differ for this method.
    n_components : callable
        ``n_components(parameters)`` returns how many eigenvectors it takes, or "auto".
    starts : tuple of str
        What its ``init`` may be called; another text names labels. Empty: it has no ``init``.
    finds_number : bool, default=False
        Whether it finds a number of features itself, which its estimator takes for None.
    bounds : tuple of Bound
        Limits of its parameters that depend on the data.
    scale_free : bool, default=False
        Whether the scale of each feature makes no difference.
    sparse : bool or "large", default=False
        Whether its strategies take CSR blocks; else sparse data are made dense block by block.
        "large": those that would be above 2 GiB dense.
    neighbor_lists : bool, default=False
        Whether it reads the neighbors of rows beside the affinity matrix: a finished graph, which
        has none, does not do.
    keeps_sums : bool, default=False
        Whether its result keeps sums over all rows, to which an update adds those of new rows.
    raw_counts : bool, default=False
        Whether it is made for counts as they were measured: ``preprocess: auto`` leaves them.
    check : callable or None, default=None
        ``check(parameters)`` raises InputError for parameters that cannot be used here.
    labels : str, default="init"
        The parameter that may name labels, one for each row.
    one_fit_up_to : callable
        ``one_fit_up_to(parameters)`` returns the number of features up to which one fit ranks for
        all numbers; a larger number has its own fit.
    explains : callable or None, default=None
        ``explains(details)`` returns what its parts are called, such as "cluster", and how much
        each feature tells of each: shape (n_features, n_parts), or bool. None: the eigenvectors
        of the graph, where it takes them.
    """

    name: str
    estimator: str
    module: str
    parameters: type[Section] = NoParameters
    title: str = ""
    choose_by: str = "choose"
    needs: Callable[[Any], tuple[str, ...]] = nothing
    reads: Callable[[Any], tuple[str, ...]] | None = None
    graph_defaults: Mapping[str, Any] = field(default_factory=dict)
    n_components: Callable[[Any], int | str] = lambda parameters: parameters.n_clusters
    starts: tuple[str, ...] = ()
    finds_number: bool = False
    bounds: tuple[Bound, ...] = ()
    scale_free: bool = False
    sparse: bool | Literal["large"] = False
    neighbor_lists: bool = False
    keeps_sums: bool = False
    raw_counts: bool = False
    check: Callable[[Any], None] | None = None
    labels: str = "init"
    one_fit_up_to: Callable[[Any], float] = lambda parameters: math.inf
    explains: Callable[[dict[str, Any]], tuple[str, Any]] | None = None

    def __post_init__(self) -> None:
        """Set the title."""
        object.__setattr__(self, "title", self.title or self.estimator)

    @property
    def sections(self) -> Callable[[Any], tuple[str, ...]]:
        """Names of the shared sections that a method with these parameters reads."""
        return self.reads or self.needs

    def choose(self, shape: Shape, selection: Selection) -> Strategy:
        """Return the strategy for data of a shape.

        Raises
        ------
        MemoryLimitError
            If none fits ``memory_limit``.
        """
        choose: Callable[[Shape, Selection], Strategy]
        choose = getattr(self._part("strategies"), self.choose_by)
        return choose(shape, selection)

    def estimator_class(self) -> Any:
        """Return the estimator's class."""
        return getattr(self._part("estimator"), self.estimator)

    def _part(self, name: str) -> Any:
        """Return a module of the method's package; of a single file that file."""
        module = importlib.import_module(self.module)
        is_package = hasattr(module, "__path__")
        return importlib.import_module(f"{self.module}.{name}") if is_package else module
