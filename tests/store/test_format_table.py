"""A format is one file and one line: Feather, from end to end, and how a format is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bigfs
from bigfs import MaxVariance
from bigfs.core.errors import InputError
from bigfs.pipeline.inspect import describe
from bigfs.plan.planning import plan_pipeline
from bigfs.selectors.registry import load_config
from bigfs.store.formats import FORMATS, format_named, format_of
from bigfs.store.labels import load_labels
from bigfs.store.source import open_matrix


def _frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(90, 4)), columns=list("abcd"))
    frame["kind"] = np.repeat(["x", "y", "z"], 30)
    frame["id"] = [f"r{i}" for i in range(90)]
    return frame


def test_a_format_is_said_in_one_line_and_one_file(tmp_path: Path) -> None:
    """Every other module learns of Feather from the table."""
    package = Path(bigfs.__file__).parent
    said = [p for p in package.rglob("*.py") if "feather" in p.read_text().lower()]
    names = sorted(str(path.relative_to(package)) for path in said)
    # The help of `run`, `export` and `open_matrix` names endings.
    helps = {"cli.py", "results/result.py", "results/export.py", "config/sections.py"}
    others = [name for name in names if name not in helps | {"store/source.py"}]
    assert others == ["store/formats/__init__.py", "store/formats/feather.py"]


def test_it_goes_through_fit_run_plan_labels_inspect_and_export(tmp_path: Path) -> None:
    path, frame = tmp_path / "X.feather", _frame()
    frame.to_feather(path)
    names = list("abcd")
    selector = MaxVariance(n_features_to_select=2).fit(open_matrix(path, columns=names))
    np.testing.assert_allclose(selector.scores_, frame[names].var(ddof=0), rtol=1e-12)
    given = {
        "input": {"uri": str(path), "index": "id", "labels": "kind"},
        "method": "max_variance",
        "n_features_to_select": 2,
        "run": str(tmp_path / "run"),
    }
    config = load_config(given, [])
    plan = plan_pipeline(config)
    assert plan.shape is not None and (plan.shape.n_samples, plan.shape.n_features) == (90, 4)
    result = bigfs.run(given)
    assert result.evaluation is not None  # against the labels of the file
    chosen = [names[j] for j in result.selected]
    written = pd.read_feather(result.export(tmp_path / "out.feather", ids=True))
    pd.testing.assert_frame_equal(written, frame[["id", *chosen]])
    np.testing.assert_array_equal(load_labels(f"{path}::kind"), np.repeat([0, 1, 2], 30))
    told = "\n".join(describe(path))
    assert "kind" in told and "input.index=id" in told and "input.labels=kind" in told


def test_it_goes_through_parts(tmp_path: Path) -> None:
    frame = _frame()
    for i, batch in enumerate(("b1", "b2")):
        (tmp_path / "X" / f"batch={batch}").mkdir(parents=True)
        part = frame[45 * i : 45 * (i + 1)].reset_index(drop=True)
        part.to_feather(tmp_path / "X" / f"batch={batch}" / "part.feather")
    uri = str(tmp_path / "X")
    source = open_matrix(uri, columns=list("abcd"), index="id")
    rows = np.concatenate(list(source.iter_blocks(20)))
    np.testing.assert_array_equal(rows, frame[list("abcd")])
    assert [text for piece in source.iter_index() for text in piece] == list(frame["id"])
    np.testing.assert_array_equal(load_labels(f"{uri}::batch"), np.repeat([0, 1], 45))
    np.testing.assert_array_equal(load_labels(f"{uri}::kind"), np.repeat([0, 1, 2], 30))


def test_the_first_bytes_tell_where_the_name_does_not(tmp_path: Path) -> None:
    _frame()[list("abcd")].to_feather(tmp_path / "table")
    np.save(tmp_path / "array.npy", np.ones((3, 2)))
    (tmp_path / "array.npy").rename(tmp_path / "array.bin")
    assert format_of(tmp_path / "table").module == "feather"
    assert open_matrix(tmp_path / "table").n_features == 4
    assert format_of(tmp_path / "array.bin").module == "npy"
    with pytest.raises(InputError, match=r"Known endings: \.npy, .*\.feather"):
        open_matrix(__file__)


def test_every_line_of_the_table_has_its_module() -> None:
    for entry in FORMATS:
        opener = "open_table" if entry.is_table else "open_file"
        assert callable(getattr(entry.reader, opener))
        assert not entry.writes or entry.module == "zarr_array" or callable(entry.reader.write)
        for ending in entry.endings:
            assert format_named(f"X{ending.upper()}") is entry
