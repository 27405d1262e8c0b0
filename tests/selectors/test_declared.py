"""A method is declared once: signature, docstring and configuration say the same of it."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from pydantic.fields import FieldInfo

import bigfs
from bigfs.config.sections import GraphConfig, MissingConfig
from bigfs.config.selection import Preprocess
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT
from bigfs.selectors.docstrings import completed
from bigfs.selectors.method import Method
from bigfs.selectors.registry import METHODS

# Fields of the section graph that estimators take: those that their method's result depends on.
GRAPH = {"n_neighbors", "weight", "sigma", "metric", "representation"}
# Only the neighbors count for UDFS; the weights of M3FS are heat.
FEWER = {"udfs": {"n_neighbors", "metric", "representation"}, "m3fs": {"n_neighbors", "sigma"}}
# For what a scale common to all features changes the meaning of C.
RESCALED = ("m3fs", "maximum_margin_clustering")
# Passes for variances draw nothing, and need a tile.
WITHOUT_SEED_AND_LIMIT = ("max_variance", "highly_variable")

_ENTRY = re.compile(r"^(\w+(?:, \w+)*) : (.+)$")


@dataclass(frozen=True)
class Documented:
    """Description of a parameter in the docstring."""

    kind: str
    default: Any

    @property
    def choices(self) -> set[str] | None:
        """The values in braces, if there are any."""
        braces = re.search(r"\{(.*)\}", self.kind)
        return None if braces is None else set(ast.literal_eval(f"[{braces[1]}]"))


def documented(estimator: type) -> dict[str, Documented]:
    """Return the parameters of a numpydoc docstring, in order."""
    text = inspect.getdoc(estimator) or ""
    _, _, rest = text.partition("Parameters\n----------\n")
    section = re.split(r"\n\n\w+\n-+\n", rest)[0]
    found = {}
    for line in section.splitlines():
        entry = _ENTRY.match(line)
        if entry is None:
            continue
        kind, comma, default = entry[2].rpartition(", default=")
        assert comma, f"{line}: no default"
        for name in entry[1].split(", "):
            found[name] = Documented(kind, ast.literal_eval(default))
    return found


def signature(method: Method) -> dict[str, Any]:
    """Return the names and the defaults of an estimator's ``__init__``, in order."""
    parameters = list(inspect.signature(method.estimator_class().__init__).parameters.values())
    assert parameters[0].name == "self"
    return {parameter.name: parameter.default for parameter in parameters[1:]}


def graph_fields(method: Method) -> set[str]:
    """Return the fields of the section graph that the estimator takes."""
    takes_graph = "graph" in method.sections(method.parameters())
    return FEWER.get(method.name, GRAPH) if takes_graph else set()


def fields(method: Method) -> dict[str, FieldInfo]:
    """Return the fields that are settings of the method or of its graph."""
    graph = {name: GraphConfig.model_fields[name] for name in graph_fields(method)}
    return {**graph, **method.parameters.model_fields}


def choices(name: str, field: FieldInfo | None) -> set[str] | None:
    """Return the texts that a field takes, None if it is no choice."""
    shared = {"preprocess": Preprocess, "missing": MissingConfig.model_fields["missing"].annotation}
    kind = shared.get(name, field and field.annotation)
    # Estimators search for neighbors; a pipeline may also name a graph with weights of its own.
    return set(get_args(kind)) - {"stored"} if get_origin(kind) is Literal else None


@pytest.fixture(params=list(METHODS))
def method(request: pytest.FixtureRequest) -> Method:
    """Each registered method in turn."""
    return METHODS[request.param]


def test_the_signature_has_the_fields_with_their_defaults(method: Method) -> None:
    own, found = method.parameters(), signature(method)
    graph = GraphConfig(**method.graph_defaults)
    expected = {name: getattr(graph, name) for name in graph_fields(method)}
    expected |= {name: getattr(own, name) for name in method.parameters.model_fields}
    expected |= {"n_features_to_select": None, "missing": "error", "redundancy": None, "verbose": 1}
    expected["preprocess"] = "rescale" if method.name in RESCALED else "auto"
    if method.name not in WITHOUT_SEED_AND_LIMIT:
        expected |= {"random_state": 0, "memory_limit": DEFAULT_MEMORY_LIMIT}
    assert found == expected
    assert next(iter(found)) == "n_features_to_select"


def test_defaults_are_of_the_types_they_have_in_the_section(method: Method) -> None:
    """A default 1 for 1.0 is equal, and reads as another type."""
    found, own = signature(method), method.parameters()
    for name in method.parameters.model_fields:
        assert type(found[name]) is type(getattr(own, name)), name


def test_the_docstring_has_the_parameters_of_the_signature_in_order(method: Method) -> None:
    found = documented(method.estimator_class())
    expected = signature(method)
    assert list(found) == list(expected)
    for name, default in expected.items():
        said = found[name].default
        assert said == default and type(said) is type(default), name


def test_the_docstring_lists_exactly_the_choices_of_the_model(method: Method) -> None:
    found, known = documented(method.estimator_class()), fields(method)
    for name, entry in found.items():
        if name in method.parameters.model_fields and name == "init":
            named = set(re.findall(r'"([^"]+)"', entry.kind))
            assert named == set(method.starts)
        else:
            assert entry.choices == choices(name, known.get(name)), name


def test_what_a_selector_does_not_describe_is_described_as_in_its_base() -> None:
    class Estimator:
        """Summary.

        Parameters
        ----------
        seed : int, default=1
            Its own.

            More of it.
        alpha, beta : float, default=4.0
            Two.

        Attributes
        ----------
        gone_ : int
        scores_ : int
            Its own.
        kept_ : int

        Notes
        -----
        Last.
        """

        def __init__(self, limit=1, *, alpha=4.0, beta=4.0, unknown=1, seed=1):
            twice = 2 * limit  # noqa: F841

    class Undescribed:
        """Summary."""

        def __init__(self, limit):
            pass

    parameters = "Parameters\n----------\nseed : a\n    Of all.\nlimit : b\n    Most."
    attributes = "Attributes\n----------\nscores_ : a\nrow_mask_ : b\n    Rows.\nranking_ : c"
    common = f"Base.\n\n{parameters}\n\n{attributes}\n"
    assert completed(Estimator, [common]).splitlines() == [
        "Summary.", "", "Parameters", "----------", "limit : b", "    Most.",
        "alpha, beta : float, default=4.0", "    Two.", "seed : int, default=1", "    Its own.", "",
        "    More of it.", "", "Attributes", "----------", "gone_ : int", "scores_ : int",
        "    Its own.", "row_mask_ : b", "    Rows.", "ranking_ : c", "kept_ : int", "", "Notes",
        "-----", "Last.",
    ]  # fmt: skip
    limit = "Parameters\n----------\nlimit : b\n    Most."
    assert completed(Undescribed, [common]) == f"Summary.\n\n{limit}\n\n{attributes}"


@pytest.mark.full
@pytest.mark.parametrize("name", [*(m.estimator for m in METHODS.values()), "StabilitySelection"])
def test_the_examples_of_docstrings_are_right(name: str) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(bigfs, name), name)
    assert re.search(f"from bigfs import .*{name}", example.docstring)
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))


def test_every_field_of_the_section_is_described(method: Method) -> None:
    for name, field in method.parameters.model_fields.items():
        assert field.description and field.description.endswith("."), name
    assert method.parameters.__doc__


def test_the_parser_of_docstrings_sees_what_is_there() -> None:
    class Estimator:
        """Summary.

        Parameters
        ----------
        kind : {"a", "b"}, \
default="a"
            One of: a, b.
        alpha, beta : float, default=4.0
            Two.

        Attributes
        ----------
        gone_ : int, default=1
        """

    found = documented(Estimator)
    assert list(found) == ["kind", "alpha", "beta"]
    assert found["kind"].choices == {"a", "b"} and found["kind"].default == "a"
    assert found["beta"] == Documented("float", 4.0)
    assert found["beta"].choices is None
    assert np.isclose(found["alpha"].default, 4)


def compared_texts(source: str) -> set[str]:
    """Return the texts that code branches on: compared, matched, or keys of a dictionary."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            places = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            places = [node.value]
        elif isinstance(node, ast.Dict):
            places = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Subscript):
            places = [node.slice]
        else:
            continue
        inside = [part for place in places for part in (place, *getattr(place, "elts", ()))]
        found |= {part.value for part in inside if isinstance(part, ast.Constant)}
    return found


def test_no_code_branches_on_the_name_of_a_method() -> None:
    names = {*METHODS, *(method.estimator for method in METHODS.values())}
    package = Path(bigfs.__file__).parent
    for path in package.rglob("*.py"):
        assert not compared_texts(path.read_text()) & names, path


@pytest.mark.parametrize(
    "code",
    [
        "if method == 'mcfs': pass",
        "if method in ('ndfs', 'mcfs'): pass",
        "match method:\n    case 'mcfs': pass",
        "costs = {'mcfs': 1}[method]",
        "METHODS['mcfs']",
    ],
)
def test_a_branch_on_the_name_of_a_method_is_caught(code: str) -> None:
    assert "mcfs" in compared_texts(code)
