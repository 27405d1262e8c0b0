"""A first hour in a notebook: a raw table, a refusal with its cure, a fit, a run, its table."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

CELLS = (
    "import bigfs\nimport pandas as pd\nframe = pd.read_csv('cells.csv')",
    "try:\n    bigfs.MaxVariance(2).fit(frame)\nexcept ValueError as error:\n    print(error)",
    "X = bigfs.open_matrix(frame, columns=['g*'], index='sample', labels='kind')\n"
    "bigfs.MaxVariance(2).fit(X).get_feature_names_out()",
    "from bigfs.runtime import progress\n"
    "progress.FIRST_SECONDS = 0  # else a fit takes two seconds until it shows a bar\n"
    "_ = bigfs.NDFS(2, n_clusters=3, max_iter=300, tol=0).fit(X)",
    "settings = {'run': 'runs/{input}-{method}', 'method': 'max_variance', 'report': None,\n"
    "            'n_features_to_select': 2,\n"
    "            'input': {'uri': 'cells.csv', 'columns': ['g*'], 'index': 'sample'}}\n"
    "result = bigfs.run(settings)\nresult",
)


@pytest.mark.full
def test_a_notebook_shows_the_ranking(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="needs nbclient, with ipykernel and nbformat")
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat")
    from nbclient import NotebookClient

    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 4)), columns=list("abcd"))
    frame = frame.add_prefix("g")
    frame.insert(0, "sample", [f"S{i}" for i in range(60)])
    frame["kind"] = ["ant", "bee", "cat"] * 20
    frame.to_csv(tmp_path / "cells.csv", index=False)
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    book = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(
        book,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    message = book.cells[1].outputs[0].text
    assert (
        "2 columns do not hold numbers" in message
        and "X.drop(columns=['sample', 'kind'])" in message
    )
    [progress] = book.cells[3].outputs
    assert re.fullmatch(r"NDFS: \d.*s", progress.data["text/plain"]), "what the bar leaves"
    shown = book.cells[-1].outputs[-1].data
    assert "<table" in shown["text/html"] and "2 of 4 features selected" in shown["text/html"]
    assert shown["text/plain"].startswith("<Result of max_variance: 2 of 4")
