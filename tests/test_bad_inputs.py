"""Whatever a user gives: exit code 2, one readable line that says what to do, nothing left."""

from __future__ import annotations

import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import bigfs
import bigfs.pipeline
import bigfs.pipeline.run  # noqa: F401  # imported here: the time of imports is not that of a message
from bigfs.cli import main
from bigfs.core.errors import ConfigError, InputError
from bigfs.selectors.base import BaseSelector
from tests._bad_files import Payload, write_good
from tests._bad_inputs import DATA, RESULTS, SETTINGS, Case

REPO = Path(__file__).parents[1]
SECONDS = 5.0
CASES = {**DATA, **SETTINGS, **RESULTS}
_QUIET = ("run", "ingest", "inspect", "evaluate", "compare")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder and an empty folder of temporary files, both in ``tmp_path``."""
    for name in ("work", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file, and the folders."""
    results = {path: path.stat() for path in folder.rglob("*")}
    return {
        str(path): (status.st_size, status.st_mtime_ns) if path.is_file() else (0, 0)
        for path, status in results.items()
    }


def _seconds() -> float:
    """Return what a message may take, longer where others use the machine."""
    return SECONDS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _arguments(case: Case) -> list[str]:
    arguments = shlex.split(case.command)
    if arguments[0] in _QUIET:
        arguments.insert(1, "--quiet")
    return arguments


def _check_line(out: str, err: str, case: Case) -> None:
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("bigfs: error: ")
    assert lines[0].endswith((".", ")", "?")), "a message is a sentence"
    if re.search(r"\brow \d", lines[0], re.IGNORECASE):
        assert re.search(r"ows .*from 0", lines[0]), "from which base rows count"
    for fragment in case.says:
        assert fragment in lines[0]
    for leak in ("Traceback", "pydantic", "secret", "[type=", "object at 0x"):
        assert leak not in lines[0]


@pytest.mark.parametrize("name", CASES)
def test_a_bad_input_is_one_line_and_leaves_nothing(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    write_good()
    if case.make is not None:
        case.make()
    before = _listing(place)
    capsys.readouterr()
    began = time.monotonic()
    with pytest.raises(SystemExit) as stopped:
        main(_arguments(case))
    seconds = time.monotonic() - began
    captured = capsys.readouterr()
    assert stopped.value.code == 2, captured.err
    _check_line(captured.out, captured.err, case)
    assert seconds < _seconds()
    assert _listing(place) == before, "something was left, or changed"


def test_there_are_enough_of_them() -> None:
    assert len(CASES) == len(DATA) + len(SETTINGS) + len(RESULTS) >= 60


def test_the_pickles_of_the_table_would_do_harm(place: Path) -> None:
    pickle.loads(pickle.dumps(Payload()))
    assert (place / "work" / "unpickled").is_dir()


# Started as a program, without the right to read or write what its modes forbid: root has that
# right (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH) and gives it up, which is prctl(PR_CAPBSET_DROP).
_AS_A_USER = """
import ctypes, os, sys
for capability in (1, 2):
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-m", "bigfs.cli", *sys.argv[1:]])
"""


def _program(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _AS_A_USER, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


def _no_reading() -> None:
    Path("X.npy").chmod(0)


def _no_reading_of_files() -> None:
    import pyarrow as pa
    import pyarrow.feather as feather

    for name in ("X.csv", "X.h5ad", "X.feather"):
        feather.write_feather(pa.table({"a": [1.0, 2.0]}), name)
        Path(name).chmod(0)


def _no_writing() -> None:
    Path("shut").mkdir()
    Path("shut").chmod(0o500)


def _no_looking() -> None:
    Path("shut").mkdir()
    np.save("shut/X.npy", np.eye(3))
    Path("shut").chmod(0)


PROGRAMS = {
    "NaN": DATA["NaN in npy"],
    "objects": Case(
        DATA["objects in npy"].make, "ingest X.npy o.zarr", ("pickled", "does not load")
    ),
    "unknown key": SETTINGS["unknown key"],
    "unreadable data": Case(_no_reading, "ingest X.npy o.zarr", ("X.npy", "ermission denied")),
    **{
        f"unreadable {name}": Case(
            _no_reading_of_files, f"inspect {name}", ("cannot be read: permission denied. Allow",)
        )
        for name in ("X.csv", "X.h5ad", "X.feather", "X.f*")
    },
    "unreadable pipeline": Case(
        lambda: Path("p.yaml").chmod(0), "run p.yaml", ("p.yaml", "not readable")
    ),
    "data below a folder that is shut": Case(
        _no_looking, "ingest shut/X.npy o.zarr", ("shut/X.npy", "ermission denied")
    ),
    "store below a folder that is shut": Case(
        _no_writing, "ingest X.npy shut/X.zarr", ("shut", "has no write permission")
    ),
    "run in a folder that is shut": Case(
        _no_writing, "run p.yaml --set run=shut", ("shut", "has no write permission")
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_ends_like_that_too(name: str, place: Path) -> None:
    case = PROGRAMS[name]
    write_good()
    if case.make is not None:
        case.make()
    before = _listing(place)
    ended = _program(*_arguments(case))
    after = _listing(place)
    for path in place.rglob("*"):
        path.chmod(0o700)  # so that pytest can remove it
    assert ended.returncode == 2, ended.stderr
    _check_line(ended.stdout, ended.stderr, case)
    assert after == before, "something was left, or changed"


@pytest.mark.parametrize("command", ["run p.yaml", "ingest X.npy out.zarr", "compare c.yaml"])
def test_nan_amid_much_data_is_named_when_it_is_read(
    command: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_good()
    X = np.zeros((400_000, 32), dtype=np.float32)
    X[312_345, 17] = np.nan
    np.save("X.npy", X)
    np.save("y.npy", np.arange(len(X)) % 2)
    before = _listing(place)
    began = time.monotonic()
    with pytest.raises(SystemExit) as stopped:
        main(command.split())
    assert time.monotonic() - began < _seconds()
    assert stopped.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("bigfs: error: X.npy: row 312345, column 17 is NaN.")
    assert _listing(place) == before


def test_what_was_finished_survives_a_mistake(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_good()
    with pytest.raises(SystemExit):
        main(["run", "p.yaml"])
    before = _listing(place)
    for mistake in ("n_features_to_select=9", "graph=5", "input.uri=no.npy", "memory_limit=x"):
        with pytest.raises(SystemExit) as stopped:
            main(["run", "p.yaml", "--set", mistake])
        assert stopped.value.code == 2
    capsys.readouterr()
    assert _listing(place) == before


_PUBLIC = [getattr(bigfs, name) for name in bigfs.__all__]
SELECTORS = [one for one in _PUBLIC if isinstance(one, type) and issubclass(one, BaseSelector)]


@pytest.mark.parametrize("selector", SELECTORS, ids=lambda selector: selector.__name__)
def test_in_python_nan_is_named_with_its_place_too(selector: type) -> None:
    X = np.random.default_rng(0).normal(size=(40, 4))
    X[33, 2] = np.nan
    of_another = issubclass(selector, bigfs.StabilitySelection)
    make = partial(selector, bigfs.MaxVariance()) if of_another else selector
    message = "X: row 33, column 2 is NaN. Remove or fill it.*missing = 'mean'.*count from 0"
    with pytest.raises(InputError, match=message):
        make().fit(X)
    with pytest.raises(InputError, match=r"X: row 33, column 2 \('c'\) is NaN"):
        make().fit(pd.DataFrame(X, columns=list("abcd")))
    if "random_state" in make().get_params():
        for seed in (-1, 0.5, np.random.RandomState(0)):
            with pytest.raises(InputError, match="random_state must be an int of at least 0"):
                make(random_state=seed).fit(np.nan_to_num(X))


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("n_top_genes", "n_features_to_select"),
        ("n_selected_features", "n_features_to_select"),
        ("seed", "random_state"),
        ("n_neighbours", "n_neighbors"),
    ],
)
def test_names_of_other_packages_are_refused_with_ours(name: str, ours: str) -> None:
    says = f"MCFS has no parameter '{name}'; did you mean '{ours}'?"
    with pytest.raises(InputError, match=re.escape(says)) as refused:
        bigfs.MCFS(**{name: 5})
    assert isinstance(refused.value, TypeError)
    adata = pytest.importorskip("anndata").AnnData(np.eye(9, dtype=np.float32))
    with pytest.raises(InputError, match=re.escape(says)):
        bigfs.select(adata, **{name: 5})


def test_what_scikit_learn_takes_is_refused_with_what_to_give() -> None:
    X = np.random.default_rng(0).normal(size=(40, 30))
    with pytest.raises(InputError, match="X has 30 features; that share of them is 3. Got 0.1"):
        bigfs.MaxVariance(0.1).fit(X)
    with pytest.raises(InputError, match=r"Draw one: int\(rng.integers\(2\*\*31\)\)"):
        bigfs.MCFS(5, random_state=np.random.default_rng(0)).fit(X)


OBJECTS: dict[str, tuple[Callable[[], Any], str]] = {
    "complex": (lambda: np.ones((9, 3)) + 1j, "X holds complex128"),
    "complex list": (lambda: [[1j, 2.0], [3.0, 4.0]], "X holds complex128"),
    "complex64": (lambda: np.ones((9, 3), np.complex64), "X holds complex64"),
    "complex objects": (lambda: (np.eye(4) + 1j).astype(object), "X holds complex numbers"),
    "a complex column": (
        lambda: pd.DataFrame({"a": np.eye(4)[0], "b": np.array([0.0, 1j, 0.0, 0.0], object)}),
        "X holds complex",
    ),
    "complex CSR": (lambda: sp.csr_array(np.eye(4) + 1j), "X holds complex128"),
    "complex frame": (lambda: pd.DataFrame(np.eye(4) + 1j), "X holds complex128"),
    "a name twice": (lambda: pd.DataFrame(np.eye(3), columns=list("aab")), "'a' appears twice"),
    "a number twice": (lambda: pd.DataFrame(np.eye(3), columns=[1, 1, 2]), "'1' appears twice"),
    "one text": (
        lambda: pd.DataFrame({"a": [1, 2, 3], "b": [1, "x", None]}),
        "column 'b' holds object",
    ),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_in_python_objects_are_refused_in_one_short_line(kind: str) -> None:
    make, says = OBJECTS[kind]
    fitted = bigfs.MaxVariance(1).fit(np.eye(4))
    for call in (bigfs.MaxVariance(1).fit, bigfs.KNeighborsTransformer(1).fit, fitted.transform):
        if kind == "one text" and call != bigfs.MaxVariance(1).fit:
            continue
        with pytest.raises(InputError, match=says) as error:
            call(make())
        assert len(str(error.value)) < 400


def test_in_python_a_configuration_of_no_kind_is_refused() -> None:
    for item in (None, 3, ["run"]):
        for start in (bigfs.run, bigfs.compare):
            with pytest.raises(ConfigError, match="is the path of a YAML file or a dict. Got"):
                start(item)
