"""A method's section, the signature of its estimator and its docstring say the same."""

from __future__ import annotations

import inspect
import re
from typing import Any, Literal, get_args, get_origin

import pytest

from bigfs.config.sections import GraphConfig
from bigfs.selectors.configs import selection_model
from bigfs.selectors.method import Method
from bigfs.selectors.registry import METHODS

GRAPH = ("n_neighbors", "weight", "sigma", "metric")
SHARED = ("preprocess", "random_state", "memory_limit")
# Their decision values scale with the features. A pipeline names its preprocessing itself.
PREPROCESS = {"m3fs": "rescale", "maximum_margin_clustering": "rescale"}


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]


def _signature(method: Method) -> dict[str, inspect.Parameter]:
    parameters = dict(inspect.signature(method.estimator_class().__init__).parameters)
    del parameters["self"]
    return parameters


def _default(method: Method, name: str) -> Any:
    """Return the default of a section for a parameter of the estimator."""
    if name in method.parameters.model_fields:
        return method.parameters.model_fields[name].default
    if name == "preprocess" and method.name in PREPROCESS:
        return PREPROCESS[method.name]
    if name in GRAPH:
        return method.graph_defaults.get(name, GraphConfig.model_fields[name].default)
    return selection_model().model_fields[name].default


def _choices(method: Method, name: str) -> list[str]:
    """Return the texts that a parameter may be, if these are all."""
    for fields in (method.parameters.model_fields, GraphConfig.model_fields):
        if name in fields:
            break
    else:
        fields = selection_model().model_fields
    annotation = fields[name].annotation
    return list(get_args(annotation)) if get_origin(annotation) is Literal else []


def _documented(estimator: type) -> dict[str, str]:
    """Return the type of each parameter as the docstring has it, ``default=...`` included."""
    text = inspect.getdoc(estimator) or ""
    section = re.search(r"\nParameters\n-+\n(.*?)\n\n\w+\n-+\n", text, re.DOTALL)
    assert section is not None, estimator
    documented = {}
    for line in section[1].splitlines():
        if not line.startswith(" "):
            names, colon, kind = line.partition(" : ")
            assert colon, line
            documented.update(dict.fromkeys(names.split(", "), kind))
    return documented


def test_the_signature_has_the_fields_of_the_section(method: Method) -> None:
    names, own = set(_signature(method)), set(method.parameters.model_fields)
    assert own <= names
    assert names - own <= {"n_features_to_select", *GRAPH, *SHARED}
    assert {"n_features_to_select", "preprocess"} <= names


def test_the_defaults_are_those_of_the_section(method: Method) -> None:
    for name, parameter in _signature(method).items():
        if name == "n_features_to_select":
            assert parameter.default is None
        else:
            default = _default(method, name)
            assert parameter.default == default and type(parameter.default) is type(default), name


def test_the_docstring_has_the_parameters_in_the_order_of_the_signature(method: Method) -> None:
    assert list(_documented(method.estimator_class())) == list(_signature(method))


def test_the_docstring_has_the_defaults(method: Method) -> None:
    documented = _documented(method.estimator_class())
    for name, parameter in _signature(method).items():
        default = parameter.default
        shown = f'"{default}"' if isinstance(default, str) else str(default)
        found = re.search(r"default=(\S+|\".*\")$", documented[name])
        assert found is not None, f"{name} : {documented[name]}"
        same = found[1] == shown or (isinstance(default, float) and float(found[1]) == default)
        assert same, f"{name}: {found[1]} in the docstring, {shown} in the signature"


def test_the_docstring_has_exactly_the_choices(method: Method) -> None:
    documented = _documented(method.estimator_class())
    for name in _signature(method):
        if name == "n_features_to_select" or not _choices(method, name):
            continue
        listed = re.search(r"\{(.*)\}", documented[name])
        assert listed is not None, f"{name} : {documented[name]}"
        words = re.findall(r'"([^"]*)"', listed[1])
        assert sorted(words) == sorted(_choices(method, name)), name


def test_every_field_has_a_description(method: Method) -> None:
    for name, field in method.parameters.model_fields.items():
        assert field.description and field.description.endswith("."), name
    assert method.parameters.__doc__
