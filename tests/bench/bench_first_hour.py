"""The first hour of a new user: every command with its seconds and its words, and the errors.

    python -m tests.bench.bench_first_hour FOLDER [--rows 2000] [--features 300]

Writes a CSV with ids, labels, texts, dates, missing values and so many columns, a Parquet with a
column of texts, and a zarr array without names. Every file is given to `bigfs run` as it is. Where
that is refused, the first ``--set`` of the message is added, nothing else, and the command is given
again. stderr is a terminal. The same CSV is then fitted in a notebook, which nbclient executes
where it is installed.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# The cells of somebody who does, after each refusal, what it says.
CELLS = (
    "import bigfs\nimport pandas as pd\nframe = pd.read_csv('cells.csv')",
    "bigfs.MCFS(20, n_clusters=3).fit(frame)",
    "X = bigfs.open_matrix(frame, columns={patterns})\nbigfs.MCFS(20, n_clusters=3).fit(X)",
    "bigfs.ingest(X, 'X.zarr', missing='mean')\n"
    "selector = bigfs.MCFS(20, n_clusters=3).fit('X.zarr')\n"
    "selector.get_feature_names_out()",
    "selector.transform('X.zarr')",
    "result = bigfs.open_result('runs/cells-mcfs')\nresult",
    "result.transform(frame).head(3)",
)
_MOST_ERRORS = 5


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Write the files, go through the hour, print the transcript; return errors and seconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--features", type=int, default=300)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    write_files(options.folder, options.rows, options.features)
    session = Session(options.folder)
    session.command("--help")
    session.command("inspect", "cells.csv")
    session.command("init", "mcfs")
    errors = {}
    for file in ("cells.csv", "spectra.parquet", "images.zarr"):
        errors[file] = session.until_it_works("run", "mcfs.yaml", "--set", f"input.uri={file}",
                                              "--set", "n_features_to_select=20",
                                              "--set", "mcfs.n_clusters=3")  # fmt: skip
    run = "runs/cells-mcfs"
    session.command("evaluate", run, "--labels", "cells.csv::kind", "--n-repetitions", "5")
    session.command("export", run, "selected.parquet")
    session.command("report", run)
    session.again()
    errors["notebook"] = _notebook(options.folder, session)
    print("\nerrors until success: " + ", ".join(f"{k} {v}" for k, v in errors.items()))
    return {"errors": errors, "seconds": session.seconds, "said": session.said}


def write_files(folder: Path, n_rows: int, n_features: int) -> None:
    """Write a raw table, a Parquet and a zarr array, of three kinds of samples each."""
    import zarr

    rng = np.random.default_rng(0)
    kinds = rng.integers(3, size=n_rows)
    X = rng.normal(size=(n_rows, n_features))
    X[:, :20] += rng.normal(scale=3.0, size=(3, 20))[kinds]
    frame = pd.DataFrame(X.round(4), columns=[f"g{j:03}" for j in range(n_features)])
    frame.loc[rng.random(n_rows) < 0.02, "g007"] = np.nan
    frame.insert(0, "sample", [f"S{i:05}" for i in range(n_rows)])
    frame.insert(1, "site", rng.choice(["Berlin", "Lima", "Oslo"], n_rows))
    frame.insert(2, "day", pd.date_range("2026-01-01", periods=n_rows).strftime("%Y-%m-%d"))
    frame["kind"] = np.array(["ant", "bee", "cat"])[kinds]
    frame.to_csv(folder / "cells.csv", index=False)
    spectra = pd.DataFrame(X[:, :120], columns=[f"w{400 + j}" for j in range(min(120, n_features))])
    spectra.insert(0, "spectrum", frame["sample"])
    spectra.to_parquet(folder / "spectra.parquet")
    zarr.save(str(folder / "images.zarr"), X[:, :64].astype(np.float32))


class Session:
    """Commands in a folder, with their words and seconds.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seconds: list[tuple[str, float, float]] = []
        self.said: list[str] = []

    def command(self, *arguments: str) -> tuple[int, str]:
        """Run a command with stderr on a terminal; return its code and what is left on it."""
        mine, theirs = pty.openpty()
        raw = bytearray()
        reader = threading.Thread(target=_read_all, args=(mine, raw))
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "bigfs", *arguments],
            cwd=self._folder, stdout=subprocess.PIPE, stderr=theirs, text=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        )  # fmt: skip
        os.close(theirs)
        reader.start()
        out, _ = process.communicate()
        reader.join()
        os.close(mine)
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        text = screen_text(raw.decode(errors="replace"))
        name = " ".join(arguments[:3])
        self.seconds.append((name, wall, cpu))
        self._say(
            f"\n$ bigfs {' '.join(arguments)}\n{text}{out}"
            f"[exit {process.returncode}, {wall:.1f} s, of processors {cpu:.2f} s]"
        )
        self._last = arguments
        return process.returncode, text

    def until_it_works(self, *arguments: str) -> int:
        """Run a command; add what a refusal says, until it is taken. Return the refusals."""
        errors, code = 0, None
        while code != 0 and errors < _MOST_ERRORS:
            code, text = self.command(*arguments)
            cure = re.search(r"--set ('(?:[^']|'\\'')*'|[^\s;,)]+)", text)
            if code == 0 or cure is None:
                break
            errors += 1
            arguments = (*arguments, "--set", cure[1].strip("'"))
            if "input.uri=cells.csv" in arguments:
                self.taken = arguments
        assert code == 0, text
        return errors

    def again(self) -> None:
        """Give the last command that was cured again: there is nothing to do."""
        self.command(*self.taken)

    def cell(self, source: str, message: str, seconds: float) -> None:
        """Note a cell of a notebook."""
        self.seconds.append((source.splitlines()[-1], seconds, float("nan")))
        self._say(f"\n>>> {source}\n{message}\n[{seconds:.1f} s]")

    def _say(self, text: str) -> None:
        self.said.append(text)
        print(text)


def _read_all(descriptor: int, into: bytearray) -> None:
    while True:
        try:
            piece = os.read(descriptor, 4096)
        except OSError:  # the other end is closed
            return
        if not piece:
            return
        into.extend(piece)


def screen_text(raw: str) -> str:
    """Return what is left on a terminal: lines that were drawn over or erased are gone."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", raw):
        if token == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif token == "\r":
            column = 0
        elif token.startswith("\x1b"):
            if token.endswith("A"):
                row = max(0, row - int(token[2:-1] or 1))
            elif token.endswith("K"):
                lines[row] = ""
        else:
            lines[row] = lines[row][:column].ljust(column) + token
            column += len(token)
    text = "\n".join(line.rstrip() for line in lines).strip("\n")
    return f"{text}\n" if text else ""


def _notebook(folder: Path, session: Session) -> int | None:
    """Execute the cells; return the errors, None where there is no nbclient."""
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError:
        print("\nno notebook: nbclient, nbformat and ipykernel are not installed")
        return None
    patterns = repr(["!sample", "!site", "!day", "!kind"])
    cells = [nbformat.v4.new_code_cell(text.replace("{patterns}", patterns)) for text in CELLS]
    book = nbformat.v4.new_notebook(cells=cells)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(
        book, timeout=600, kernel_name="python3", allow_errors=True, resources=resources
    ).execute()
    errors = 0
    for cell in book.cells:
        message = []
        for output in cell.outputs:
            if output.output_type == "error":
                errors += 1
                message.append(f"{output.ename}: {output.evalue}")
            elif output.output_type == "stream":
                message.append(output.text.rstrip())
            else:
                message.append(output.data["text/plain"])
        times = cell.metadata.execution
        began = pd.Timestamp(times["iopub.execute_input"])
        seconds = (pd.Timestamp(times["shell.execute_reply"]) - began).total_seconds()
        session.cell(cell.source, "\n".join(message), seconds)
    return errors


if __name__ == "__main__":
    main()
