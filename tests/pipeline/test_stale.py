"""No setting leaves a stale result: each is changed alone in a finished run, which runs again."""

from __future__ import annotations

import hashlib
import json
import shutil
import typing
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from pydantic import BaseModel

from bigfs.pipeline.run import run
from bigfs.selectors.registry import METHODS, pipeline_model
from tests.store._formats import write_tenx

_ORDER = ["data", "components", "graph", "spectral", "result", "curves", "evaluation"]
# Where a run is, what it is called, what is made of its result, who works on it; and updates,
# whose keys contain those of the run that is updated (test_update.py).
_NO_RESULT = {"run", "date", "keep", "update", "output", "report", "cluster"}
# The first stage that a setting may change: by section, or by its name in that of a method.
_FIRST = {
    "input": "data", "blocks": "data", "spectral": "spectral", "evaluate": "evaluation",
    "preprocess": "components", "graph": "components",
    "memory_limit": "components", "random_state": "components", "method": "data",
    "curves": "curves",
}  # fmt: skip
_OF_A_METHOD = {"n_clusters": "spectral", "n_components": "spectral", "graph": "components"}
_X = {"uri": "X.npy"}
_TABLE = {"uri": "table.csv", "columns": ["!id"], "categories": "drop", "dates": "drop"}
_ROWS = {**_TABLE, "rows": {"column": "q", "keep": [0, 1]}}
_CUBE, _CELLS, _TENX = {"uri": "cube.npy"}, {"uri": "cells.h5ad"}, {"uri": "tenx.h5"}
# Other values that the schema does not tell, and the input that they need.
_OTHER: dict[str, Any] = {
    "input.uri": ("Z.npy", _X),
    "input.variable": ("Z", {"uri": "two.npz", "variable": "X"}),
    "input.layer": ("counts", _CELLS),
    "input.feature_types": (["Antibody Capture"], _TENX),
    "input.header": (True, _TABLE),
    "input.csv.delimiter": (",", {"uri": "plain.csv", "csv": {"comment": "#"}}),
    "input.csv.decimal": (",", {"uri": "X.tsv"}),
    "input.csv.comment": ("#", {"uri": "X.tsv"}),
    "input.csv.na_values": (["-9"], {"uri": "X.tsv", "missing": "mean"}),
    "input.csv.encoding": ("latin-1", {"uri": "X.tsv"}),
    "input.csv.skip_rows": (1, {"uri": "X.tsv", "header": False}),
    "input.columns": (["f*"], _TABLE),
    "input.features": (1, {**_CUBE, "features": 2}),
    "input.no_data": (7.0, {**_CUBE, "features": 2, "missing": "mean"}),
    "input.transpose": (True, _X),
    "input.rows.every": (2, _X),
    "input.rows.column": ("g", _ROWS),
    "input.rows.keep": ([1, 2], _ROWS),
    "input.rows.drop": ([1], {**_TABLE, "rows": {"column": "q", "at_least": 0}}),
    "input.rows.at_least": (1, {**_TABLE, "rows": {"column": "q", "at_most": 2}}),
    "input.rows.at_most": (1, {**_TABLE, "rows": {"column": "q", "at_least": 0}}),
    "input.booleans": ("drop", _TABLE),
    "input.dates": ("numbers", _TABLE),
    "input.categories": ("one_hot", _TABLE),
    "input.index": ("id", _TABLE),
    "input.labels": ("g", _TABLE),
    "preprocess": ("standardize", _X),
    "memory_limit": ("3 GiB", _X),
    "least_gap": (1.5, _X),
    "include": (["3"], _X),
    "blocks.rows": (16, _X),
    "stability.threshold": (0.9, _X),
    "graph.sigma": (2.0, _X),
    "graph.representation": ("pca:3", _X),
    "evaluate.labels": ("z.npy", _X),
    "method": ("laplacian_score", _X),
    "input.batch_key": ("batch", _CELLS),
    "highly_variable.batch_key": ("y.npy", _CELLS),
    "ndfs.init": ("z.npy", _X),
    "m3fs.init": ("z.npy", _X),
    "maximum_margin_clustering.init": ("z.npy", _X),
    "m3fs.sample_size": (24, _X),
    "maximum_margin_clustering.sample_size": (24, _X),
    "lfs.sample_size": (24, _X),
    "gfs_kmeans.sample_size": (24, _X),
    "lfs.init": ("z.npy", _X),
    "gfs_kmeans.init": ("z.npy", _X),
}
# Settings without which another one is refused.
_BESIDE: dict[str, Any] = {
    "graph.sigma": {"graph": {"weight": "heat"}},
    "mcfs.coef_scale": {"mcfs": {"n_clusters": 2, "regression": "lasso"}},
}


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a setting is, if it is one."""
    for kind in (annotation, *typing.get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _settings(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the paths of all settings that have a value."""
    for name, field in model.model_fields.items():
        section = _section(field.annotation)
        if section is not None:
            yield from _settings(section, f"{prefix}{name}.")
        elif (prefix + name).partition(".")[0] not in _NO_RESULT:
            yield f"{prefix}{name}"


SETTINGS = list(_settings(pipeline_model()))


@cache
def _schema() -> dict[str, Any]:
    return pipeline_model().model_json_schema()


def _node(path: str) -> dict[str, Any]:
    """Return what the schema says of a setting."""
    node: dict[str, Any] = _schema()
    for name in path.split("."):
        kinds = [node, *node.get("anyOf", ()), *node.get("allOf", ())]
        refs = [kind["$ref"] for kind in kinds if "$ref" in kind]
        node = _schema()["$defs"][refs[0].rpartition("/")[2]] if refs else node
        node = node["properties"][name]
    return node


def _other(node: dict[str, Any], before: Any) -> Any:
    """Return another value that the schema allows, None if it does not tell one."""
    choices = [c for c in node.get("enum", ()) if c not in (before, None)]
    if choices:
        return choices[0]
    kind = node.get("type")
    if kind == "boolean":
        return not before
    if kind == "integer":
        least, most = node.get("minimum", 0), node.get("maximum", np.inf)
        return max(least, 3) if before is None else before + (1 if before < most else -1)
    if kind == "number":
        return 0.5 if not before else before / 2
    others = (_other(option, before) for option in node.get("anyOf", ()))
    return next((value for value in others if value is not None), None)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the inputs that the settings need."""
    import anndata
    import h5py
    import pandas as pd
    import scipy.sparse

    folder = tmp_path_factory.mktemp("inputs")
    rng = np.random.default_rng(0)
    groups = np.arange(48) % 4
    X = np.round(np.repeat(3 * np.eye(4), 3, axis=1)[groups] + rng.normal(size=(48, 12)), 3)
    np.save(folder / "X.npy", X)
    np.save(folder / "Z.npy", X[::-1] ** 2)
    np.save(folder / "y.npy", groups)
    np.save(folder / "z.npy", groups // 2)
    np.savez(folder / "two.npz", X=X, Z=X[:, ::-1])
    np.save(folder / "cube.npy", rng.integers(0, 9, size=(8, 6, 12)).astype(float))
    frame = pd.DataFrame(X, columns=[f"f{j}" for j in range(12)])
    frame.to_csv(folder / "plain.csv", index=False)
    frame.mul(1000).astype(int).to_csv(folder / "X.tsv", sep="\t", index=False, header=False)
    frame["id"] = [f"row {i}" for i in range(48)]
    frame["when"] = [f"2020-01-{1 + i % 28:02d}" for i in range(48)]
    frame["flag"], frame["city"] = groups > 1, np.array(["Ulm", "Bern"])[groups % 2]
    frame["q"], frame["g"] = np.arange(48) % 3, groups
    frame.to_csv(folder / "table.csv", index=False)
    counts = rng.poisson(3, size=(48, 12)).astype(np.float32)
    obs = pd.DataFrame({"batch": np.where(groups > 1, "a", "b")}, [str(i) for i in range(48)])
    # A trend through fewer genes exists by rounding on some processors only.
    genes = rng.poisson(rng.uniform(1, 6, size=40), size=(48, 40)).astype(np.float32)
    cells = anndata.AnnData(genes * 2, obs=obs, layers={"counts": genes})
    cells.write_h5ad(folder / "cells.h5ad")
    names = [f"g{j}" for j in range(12)]
    place = write_tenx(folder / "tenx.h5", scipy.sparse.csr_matrix(counts), names, names)
    with h5py.File(place, "r+") as file:
        kinds = ["Gene Expression"] * 6 + ["Antibody Capture"] * 6
        file["matrix/features/feature_type"] = np.array(kinds, dtype="S")
    return folder


def _stages(place: Path) -> dict[str, Any]:
    stages: dict[str, Any] = json.loads((place / "manifest.json").read_text())["stages"]
    return stages


def _bits(place: Path) -> dict[str, bytes]:
    """Return all arrays of a run, and its table."""
    contents = {"features.csv": (place / "features.csv").read_bytes()}
    for stage in _stages(place).values():
        for metadata in (place / stage["folder"]).rglob("zarr.json"):
            if json.loads(metadata.read_text())["node_type"] == "array":
                array: Any = zarr.open_array(metadata.parent, mode="r")
                key = metadata.parent.relative_to(place).as_posix()
                contents[key] = np.asarray(array[...]).tobytes()
    return contents


def _base(path: str) -> tuple[str, dict[str, Any]]:
    """Return method and settings of the run in which a setting is changed."""
    section, _, name = path.partition(".")
    if section in ("stability", "quick"):
        return "max_variance", {"stability": {"n_pairs": 2}}
    if path in ("method", "input.batch_key"):
        return ("max_variance" if path == "method" else "highly_variable"), {}
    if section in METHODS:
        has_clusters = "n_clusters" in _schema()["$defs"][_of(section)]["properties"]
        own = {section: {"n_clusters": 2}} if has_clusters else {section: {}}
        return section, own | _BESIDE.get(path, {})
    return "mcfs", {"mcfs": {"n_clusters": 2}} | _BESIDE.get(path, {})


def _of(section: str) -> str:
    options = _schema()["properties"][section]["anyOf"]
    return next(o["$ref"] for o in options if "$ref" in o).rpartition("/")[2]


@cache
def _finished(config: str, folder: Path) -> Path:
    """Return a finished run, which the settings that are changed in it share."""
    place = folder / f"run-{hashlib.sha256(config.encode()).hexdigest()[:16]}"
    run({**json.loads(config), "run": str(place)})
    return place


def _check(inputs: Path, folder: Path, path: str) -> None:
    """Change a setting alone; compare with a fresh run, bit for bit, and see what was redone."""
    section, _, name = path.partition(".")
    method, settings = _base(path)
    value, source = _OTHER.get(path, (None, _CELLS if method == "highly_variable" else _X))
    labels = {"labels": str(inputs / "y.npy"), "n_repetitions": 1, "n_init": 1}
    config = {
        "input": source, "method": method, "n_features_to_select": 3, "report": None,
        "evaluate": labels, **settings,
    }  # fmt: skip
    if "rows" in source or section == "input" or section in METHODS:
        del config["evaluate"]  # labels are those of all rows; shared settings show the rest
    config = json.loads(json.dumps(config))
    config["input"]["uri"] = str(inputs / source["uri"])
    changed = json.loads(json.dumps(config))
    holder = changed
    *above, last = path.split(".")
    for key in above:
        holder = holder.setdefault(key, {})
    if value is None:
        value = _other(_node(path), holder.get(last, _node(path).get("default")))
    assert value is not None, f"{path}: name another value in _OTHER"
    exists = isinstance(value, str) and (inputs / value).exists()
    holder[last] = str(inputs / value) if exists else value
    again, fresh = folder / "again", folder / "fresh"
    shutil.copytree(_finished(json.dumps(config), inputs.parent), again)
    before = _stages(again)
    run({**changed, "run": str(again)}, fresh=path in ("method", "input.uri"))
    run({**changed, "run": str(fresh)})
    bits, expected = _bits(again), _bits(fresh)
    differ = [key for key in bits.keys() | expected.keys() if bits.get(key) != expected.get(key)]
    assert not differ, (path, differ)
    after = _stages(again)
    redone = {n for n in after if n in before and after[n]["attempt"] != before[n]["attempt"]}
    first = _FIRST.get(section, "stability" if section == "stability" else "result")
    if section in METHODS:
        first = _OF_A_METHOD.get(name, "result")
    allowed = {"stability"} | set(_ORDER[_ORDER.index(first) :] if first in _ORDER else ())
    assert redone <= allowed, (path, redone)
    shutil.rmtree(again)
    shutil.rmtree(fresh)


_FIRST_TIER = ["graph.n_neighbors", "mcfs.fit_intercept", "input.transpose"]


@pytest.mark.parametrize("path", _FIRST_TIER)
def test_a_changed_setting_gives_what_a_fresh_run_gives(
    inputs: Path, tmp_path: Path, path: str
) -> None:
    _check(inputs, tmp_path, path)


def _in_turn() -> Iterator[Any]:
    """Yield the settings; of those of a method, which all go the same way, one is not slow."""
    of_methods: Counter[str] = Counter()
    for path in SETTINGS:
        section = path.partition(".")[0]
        of_methods[section] += section in METHODS
        if path not in _FIRST_TIER:
            marks = (pytest.mark.slow,) if of_methods[section] > 1 else ()
            yield pytest.param(path, marks=marks)


@pytest.mark.full
@pytest.mark.parametrize("path", list(_in_turn()))
def test_every_setting_changed_alone_gives_what_a_fresh_run_gives(
    inputs: Path, tmp_path: Path, path: str
) -> None:
    _check(inputs, tmp_path, path)
