"""Tables and matrices on their side: the same rows, names and ids, by bands in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

from bigfs.cli import cli
from bigfs.core.errors import InputError
from bigfs.store import views as module
from bigfs.store.source import open_matrix
from bigfs.store.verify import verify

N, D = 53, 17


def main(arguments: list[str]) -> int:
    """Run a command, and return its exit code."""
    return CliRunner().invoke(cli, arguments, catch_exceptions=False).exit_code


def values(dtype: Any = np.float64) -> np.ndarray:
    X = np.random.default_rng(0).normal(size=(N, D)).astype(dtype)
    X[np.random.default_rng(1).random(X.shape) < 0.5] = 0
    return X


def read(source: Any, rows: int = 9) -> np.ndarray:
    source.begin()
    return np.concatenate(list(source.iter_blocks(rows)))


FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "numpy": np.asarray,
    "CSR": sp.csr_array,
    "CSC": sp.csc_array,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("small", [True, False])
def test_objects(form: str, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if small:  # several bands, and pieces of some rows
        monkeypatch.setattr(module, "_PIECE_BYTES", 1500)
        monkeypatch.setattr(module, "_BAND_BYTES", 500)
        monkeypatch.setattr("bigfs.store.formats.parts._BAND_ENTRIES", 40)
    X = values()
    source = open_matrix(FORMS[form](X.T), transpose=True)
    assert (source.n_samples, source.n_features) == (N, D)
    assert source.sparse == (form != "numpy")
    for rows in (1, 9, 100):
        np.testing.assert_array_equal(read(source, rows), X)


def test_columns_are_those_of_the_file_in_every_form(tmp_path: Path) -> None:
    import pandas as pd

    X = values()
    frame = pd.DataFrame(X.T, columns=[str(i) for i in range(N)])
    frame.to_parquet(tmp_path / "X.parquet", index=False)
    np.save(tmp_path / "X.npy", X.T)
    sp.save_npz(tmp_path / "X.npz", sp.csr_array(X.T))
    files = [tmp_path / name for name in ("X.parquet", "X.npy", "X.npz")]
    for data in (*files, frame, X.T, sp.csc_array(X.T), open_matrix(tmp_path / "X.npy")):
        source = open_matrix(data, columns=["3..40", "!7"], transpose=True)
        np.testing.assert_array_equal(read(source), np.delete(X[3:41], 4, axis=0))


def test_a_table_of_genes_by_cells_goes_through_a_run(tmp_path: Path) -> None:
    import pandas as pd

    X = values()
    cells, genes = [f"c{i}" for i in range(N)], [f"g{j}" for j in range(D)]
    frame = pd.DataFrame(X.T, index=pd.Index(genes, name="gene"), columns=cells)
    frame.to_csv(tmp_path / "X.csv")
    pipeline = tmp_path / "p.yaml"
    pipeline.write_text(
        f"run: {tmp_path}/run\ninput: {{uri: {tmp_path}/X.csv, transpose: true, index: gene}}\n"
        "method: max_variance\nn_features_to_select: 2\n"
    )
    assert main(["plan", str(pipeline)]) == 0
    assert main(["run", str(pipeline)]) == 0
    best = np.argsort(-X.var(axis=0))[:2]
    names = [line.split(",")[0] for line in (tmp_path / "run/features.csv").read_text().split()]
    text = (tmp_path / "run/features.csv").read_text()
    assert all(f"g{j}" in text for j in best), names
    export = ["export", str(tmp_path / "run"), str(tmp_path / "s.csv"), "--ids"]
    assert main(export) == 0
    selected = pd.read_csv(tmp_path / "s.csv", index_col=0, float_precision="round_trip")
    assert list(selected.index) == cells
    np.testing.assert_array_equal(selected[f"g{best[0]}"], X[:, best[0]])


def test_ingest_and_parts(tmp_path: Path) -> None:
    X = values()
    np.save(tmp_path / "a.npy", X[:30].T)
    np.save(tmp_path / "b.npy", X[30:].T)
    command = ["ingest", f"{tmp_path}/*.npy", str(tmp_path / "X.zarr")]
    assert main([*command, "--transpose", "true"]) == 0
    verify(tmp_path / "X.zarr")
    np.testing.assert_array_equal(open_matrix(tmp_path / "X.zarr").read(0, N), X)


def test_columns_of_texts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "X.csv").write_text("gene,c1,c2\na,x,1\nb,y,2\n")
    with pytest.raises(InputError, match="of a transposed table cannot be encoded"):
        open_matrix(tmp_path / "X.csv", transpose=True, index="gene", categories="numbers")


@pytest.mark.parametrize("density", [1.0, 0.3])
def test_a_file_on_its_side_that_changes_while_it_is_read_is_refused(
    density: float, tmp_path: Path
) -> None:
    X = values()
    for part in (X, 5 * X):
        if density < 1:
            sp.save_npz(tmp_path / "X.npz", sp.csr_array(part.T))
        else:
            np.save(tmp_path / "X.npy", part.T)
        if part is X:
            source = open_matrix(next(tmp_path.iterdir()), transpose=True)
            source.begin()
            source.check_unchanged()
    with pytest.raises(InputError, match="changed while it was read"):
        source.check_unchanged()


def test_a_set_of_scikit_learn_is_turned() -> None:
    source, upright = (open_matrix("sklearn:iris", transpose=turn) for turn in (True, False))
    assert (source.n_samples, source.n_features) == (4, 150)
    rows, columns = (np.concatenate(list(s.iter_blocks(1000))) for s in (source, upright))
    np.testing.assert_array_equal(rows, columns.T)
