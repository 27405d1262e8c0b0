"""The schema: defaults, overrides, and refusals that say what to write instead."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from bigfs.config import Config, dump_yaml
from bigfs.config.messages import paths
from bigfs.config.sections import GraphConfig
from bigfs.core.errors import ConfigError
from bigfs.core.yamltext import read_yaml
from bigfs.selectors.registry import (
    METHODS,
    json_schema,
    load_comparison,
    load_config,
    make_config,
    pipeline_model,
)

PIPELINES = sorted((Path(__file__).parents[2] / "pipelines").glob("*.yaml"))
BASE = "run: r\ninput: {uri: 'sklearn:digits'}\nn_features_to_select: 20\n"


@pytest.fixture
def load(tmp_path):
    def load_text(text: str, *overrides: str) -> Config:
        path = tmp_path / "p.yaml"
        path.write_text(text)
        return load_config(path, overrides)

    return load_text


@pytest.fixture
def refusal(load):
    def message(text: str, *overrides: str) -> str:
        with pytest.raises(ConfigError) as caught:
            load(text, *overrides)
        return str(caught.value).rpartition("p.yaml")[2].lstrip(": ,")

    return message


def test_defaults_are_those_of_the_methods_page(load):
    config = load(BASE)
    assert (config.method, config.preprocess, config.random_state) == ("mcfs", "auto", 0)
    assert config.graph.model_dump() == {
        "n_neighbors": 5,
        "metric": "euclidean",
        "weight": "binary",
        "sigma": None,
        "algorithm": "auto",
        "representation": "auto",
        "eps": None,
        "recall_target": None,
        "if_missed": "error",
    }
    assert config.mcfs.n_clusters == 8
    assert config.mcfs.fit_intercept
    assert config.memory_limit == 4 * 1024**3
    assert config.evaluate is None
    assert config.cluster is None


def test_override_sets_nested_values_and_makes_sections(load):
    config = load(
        BASE, "graph.n_neighbors=10", "evaluate.labels=y.npz::y", "random_state=3", "input.uri=a=b"
    )
    assert config.graph.n_neighbors == 10
    assert config.evaluate.labels == "y.npz::y"
    assert config.random_state == 3
    assert config.input.uri == "a=b"


def test_override_null_removes_a_section(load):
    text = BASE + "mcfs: {n_clusters: 3}\n"
    config = load(text, "method=laplacian_score", "mcfs=null")
    assert config.mcfs is None
    assert config.spectral is None
    assert config.graph.n_neighbors == 5


@pytest.mark.parametrize("text", ["1e-6", "1.0e-6", "0.000001"])
def test_numbers_are_read_as_people_write_them(load, text):
    assert load(BASE + f"spectral: {{tol: {text}}}\n").spectral.tol == 1e-6


def test_words_that_older_yaml_takes_for_booleans_are_texts(load):
    assert load(BASE, "input.variable=no").input.variable == "no"


@pytest.mark.parametrize(
    ("size", "n_bytes", "dumped"),
    [
        ("4 GiB", 4 * 1024**3, "4 GiB"),
        ("1.5GiB", 1536 * 1024**2, "1.5 GiB"),
        ("3000000001", 3000000001, 3000000001),
    ],
)
def test_memory_limit_is_bytes_and_dumps_without_loss(load, size, n_bytes, dumped):
    config = load(BASE, f"memory_limit={size}")
    assert config.memory_limit == n_bytes
    assert config.model_dump(mode="json")["memory_limit"] == dumped


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "graph: {n_neighbours: 5}",
            "unknown key 'n_neighbours' in 'graph'; did you mean 'n_neighbors'? "
            "Known: n_neighbors, metric, weight, sigma, algorithm, representation, eps, "
            "recall_target, if_missed.",
        ),
        ("n_neighbors: 5", "unknown key 'n_neighbors' at the top level; it belongs in 'graph'."),
        ("mcfs: {zzz: 1}", "unknown key 'zzz' in 'mcfs'. Known: n_clusters,"),
        ("graph: 5", "graph must be a section with keys. Got 5."),
        ("graph: {n_neighbors: true}", "graph.n_neighbors must be a whole number. Got true."),
        ("graph: {n_neighbors: yes}", "graph.n_neighbors must be a whole number. Got 'yes'."),
        ("graph: {n_neighbors: 2.5}", "graph.n_neighbors must be a whole number. Got 2.5."),
        ("graph: {n_neighbors: 0}", "graph.n_neighbors must be a number of at least 1. Got 0."),
        (
            "graph: {metric: euclid}",
            "graph.metric must be one of euclidean, cosine, correlation. Got 'euclid'; "
            "did you mean 'euclidean'?",
        ),
        ("mcfs: {fit_intercept: 1}", "mcfs.fit_intercept must be true or false. Got 1."),
        ("graph: {eps: 99}", "graph.eps must be a number of at most 10. Got 99."),
        ("spectral: {tol: 0}", "spectral.tol must be a number above 0. Got 0."),
        ("graph: {sigma: 2.0}", "graph: sigma is the width of the heat kernel"),
        ("memory_limit: lots", "memory_limit: a size must look like '4 GiB'"),
        ("memory_limit: true", "memory_limit: a size must be a number"),
        ("cluster: {kind: remote}", "cluster: kind 'remote' needs an address"),
        ("cluster: {address: a:1}", "cluster: kind 'local' would ignore the address"),
        (
            "cluster: {kind: remote, address: scheduler.json, n_workers: 2}",
            "cluster: kind 'remote' uses the workers of the running cluster",
        ),
        ("cluster: {queue: long}", "cluster: kind 'local' would ignore 'queue'; remove them."),
        ("cluster: {kind: slurm}", "cluster: kind 'slurm' needs the network interface"),
        ("cluster: {kind: slurm, walltime: soon}", "cluster.walltime must have the form [days-]h"),
        (
            "method: max_variance\ngraph: {}\nmcfs: {}",
            "method 'max_variance' does not use 'mcfs', 'graph'; remove what it would ignore "
            "(--set mcfs=null --set graph=null)",
        ),
        ("method: lasso", "method must be one of mcfs, ndfs, m3fs, laplacian_score, max_variance"),
    ],
)
def test_refusal_names_key_value_and_remedy(refusal, lines, message):
    assert refusal(BASE + lines).startswith(message)


def test_missing_keys_are_named_with_what_they_mean(refusal):
    message = refusal("run: r\ninput: {}\n")
    assert message.startswith("2 problems:\n  missing key 'uri' in 'input'. The matrix: a .npy")
    assert "  missing key 'n_features_to_select' at the top level. Number of features" in message


def test_every_problem_has_its_line(refusal):
    lines = refusal(BASE + "mcfs: {n_clusters: 0}\nrandom_state: -1\nfoo: 1\n").splitlines()
    assert lines[0] == "3 problems:"
    assert [line.split(" must")[0].strip() for line in lines[1:3]] == [
        "random_state",
        "mcfs.n_clusters",
    ]
    assert lines[3].startswith("  unknown key 'foo'")


def test_a_section_goes_on_from_another_one():
    text = "input: &here {uri: a.npy, index: b}\nreport: {<<: *here, index: c}\n"
    assert read_yaml(text, "")["report"] == {"uri": "a.npy", "index": "c"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# nothing yet\n", "is empty"),
        ("- 1\n- 2\n", "must hold 'key: value' lines at its top level. Got [1, 2]."),
        ("run: a\nrun: b\n", "line 2, column 1: the key 'run' appears twice."),
        ("graph:\n  k: 1\n  k: 2\n", "line 3, column 3: the key 'k' appears twice."),
        ("graph:\n\tk: 1\n", "line 2, column 1: a tab; YAML is indented with spaces."),
        ("graph: [1\nrun: 2\n", "line 2, column 4: expected ',' or ']', but got ':'."),
        ("? [1, 2]\n: 3\n", "line 1, column 3: a key must be a plain name."),
        ("run: !!python/object:os.system 1\n", "line 1, column 6: could not determine"),
        ("run: *a\n", "line 1, column 6: found undefined alias 'a'. Write names that begin"),
        (
            "columns: [!id]\n",
            "line 2, column 1: expected ',' or ']', but got '<stream end>'. Write",
        ),
        ("run: [a\n# *.csv", "line 2, column 8: expected ',' or ']', but got"),
    ],
)
def test_text_that_is_no_pipeline_is_refused_with_its_place(refusal, text, message):
    assert refusal(text).strip().startswith(message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("graph.n_neighbors", "--set takes KEY=VALUE with dots between sections"),
        ("=3", "--set takes KEY=VALUE"),
        ("graph..k=3", "--set takes KEY=VALUE"),
        ("run.x=1", "--set run.x=1: 'run' is 'r', not a section with keys."),
        ("graph=[1", "--set graph=[1, line 1, column 3"),
    ],
)
def test_override_that_cannot_be_read(load, override, message):
    with pytest.raises(ConfigError) as caught:
        load(BASE, override)
    assert str(caught.value).startswith(message)


def test_a_key_of_a_section_that_is_auto_may_be_set(load):
    dated = BASE.replace("run: r", "run: r-{date}")
    config = load(f"{dated}update: auto\n", "update.most_in_a_row=1")
    assert config.update.most_in_a_row == 1 and config.update.most_new == 0.1
    many = BASE.replace("select: 20", "select: auto")
    assert load(many, "n_features_to_select.at_most=9").n_features_to_select.at_most == 9


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="There is no pipeline file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="Cannot read"):
        load_config(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="Cannot read"):
        load_config(tmp_path / "binary.yaml")


def test_numbers_of_numpy_and_paths_are_those_of_yaml(tmp_path):
    given = {"run": tmp_path / "r", "input": {"uri": Path("x.npy")}, "n_features_to_select": 3}
    plain = {"run": str(tmp_path / "r"), "input": {"uri": "x.npy"}, "n_features_to_select": 3}
    assert load_config({**given, "n_features_to_select": np.int64(3)}) == load_config(plain)


def test_config_is_frozen():
    config = make_config(run="r", input={"uri": "x.npy"}, n_features_to_select=3)
    with pytest.raises(ValidationError, match="frozen"):
        config.method = "max_variance"


def test_local_cluster_resolves_its_nulls(load):
    cluster = load(BASE, "cluster.kind=local").cluster
    assert (cluster.n_workers, cluster.threads_per_worker) == (2, 1)


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.name)
def test_every_shipped_pipeline_follows_the_schema(path):
    config = load_config(path)
    named = f"runs/{config.input.uri.removeprefix('sklearn:')}-{config.method}"
    assert config.run.replace(f"-{config.date}", "") in (f"runs/{path.stem}", named)


def _settings(model: type[BaseModel], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    return list(paths(model, above))


def test_every_section_but_the_input_may_be_null():
    needed = {"run": "r", "input": {"uri": "x.npy"}, "n_features_to_select": 3}
    for load, what in ((load_config, {"method": "mcfs"}), (load_comparison, {"methods": ["mcfs"]})):
        default = load(needed | what)
        names = {path[0] for path in _settings(type(default)) if len(path) > 1}
        assert {"evaluate", "blocks", "stability", "graph"} <= names
        for name in names - {"input", "methods"}:
            # null switches the report off, which is on by default.
            expected = None if name == "report" else getattr(default, name)
            assert getattr(load(needed | what | {name: None}), name) == expected, name


def test_the_template_names_every_setting_under_its_section():
    path = next(path for path in PIPELINES if path.name == "mcfs.yaml")
    # Sections that are off by default are there as comments: switch them on.
    text = re.sub(r"^#(  |    )(?=\w+:)", r"\1", path.read_text(), flags=re.MULTILINE)
    text = text.replace("rows: null                  # rows", "rows: # rows")
    text = text.replace("csv: null", "csv:")
    for section in ("evaluate", "cluster", "stability", "update"):
        text = text.replace(f"{section}: null", f"{section}:")
    written = yaml.safe_load(text)
    for setting in _settings(pipeline_model()):
        if setting[0] in METHODS and setting[0] != "mcfs":
            continue  # of another method, which has a template of its own
        section = written
        for key in setting:
            assert key in section, f"pipelines/mcfs.yaml does not name {'.'.join(setting)}"
            section = section[key]
    uncommented = re.findall(r"^ *\w+: +[^#\n]+$", text, flags=re.MULTILINE)
    assert uncommented == [], "settings without a comment"


def test_the_template_of_ndfs_names_its_settings_and_holds_the_defaults():
    path = next(path for path in PIPELINES if path.name == "ndfs.yaml")
    written = yaml.safe_load(path.read_text())
    assert set(written["ndfs"]) == set(METHODS["ndfs"].parameters.model_fields)
    config = load_config(path)
    assert config.ndfs == METHODS["ndfs"].parameters(n_clusters=10)
    assert config.graph == GraphConfig(weight="heat")


def test_the_template_of_m3fs_names_its_settings_and_holds_the_defaults():
    path = next(path for path in PIPELINES if path.name == "m3fs.yaml")
    written = yaml.safe_load(path.read_text())
    assert set(written["m3fs"]) == set(METHODS["m3fs"].parameters.model_fields)
    config = load_config(path)
    assert config.m3fs == METHODS["m3fs"].parameters(n_clusters=10)
    assert config.graph == GraphConfig(weight="heat")


def test_the_template_of_lfs_names_its_settings_and_holds_the_defaults():
    path = next(path for path in PIPELINES if path.name == "lfs.yaml")
    written = yaml.safe_load(path.read_text())
    assert set(written["lfs"]) == set(METHODS["lfs"].parameters.model_fields)
    assert load_config(path).lfs == METHODS["lfs"].parameters(n_clusters=3)


@pytest.mark.parametrize("setting", ["init: kmeans", "init: y.npy", "sample_size: 100"])
def test_m3fs_has_a_stage_of_eigenvectors_where_it_uses_them(load, setting):
    assert load(BASE + "method: m3fs").spectral is not None
    assert load(BASE + f"method: m3fs\nm3fs: {{{setting}}}").spectral is None


def test_ndfs_weighs_edges_by_the_heat_kernel_unless_told_otherwise(load):
    base = BASE + "method: ndfs\n"
    assert load(base).graph.weight == "heat"
    assert load(base + "graph: {n_neighbors: 7}").graph.weight == "heat"
    assert load(base + "graph: {weight: binary}").graph.weight == "binary"
    assert load(BASE).graph.weight == "binary"


def test_ndfs_that_starts_from_labels_has_no_eigenvectors(load, refusal):
    lines = BASE + "method: ndfs\nndfs: {init: y.npy}\n"
    assert load(lines).spectral is None
    assert "does not use 'spectral'" in refusal(lines + "spectral: {tol: 1.0e-8}")


def test_the_template_holds_the_defaults():
    path = next(path for path in PIPELINES if path.name == "mcfs.yaml")
    template = load_config(path)
    plain = make_config(
        run="runs/digits-mcfs",
        input={"uri": "sklearn:digits"},
        n_features_to_select=20,
        mcfs={"n_clusters": 10},
    )
    assert template == plain


def test_schema_is_json_and_describes_every_setting():
    schema = json.loads(json.dumps(json_schema()))
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["additionalProperties"] is False
    assert schema["properties"]["memory_limit"]["default"] == "4 GiB"
    sections = [schema, *schema["$defs"].values()]
    for section in sections:
        for name, described in section["properties"].items():
            assert described.get("description"), f"{section['title']}.{name} has no description"


_names = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Z"]), min_size=1)


@pytest.mark.full
@given(
    run=_names | st.sampled_from(["no", "1e-6", "null", "~", "0o7", "1_000", "2026-01-01", "on"]),
    variable=st.none() | _names,
    memory_limit=st.integers(1, 2**45),
    tol=st.floats(1e-300, 0.5),
    method=st.sampled_from(["mcfs", "laplacian_score", "spec", "q_alpha", "udfs", "fsgmm"]),
    cluster=st.none() | st.just({"kind": "local"}),
)
def test_dumped_configuration_loads_to_the_same(
    tmp_path_factory, run, variable, memory_limit, tol, method, cluster
):
    config = make_config(
        run=run,
        input={"uri": "x.npy", "variable": variable},
        n_features_to_select=3,
        memory_limit=memory_limit,
        method=method,
        spectral={"tol": tol} if method == "mcfs" else None,
        cluster=cluster,
    )
    path = tmp_path_factory.getbasetemp() / "dumped.yaml"
    path.write_text(dump_yaml(config), encoding="utf-8")
    assert load_config(path) == config


@pytest.mark.parametrize(
    ("setting", "bound"),
    [
        ("udfs={gamma: 1.0e+300}", "udfs.gamma must be a number of at most 1e+100"),
        ("lfs={tol: 1.0e+300}", "lfs.tol must be a number of at most 1e+100"),
        ("blocks={rows: 1000000000000}", "blocks.rows must be a number of at most 1e+09"),
    ],
)
def test_numbers_that_would_overflow_are_refused(setting: str, bound: str) -> None:
    method = setting.partition("=")[0] if "blocks" not in setting else "m3fs"
    config = {"method": method, "input": {"uri": "sklearn:digits"}, "run": "run"}
    with pytest.raises(ConfigError, match=re.escape(bound)):
        load_config({**config, "n_features_to_select": 3}, [setting])
