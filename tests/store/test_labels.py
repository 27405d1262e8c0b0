"""Labels from every place, numbered in sorted order."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from bigfs.core.errors import InputError
from bigfs.store.formats.sklearn_sets import _SETS, load_classes_of, load_set, open_set
from bigfs.store.labels import load_labels

TEXT = ["cat", "NA", "dog", "cat"]
EXPECTED = [1, 0, 2, 1]
NUMBERS = np.array([20, 3, 100, 20])
AS_NUMBERS = [1, 0, 2, 1]


def _zarr(path: Path, values: Any) -> Path:
    zarr.create_array(store=str(path), data=np.asarray(values))
    return path


def test_numbers_and_texts_from_npy(tmp_path: Path) -> None:
    for name, values in (("n", NUMBERS), ("t", np.array(TEXT)), ("c", NUMBERS[:, None])):
        np.save(tmp_path / f"{name}.npy", values)
        labels = load_labels(str(tmp_path / f"{name}.npy"), 4)
        assert labels.dtype == np.int64
        assert labels.tolist() == EXPECTED


@pytest.mark.parametrize("values", [[True, False], [1.5, -1.0], [2, 1], ["b", "a"], [b"b", b"a"]])
def test_classes_are_numbered_in_sorted_order(tmp_path: Path, values: list[Any]) -> None:
    np.save(tmp_path / "y.npy", np.array(values))
    assert load_labels(f"file://{tmp_path}/y.npy").tolist() == [1, 0]


def test_members_of_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "X.npz", X=np.zeros((4, 3)), y=NUMBERS, kind=np.array(TEXT[::-1]))
    assert load_labels(f"{tmp_path}/X.npz").tolist() == AS_NUMBERS
    assert load_labels(f"{tmp_path}/X.npz::kind").tolist() == EXPECTED[::-1]


def test_columns_of_tables(tmp_path: Path) -> None:
    lines = [f"{number},{text},1.5" for number, text in zip(NUMBERS, TEXT, strict=True)]
    text = "\n".join(["n,kind,x", *lines])
    (tmp_path / "y.csv").write_text(text)
    (tmp_path / "y.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "y.tsv").write_text(text.replace(",", "\t"))
    for name in ("y.csv", "y.csv.gz", "y.tsv"):
        assert load_labels(f"{tmp_path / name}::n").tolist() == AS_NUMBERS, "10 comes after 9"
        assert load_labels(f"{tmp_path / name}::kind").tolist() == EXPECTED, "NA is a class"


def test_a_table_of_one_column_needs_no_name(tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_text("kind\n" + "\n".join(TEXT))
    assert load_labels(f"{tmp_path}/y.csv").tolist() == EXPECTED
    (tmp_path / "y.csv").write_text("\n".join(map(str, NUMBERS)))
    assert load_labels(f"{tmp_path}/y.csv", 4).tolist() == AS_NUMBERS


def test_zarr_arrays_and_groups(tmp_path: Path) -> None:
    assert load_labels(str(_zarr(tmp_path / "y.zarr", NUMBERS))).tolist() == AS_NUMBERS
    zarr.open_group(str(tmp_path / "g.zarr"), mode="w")
    _zarr(tmp_path / "g.zarr" / "kind", NUMBERS)
    assert load_labels(f"{tmp_path}/g.zarr::kind").tolist() == AS_NUMBERS


def test_targets_of_scikit_learn() -> None:
    labels = load_labels("sklearn:digits", 1797)
    assert sorted(set(labels.tolist())) == list(range(10))


def _save(path: Path, values: Any) -> None:
    (np.savez if path.suffix == ".npz" else np.save)(path, values)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("no.npy", "no.npy does not exist. Check the path of the labels"),
        ("y.mat", "labels are read from .npy, .npz"),
        ("four.npy", "has 4 labels, but the data have 3 samples"),
        ("matrix.npy", r"Got an array of float64 with shape \(4, 3\)"),
        ("nan.npy", "the label of row 1 is nan"),
        ("empty.npy", r"shape \(0,\)"),
        ("objects.npy", "pickled"),
        ("complex.npy", "Got an array of complex128"),
        ("bad.npy", "not in NumPy's .npy format"),
        ("cut.npy", "the labels cannot be read"),
        ("X.npz", r"has no array 'y' \(it has arr_0\). Name one as .*X.npz::NAME"),
        ("X.npz::z", "has no array 'z'"),
        ("X.npz::arr_0", r"shape \(4, 3\)"),
        ("y.csv", "has 2 columns .it has a, b.. Name the one with the labels: .*y.csv::COLUMN"),
        ("y.csv::c", "has no column 'c'"),
        ("y.csv::b", "the label of row 1 is missing"),
        ("ragged.csv::a", "line 3 has 3 cells"),
        ("headless.csv::a", "it has no header"),
        ("g.zarr", "labels cannot be read.*g.zarr::NAME"),
        ("m.zarr", r"shape \(4, 3\)"),
        ("folder", "labels cannot be read"),
        ("sklearn:mnist", "is not a set that scikit-learn ships"),
    ],
)
def test_bad_labels_are_refused_in_words(tmp_path: Path, uri: str, message: str) -> None:
    X = np.zeros((4, 3))
    for name, values in {
        "four.npy": NUMBERS, "matrix.npy": X, "nan.npy": [1, np.nan, 2], "empty.npy": [],
        "objects.npy": np.array([None, 1]), "complex.npy": [1j, 2], "X.npz": X, "cut.npy": NUMBERS,
    }.items():  # fmt: skip
        _save(tmp_path / name, values)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-9])
    for name, text in {
        "y.mat": "?", "bad.npy": "?", "y.csv": "a,b\n1,2\n3,\n", "ragged.csv": "a,b\n1,2\n3,4,5\n",
        "headless.csv": "1,2\n3,4\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    zarr.open_group(str(tmp_path / "g.zarr"), mode="w")
    _zarr(tmp_path / "m.zarr", X)
    (tmp_path / "folder").mkdir()
    where = uri if uri.startswith("sklearn:") else f"{tmp_path}/{uri}"
    with pytest.raises(InputError, match=message):
        load_labels(where, 3)


@pytest.mark.parametrize("name", sorted(_SETS))
def test_sets_of_scikit_learn_are_known_before_it_is_loaded(name: str) -> None:
    """Their shapes are in a table, their classes are read from its files."""
    expected = load_set(f"sklearn:{name}")
    source = open_set(f"sklearn:{name}")
    assert (source.n_samples, source.n_features) == expected.data.shape
    assert source.dtype == expected.data.dtype
    np.testing.assert_array_equal(source.read(0, source.n_samples), expected.data)
    assert source.feature_names == [str(feature) for feature in expected.feature_names]
    np.testing.assert_array_equal(load_classes_of(f"sklearn:{name}"), expected.target)
