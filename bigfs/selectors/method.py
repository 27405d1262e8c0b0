"""Declaration of a method: its parameters, requirements, strategies and estimator."""

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

if TYPE_CHECKING:  # so that reading a configuration does not import the code that runs it
    from bigfs.stages.scores import FeatureScores
    from bigfs.stages.stage import Inputs
    from bigfs.store.scratch import Scratch


@dataclass(frozen=True)
class Strategy(ABC):
    """One way to compute the scores: the plan prints its cost, the run executes it.

    Attributes
    ----------
    shape : Shape
        Shape of the data.
    selection : Selection
        Settings of the selection.
    """

    shape: Shape
    selection: Selection

    @property
    def leaves_products(self) -> bool:
        """True if X'X and X'Y are stored with the scores, for the curves."""
        return False

    @property
    def parameters(self) -> Any:
        """The settings section of the method."""
        return self.selection.parameters

    @abstractmethod
    def cost(self) -> StageCost:
        """Return the cost of `run`."""

    @abstractmethod
    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the scores; arrays with one row per sample are written to ``out``."""


@dataclass(frozen=True)
class Bound:
    """Upper bound of a parameter that depends on the shape of the data.

    Attributes
    ----------
    parameter : str
        Name of the parameter.
    size : {"n_samples", "n_features"}
        The size that limits it.
    less : int, default=0
        The upper bound is the size minus this number.
    least : int, default=1
        Smallest valid value. Data whose upper bound is smaller are too small for the method.
    """

    parameter: str
    size: Literal["n_samples", "n_features"]
    less: int = 0
    least: int = 1

    def exceeded(self, parameters: Section, sizes: Mapping[str, int | None]) -> int | None:
        """Return the upper bound if the parameter exceeds it, else None."""
        value, size = getattr(parameters, self.parameter), sizes[self.size]
        if not isinstance(value, int) or size is None or value <= size - self.less:
            return None
        return size - self.less

    def check(self, owner: str, parameters: Section, sizes: Mapping[str, int | None]) -> None:
        """Raise InputError if the parameter is too large for the data.

        A parameter that has its default value is accepted if the upper bound is at least ``least``:
        it is lowered later.
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
    """Settings section of a method that has no parameters."""


def nothing(parameters: Any) -> tuple[str, ...]:
    """Return no stages or sections, for a method that needs none."""
    return ()


def needs_graph(parameters: Any) -> tuple[str, ...]:
    """Return the stages for a method that uses the neighbor graph."""
    return ("graph",)


def needs_eigenvectors(parameters: Any) -> tuple[str, ...]:
    """Return the stages for a method that uses eigenvectors of the graph."""
    return ("graph", "spectral")


def needs_eigengap(parameters: Any) -> tuple[str, ...]:
    """Return the stages that ``n_clusters: auto`` needs, for a method that needs no others."""
    return ("graph", "spectral") if parameters.n_clusters == "auto" else ()


@dataclass(frozen=True)
class Method:
    """The declaration of a method.

    Attributes
    ----------
    name : str
        Name in a pipeline; also the name of its settings section.
    estimator : str
        Name of the estimator class. It is defined in the module ``estimator`` of the method's
        package, or in the method's module if that is a single file.
    module : str
        The package or module that declares the method.
    parameters : type of Section
        Model of the settings section.
    title : str
        Name used in prose; by default the name of the estimator.
    choose_by : str, default="choose"
        Name of the function in the module ``strategies`` that returns the strategy.
    needs : callable
        ``needs(parameters)`` returns the stages the method needs: "graph", "spectral".
    reads : callable or None, default=None
        ``reads(parameters)`` returns the shared sections that the method reads. None: those of the
        stages it needs.
    graph_defaults : mapping
        Defaults of the graph section that differ for this method.
    n_components : callable
        ``n_components(parameters)`` returns the number of eigenvectors it uses, or "auto".
    starts : tuple of str
        Valid names for ``init``; any other string names labels. Empty if there is no ``init``.
    finds_number : bool, default=False
        True if the method finds the number of features itself; its estimator does so if
        ``n_features_to_select`` is None.
    bounds : tuple of Bound
        Upper bounds of its parameters that depend on the data.
    scale_free : bool, default=False
        True if the result does not depend on the scale of each feature.
    sparse : bool or "large", default=False
        True if its strategies accept CSR blocks; else sparse data are made dense block by block.
        "large" accepts CSR blocks only for data of more than 2 GiB in dense form.
    neighbor_lists : bool, default=False
        True if it reads the lists of neighbors in addition to the affinity matrix. A finished
        graph has no such lists and cannot be used.
    keeps_sums : bool, default=False
        True if its result keeps sums over all rows, to which an update adds those of new rows.
    raw_counts : bool, default=False
        True if the method is made for raw counts: ``preprocess: auto`` leaves them unchanged.
    check : callable or None, default=None
        ``check(parameters)`` raises InputError for parameters that cannot be used here.
    labels : str, default="init"
        Name of the parameter that may name labels, one for each row.
    one_fit_up_to : callable
        ``one_fit_up_to(parameters)`` returns the number of features up to which a single fit
        ranks for all numbers; a larger number needs its own fit.
    explains : callable or None, default=None
        ``explains(details)`` returns the name of the parts of the data, such as "cluster", and
        the contribution of each feature to each part: an array of shape (n_features, n_parts) of
        numbers or bools. None uses the eigenvectors of the graph, if the method needs them.
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
        """Set the default title."""
        object.__setattr__(self, "title", self.title or self.estimator)

    @property
    def sections(self) -> Callable[[Any], tuple[str, ...]]:
        """Function that returns the names of the shared sections read with given parameters."""
        return self.reads or self.needs

    def choose(self, shape: Shape, selection: Selection) -> Strategy:
        """Return the strategy for data of the given shape.

        Raises
        ------
        MemoryLimitError
            If no strategy fits into ``memory_limit``.
        """
        choose: Callable[[Shape, Selection], Strategy]
        choose = getattr(self._part("strategies"), self.choose_by)
        return choose(shape, selection)

    def estimator_class(self) -> Any:
        """Import and return the estimator class."""
        return getattr(self._part("estimator"), self.estimator)

    def _part(self, name: str) -> Any:
        """Return a module of the method's package, or the method's module if it is one file."""
        module = importlib.import_module(self.module)
        is_package = hasattr(module, "__path__")
        return importlib.import_module(f"{self.module}.{name}") if is_package else module
