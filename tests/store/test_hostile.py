"""Files and settings made to break a command: one line, an exit code of ours, bounded memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from bigfs.core.errors import ConfigError, InputError
from bigfs.core.units import parse_bytes
from bigfs.core.yamltext import read_yaml
from bigfs.store.source import open_matrix
from tests.store._folder import call

_DIGITS = "9" * 5000
_NESTED = "a0: &a0 [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    "change, said",
    [
        ("memory_limit=1e308 GiB", "below 8 EiB"),
        ("memory_limit=1e30", "below 8 EiB"),
        (f"random_state={_DIGITS}", "a number has 5,000 digits"),
        ("run=/", "the run directory /"),
    ],
)
def test_a_setting_that_cannot_be(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    change: str,
    said: str,
) -> None:
    for command in ("plan", "run"):
        if (command, change) == ("plan", "run=/"):
            continue
        code, shown = call(capsys, command, "base.yaml", "--set", change)
        assert code == 2 and said in shown and len(shown) < 400, shown


def test_a_run_in_a_folder_of_the_system(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, shown = call(
        capsys, "run", "base.yaml", "--set", "run=/", "--set", "input.uri=sklearn:iris"
    )
    assert code == 2 and "not a bigfs run" in shown


@pytest.mark.parametrize(
    "text, said",
    [
        (f"a: {_DIGITS}", "5,000 digits"),
        (_NESTED, "aliases"),
        ("a: &a [*a]", "recursive"),
        ("a: 1\n" * 200_000, "characters"),
        ("[" * 100_000, "nested too deeply"),
    ],
    ids=["digits", "aliases", "of itself", "long", "deep"],
)
def test_yaml_that_would_take_for_ever(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_yaml(text, "it")


def test_aliases_are_fine_where_they_save_words() -> None:
    assert read_yaml("a: &a [1, 2]\nb: *a\nc: {d: *a}", "it")["c"] == {"d": [1, 2]}


def test_a_pipeline_that_never_ends(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = call(capsys, "plan", "/dev/zero")
    assert code == 2 and "it is no file" in shown


@pytest.mark.parametrize("size", ["1e308 GiB", "9e99", 10**30, "0.1", -1, "1e-300 GiB"])
def test_a_size_that_cannot_be(size: Any) -> None:
    with pytest.raises(InputError):
        parse_bytes(size)


def _store(path: Path, change: Callable[[dict[str, Any]], Any], form: int = 3) -> Path:
    """Write a small array, with metadata that are changed afterwards."""
    codec: Any = zarr.codecs.GzipCodec()
    if form == 2:
        import numcodecs

        codec = numcodecs.GZip()
    array = zarr.create_array(
        path, shape=(10, 3), dtype="f8", chunks=(5, 3), compressors=codec, zarr_format=form
    )
    array[:] = np.arange(30.0).reshape(10, 3)
    file = path / ("zarr.json" if form == 3 else ".zarray")
    metadata = json.loads(file.read_text())
    change(metadata)
    file.write_text(json.dumps(metadata))
    return path


@pytest.mark.parametrize(
    "form, change, said",
    [
        (3, lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[0, 0]), "chunks"),
        (2, lambda m: m.update(chunks=[0, 3]), "chunks"),
        (3, lambda m: m["codecs"].append({"name": "nope", "configuration": {}}), "nope"),
        (2, lambda m: m.update(compressor={"id": "nope"}), "nope"),
        (3, lambda m: m.update(shape=[10**30, 3]), "fit no disk"),
        (3, lambda m: m.update(shape=[-5, 3]), "damaged"),
        (3, lambda m: m.update(data_type="complex128", fill_value=[0, 0]), "real numbers"),
        (3, lambda m: m.update(attributes={"feature_names": 5}), "feature_names"),
    ],
)
def test_zarr_metadata_that_cannot_be(
    tmp_path: Path, form: int, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        open_matrix(_store(tmp_path / "X.zarr", change, form))


@pytest.mark.parametrize("form", [2, 3])
def test_a_chunk_that_is_no_gzip_is_bad_input(tmp_path: Path, form: int) -> None:
    store = _store(tmp_path / "X.zarr", lambda m: None, form)
    (store / ("c/0/0" if form == 3 else "0.0")).write_bytes(b"garbage")
    with pytest.raises(InputError, match="rows 0 to 10 cannot be decoded"):
        open_matrix(store).read(0, 10)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["stages"].update(result=5),
        lambda m: m["stages"]["result"].pop("stored"),
        lambda m: m["stages"]["result"].update(stored=7),
        lambda m: m["stages"]["result"].update(seconds="x"),
        lambda m: m["stages"]["result"].update(settings=[1]),
        lambda m: m["stages"]["result"].update(measured_peak_bytes=10**400),
        lambda m: m["stages"]["result"].update(notes=5),
        lambda m: m.update(data=5),
        lambda m: m.update(versions=[]),
        lambda m: m.update(status=5),
        lambda m: m.update(error={}),
        lambda m: m.update(files={"a": 1}),
        lambda m: m.update(stages=[1]),
    ],
)
def test_a_damaged_manifest_is_named_and_fresh_starts_over(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Any], Any],
) -> None:
    assert call(capsys, "run", "base.yaml")[0] == 0
    place = folder / "runs" / "a" / "manifest.json"
    manifest = json.loads(place.read_text())
    change(manifest)
    place.write_text(json.dumps(manifest))
    for command in (["inspect", "runs/a"], ["report", "runs/a"], ["run", "base.yaml"]):
        code, shown = call(capsys, *command)
        assert code == 2 and "manifest.json is not a manifest" in shown, shown
    shutil.rmtree(folder / "runs" / "a" / "data.zarr")
    assert call(capsys, "run", "base.yaml", "--fresh")[0] == 0
