"""The command line: help, exit codes, and what a user reads when something is wrong."""

from __future__ import annotations

import inspect
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import pytest
import zarr

import bigfs
from bigfs.cli import cli, main
from bigfs.core import errors
from bigfs.store.source import open_matrix

REPO = Path(__file__).parents[1]


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def bigfs_command(
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Outcome]:
    """Run the command line in this process, with its exit code and its two streams."""

    def run(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        captured = capsys.readouterr()
        return Outcome(stopped.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def failing_command() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Add a command ``bigfs fail`` with a body of the test's choice."""

    def add(body: Callable[[], None]) -> None:
        cli.add_command(click.Command("fail", callback=body))

    yield add
    cli.commands.pop("fail", None)


def _raise(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


def test_help_teaches_by_example(bigfs_command):
    shown = bigfs_command("--help")
    assert shown.code == 0
    assert "bigfs run quickstart" in shown.out
    for command in ("run", "ingest", "inspect", "evaluate", "compare", "init", "schema"):
        shown = bigfs_command(command, "--help")
        assert shown.code == 0
        assert f"    bigfs {command} " in shown.out.partition("Example")[2]


def test_every_exit_code_is_in_the_help(bigfs_command):
    text = bigfs_command("--help").out
    codes = {error.exit_code for error in vars(errors).values() if hasattr(error, "exit_code")}
    for code in codes | {errors.EXIT_DONE, errors.EXIT_INTERRUPTED}:
        assert f" {code} " in text.partition("Exit codes:")[2].replace("\n", " ")


def test_no_arguments_show_the_help(bigfs_command):
    shown = bigfs_command()
    assert shown.code == 2
    assert "Usage: bigfs" in shown.err


def test_version(bigfs_command):
    assert bigfs_command("--version") == (0, f"bigfs, version {bigfs.__version__}\n", "")


def test_schema_is_what_python_gives(bigfs_command):
    from bigfs.selectors.registry import json_schema

    shown = bigfs_command("schema")
    assert shown.code == 0
    assert json.loads(shown.out) == json_schema()


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("run",), ("run", "a.yaml", "--nonsense"), ("evaluate", "runs/a")]
)
def test_wrong_usage_is_exit_2(bigfs_command, arguments):
    shown = bigfs_command(*arguments)
    assert shown.code == 2
    assert shown.err.startswith("bigfs: error: ")
    assert shown.err.endswith(" --help'.\n")
    assert shown.err.count("\n") == 1


def test_a_typo_in_the_file_is_one_readable_line(bigfs_command, tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("run: r\ninput: {uri: a.npy}\nn_features_to_select: 2\ngraph: {metrik: 1}\n")
    shown = bigfs_command("run", str(path))
    assert shown.code == 2
    assert shown.out == ""
    assert shown.err == (
        f"bigfs: error: {path}: unknown key 'metrik' in 'graph'; did you mean 'metric'? "
        "Known: n_neighbors, metric, weight, sigma, algorithm, representation, eps, "
        "recall_target, if_missed.\n"
    )


def test_set_is_checked_like_the_file(bigfs_command):
    pipeline = str(REPO / "pipelines" / "quickstart.yaml")
    shown = bigfs_command("run", pipeline, "--set", "graph.n_neighbors=many")
    assert shown.code == 2
    assert "graph.n_neighbors must be a whole number. Got 'many'." in shown.err


def test_a_pipeline_that_is_not_there(bigfs_command):
    shown = bigfs_command("run", "nowhere.yaml")
    assert shown.code == 2
    assert "error: There is no pipeline file nowhere.yaml, and no template" in shown.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InputError, 2),
        (errors.MemoryLimitError, 3),
        (errors.ClusterError, 4),
        (errors.StorageError, 4),
        (errors.RunLockedError, 75),
    ],
)
def test_errors_are_a_line_and_a_code(bigfs_command, failing_command, error, code):
    raised = error("what, where, remedy")
    raised.add_note("in stage 'graph'")
    failing_command(_raise(raised))
    shown = bigfs_command("fail")
    assert shown == (code, "", "bigfs: error: what, where, remedy\nin stage 'graph'\n")


def test_traceback_on_request(bigfs_command, failing_command, monkeypatch):
    monkeypatch.setenv("BIGFS_TRACEBACK", "1")
    failing_command(_raise(errors.InputError("message")))
    shown = bigfs_command("fail")
    assert shown.code == 2
    assert shown.err.startswith("Traceback")
    assert shown.err.endswith("bigfs: error: message\n")


def test_a_bug_keeps_its_traceback(bigfs_command, failing_command):
    failing_command(_raise(ZeroDivisionError("oops")))
    shown = bigfs_command("fail")
    assert shown.code == 1
    assert "ZeroDivisionError: oops" in shown.err
    assert shown.err.endswith("please report it with the lines above\n")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_exit_130_without_a_traceback(bigfs_command, failing_command, signum):
    failing_command(lambda: os.kill(os.getpid(), signum))
    shown = bigfs_command("fail")
    assert shown.code == 130
    assert shown.err.strip() == "bigfs: interrupted; no result was written"


def test_a_terminal_that_nohup_has_ignored_stays_ignored(bigfs_command, failing_command):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        failing_command(lambda: os.kill(os.getpid(), signal.SIGHUP))
        assert bigfs_command("fail").code == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_init_writes_a_template_once(bigfs_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = bigfs_command("init", "compare/digits")
    assert (shown.code, (tmp_path / "digits.yaml").exists()) == (0, True)
    assert "then: bigfs compare digits.yaml" in shown.out
    (tmp_path / "digits.yaml").write_text("mine")
    shown = bigfs_command("init", "compare/digits")
    assert (shown.code, (tmp_path / "digits.yaml").read_text()) == (2, "mine")
    assert "digits.yaml exists" in shown.err
    shown = bigfs_command("init", "digits")
    assert shown.code == 2 and "quickstart" in shown.err
    assert bigfs_command("init", "mcfs", "-o", "no/such.yaml").code == 2
    listed = bigfs_command("init", "--list").out.splitlines()
    assert (
        "mcfs             A template for your own data: every setting, with its default" in listed
    )
    assert any(line.startswith("paper/mcfs       Tables 3 to 7 of D. Cai, C. Z") for line in listed)


def test_init_leaves_nothing_of_a_file_that_cannot_be_whole(tmp_path):
    # -B: of modules that nobody has compiled Python would keep the first 100 bytes, for all.
    done = subprocess.run(
        [sys.executable, "-B", "-m", "bigfs", "init", "-o", "my.yaml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=200,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )  # fmt: skip
    assert done.returncode == 4 and "File too large. Free space." in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("template", "kind"), [("mcfs", "run"), ("compare/digits", "compare")])
def test_init_writes_the_schema_that_the_template_names_for_editors(
    bigfs_command, tmp_path, monkeypatch, template, kind
):
    monkeypatch.chdir(tmp_path)
    assert bigfs_command("init", template, "-o", "my.yaml").code == 0
    first = (tmp_path / "my.yaml").read_text().splitlines()[0]
    schema = tmp_path / first.removeprefix("# yaml-language-server: $schema=")
    assert json.loads(schema.read_text())["title"] == f"bigfs {kind}"
    schema.write_text(f'{{"title": "bigfs {kind}"}}')  # of another version
    assert bigfs_command("init", template, "-o", "other.yaml").code == 0
    assert "properties" in json.loads(schema.read_text())
    schema.write_text("mine")
    assert bigfs_command("init", template, "-o", "third.yaml").code == 0
    assert schema.read_text() == "mine"


def test_a_template_is_found_by_name_unless_there_is_a_file(bigfs_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = bigfs_command("plan", "quickstart")
    assert shown.code == 0 and "data" in shown.out and "\n  graph" in shown.out
    shown = bigfs_command("plan", "quickstart", "--quick")
    assert shown.code == 0 and "rows, so it is run instead" in shown.out
    shown = bigfs_command("plan", "quickstart", "--quick", "--set", "stability.n_pairs=2")
    assert shown.code == 0 and "\n  graph" not in shown.out
    (tmp_path / "quickstart").write_text(
        "run: x\ninput: {uri: none.npy}\nn_features_to_select: 1\n"
    )
    assert "none.npy does not exist" in bigfs_command("plan", "quickstart").err
    shown = bigfs_command("plan", "quickstrat")
    assert shown.code == 2 and "one of baselines, " in shown.err


def test_ingest_then_inspect(bigfs_command, tmp_path):
    store = str(tmp_path / "digits.zarr")
    shown = bigfs_command("ingest", "sklearn:digits", store)
    assert shown.code == 0
    assert shown.out.startswith(f"{store}: 1,797 samples x 64 features, float64, ")
    assert "ingest: done" in shown.err
    shown = bigfs_command("inspect", store, "--verify")
    assert shown.code == 0
    assert "1,797 samples x 64 features, float64" in shown.out
    assert "all checksums match" in shown.out
    again = bigfs_command("ingest", "sklearn:digits", store)
    assert again.code == 2
    assert "already exists" in again.err
    assert bigfs_command("ingest", "sklearn:digits", store, "--overwrite", "--quiet").err == ""


def test_ingest_is_told_whether_the_first_line_of_a_table_is_its_header(bigfs_command, tmp_path):
    source, store = tmp_path / "X.csv", str(tmp_path / "X.zarr")
    source.write_text("2001,2002,2003\n3,1,2\n1,2,9\n")
    refused = bigfs_command("ingest", str(source), store)
    assert refused.code == errors.EXIT_BAD_INPUT
    assert "(2001, 2002, 2003)" in refused.err and "--header" in refused.err
    for header, rows in (("true", 2), ("false", 3)):
        shown = bigfs_command("ingest", str(source), store, "--header", header, "--overwrite")
        assert shown.code == errors.EXIT_DONE and f"{rows} samples x 3 features" in shown.out
        names = "features: 2001, 2002, 2003" in bigfs_command("inspect", store).out
        assert names == (header == "true")
    source.write_text("3,1,2\n1,2,9\n")
    assert "no header" in bigfs_command("ingest", str(source), store, "--overwrite").err


def test_every_setting_of_opening_is_an_option_of_inspect_and_ingest(bigfs_command, tmp_path):
    for command in ("inspect", "ingest"):
        options = {option.name for option in cli.commands[command].params}
        assert options >= set(inspect.signature(open_matrix).parameters) - {"X"}
    cube = np.arange(2.0 * 3 * 4).reshape(2, 3, 4)
    cube[0, 0, 0] = -9
    group = zarr.open_group(str(tmp_path / "scene.zarr"), mode="w")
    group.create_array("cube", data=cube, dimension_names=("band", "y", "x"))
    group.create_array("clear", data=np.ones((3, 4)), dimension_names=("y", "x"))
    uri, store = str(tmp_path / "scene.zarr"), str(tmp_path / "X.zarr")
    shown = bigfs_command("inspect", f"{uri}::cube")
    assert "Name the feature dimension" in shown.out and "cube: 2 x 3 x 4 float64" in shown.out
    given = (f"{uri}::cube", "--features", "band", "--no-data", "-9", "--rows", "{every: 5}")
    shown = bigfs_command("inspect", *given)
    assert "3 samples x 2 features" in shown.out and "rows are y (3) x x (4)" in shown.out
    assert "1 values are missing" in shown.out
    assert bigfs_command("ingest", *given, store).code == errors.EXIT_BAD_INPUT
    assert bigfs_command("ingest", *given, store, "--missing", "zero").code == errors.EXIT_DONE
    expected = cube.reshape(2, 12).T[::5]
    expected[0, 0] = 0
    np.testing.assert_array_equal(open_matrix(store).read(0, 3), expected)
    refused = bigfs_command("inspect", uri, "--rows", "{every: 0}", "--no-data", "x")
    assert refused.code == errors.EXIT_BAD_INPUT
    assert (
        "every must be a number of at least 1" in refused.err and "no_data must be" in refused.err
    )


def test_ingest_says_what_it_did_about_missing_values(bigfs_command, tmp_path):
    source, store = tmp_path / "cells.csv", str(tmp_path / "cells.zarr")
    source.write_text("a,b\n1,2\n,4\n5,6\n7,8\n")
    refused = bigfs_command("ingest", str(source), store)
    assert refused.code == 2
    assert "row 1" in refused.err
    shown = bigfs_command("ingest", str(source), store, "--missing", "mean")
    assert "1 missing values were replaced (mean)." in shown.out
    shown = bigfs_command("ingest", str(source), store, "--missing", "drop_rows", "--overwrite")
    assert "1 rows with missing values were dropped." in shown.out


@pytest.mark.parametrize("command", ["schema", "init --list", "plan quickstart"])
def test_what_is_only_printed_and_cannot_be_is_a_failure(command: str) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "bigfs", *command.split()],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=120,
        )  # fmt: skip
    assert ended.returncode == 4
    assert ended.stderr == "bigfs: error: the output cannot be written: No space left on device.\n"


@pytest.mark.parametrize("target", ["/dev/full", "a pipe that nobody reads"])
def test_what_cannot_be_shown_is_no_failure_of_the_work(target, tmp_path):
    work = f"main(['ingest', '--quiet', 'sklearn:iris', {str(tmp_path / 'iris.zarr')!r}])"
    command = [sys.executable, "-c", f"from bigfs.cli import main; {work}"]
    stdout = open(target, "w") if target == "/dev/full" else subprocess.PIPE  # noqa: SIM115
    with subprocess.Popen(
        command, cwd=REPO, stdout=stdout, stderr=subprocess.PIPE, text=True
    ) as process:
        (process.stdout or stdout).close()
        output = process.stderr.read()
    full = "bigfs: the output cannot be written: No space left on device\n"
    assert output == (full if target == "/dev/full" else "")
    assert process.returncode == 0


def test_the_command_starts_without_numpy():
    code = "import sys, bigfs.cli; print('numpy' in sys.modules, 'dask' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    assert done.stdout.split() == ["False", "False"]


def test_a_signal_while_python_ends_does_not_change_the_code() -> None:
    program = (
        "import atexit, sys, time\n"
        "from bigfs.runtime.terminal import as_program\n"
        "atexit.register(lambda: (print('it ends', flush=True), time.sleep(0.2)))\n"
        "as_program(lambda: sys.exit(6))\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "it ends\n"
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    assert process.returncode == 6


@pytest.mark.parametrize("name", ["id: x", "2020", "1e3", "null", "id #1", "Unnamed: 0"])
def test_a_setting_that_names_a_column_works_as_it_is_printed(
    name: str, bigfs_command: Callable[..., Outcome], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    header = "" if name == "Unnamed: 0" else name
    rows = [f"s{i},{','.join(f'{x:.3f}' for x in rng.normal(size=4))}" for i in range(40)]
    (tmp_path / "X.csv").write_text("\n".join([f"{header},a,b,c,d", *rows]) + "\n")
    shown = bigfs_command("inspect", "X.csv").out
    command = next(line for line in shown.splitlines() if line.startswith("Proposed command: "))
    arguments = shlex.split(command.removeprefix("Proposed command: bigfs "))
    ran = bigfs_command(*arguments, "--quiet")
    assert ran.code == 0, (command, ran.err)


def test_a_column_without_a_value_is_left_out_and_one_row_is_refused(
    bigfs_command: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("X.csv").write_text("a,b,c,d\n1,,3,1\n4,,6,\n7,,9,5\n2,,8,6\n")
    shown = bigfs_command("inspect", "X.csv").out
    assert "None of the first 4 rows has a value in b." in shown
    command = next(line for line in shown.splitlines() if line.startswith("Proposed command: "))
    arguments = shlex.split(command.removeprefix("Proposed command: bigfs "))
    ran = bigfs_command(*arguments, "--set", "mcfs.n_clusters=2", "--quiet")
    assert ran.code == 0, (command, ran.err)
    Path("X.csv").write_text(
        "id,a,b,c,d\n" + "".join(f"r{i},{i},,{i * i % 7},{i % 3}\n" for i in range(9))
    )
    for options in (["--index", "id"], ["--index", "id", "--columns", "[a, b, c]"]):
        shown = bigfs_command("inspect", "X.csv", *options).out
        command = next(line for line in shown.splitlines() if line.startswith("Proposed command: "))
        arguments = shlex.split(command.removeprefix("Proposed command: bigfs "))
        arguments += ["--set", "mcfs.n_clusters=2", "--set", f"run=r{len(options)}", "--quiet"]
        ran = bigfs_command(*arguments)
        assert ran.code == 0, (command, ran.err)
    Path("X.csv").write_text("a,b,c\n1,2,3\n")
    assert "at least 2 samples are needed. Got 1." in bigfs_command("inspect", "X.csv").out


def test_infinities_of_a_table_are_said_before_a_run_refuses_them(
    bigfs_command: Callable[..., Outcome], tmp_path: Path
) -> None:
    (tmp_path / "X.csv").write_text("a,b\n" + "\n".join(f"{i / 7},{i % 5}.5" for i in range(30)))
    assert "accepts this input as it is" in bigfs_command("inspect", f"{tmp_path}/X.csv").out
    with (tmp_path / "X.csv").open("a") as file:
        file.write("\ninf,1.5\n")
    assert "1 values are infinite" in bigfs_command("inspect", f"{tmp_path}/X.csv").out
    (tmp_path / "X.csv").write_text("a,b\n1,2\n1e200,3\n4,5\n")
    assert "1 values are infinite or beyond" in bigfs_command("inspect", f"{tmp_path}/X.csv").out
    np.save(tmp_path / "X.npy", [[1.0, 2], [1e200, 3]])
    assert "1 values are infinite or beyond" in bigfs_command("inspect", f"{tmp_path}/X.npy").out
