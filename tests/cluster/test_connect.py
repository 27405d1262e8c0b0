"""The same pipeline on every kind of cluster: the same ranking, and nothing beyond loopback."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest

from bigfs.core.errors import ClusterError, InputError
from bigfs.pipeline.run import run
from bigfs.results.result import Result
from bigfs.runtime.connection import quiet_end, turn_off_logging
from bigfs.runtime.terminal import messages
from tests.cluster._jobs import PATIENCE
from tests.cluster._processes import REPO, scheduler, worker

pytestmark = pytest.mark.cluster


def _config(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "run": str(folder / "run"),
        "input": {"uri": "sklearn:iris"},
        "n_features_to_select": 2,
        "mcfs": {"n_clusters": 3},
        **changes,
    }


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(_config(tmp_path_factory.mktemp("threads")))


def _assert_same(result: Result, expected: Result) -> None:
    assert result.ranking.tolist() == expected.ranking.tolist()
    assert result.scores.tobytes() == expected.scores.tobytes()


def test_a_scheduler_file_in_the_configuration_and_on_the_command_line(
    tmp_path: Path, expected: Result
) -> None:
    with scheduler(tmp_path) as file, worker(file, tmp_path):
        remote = {"kind": "remote", "address": str(file)}
        _assert_same(run(_config(tmp_path, cluster=remote)), expected)
        _assert_same(run(_config(tmp_path), scheduler=str(file), fresh=True), expected)


def test_a_scheduler_file_that_nobody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigfs.runtime.connection.WAIT_SECONDS", 0.5)
    missing = str(tmp_path / "scheduler.json")
    with pytest.raises(ClusterError, match="does not name a Dask scheduler.*--scheduler-file"):
        run(_config(tmp_path), scheduler=missing)
    with pytest.raises(InputError, match="--scheduler: the address.*Got 'nonsense'"):
        run(_config(tmp_path), scheduler="nonsense")
    assert not (tmp_path / "run").exists()


def _certificates(folder: Path) -> dict[str, str]:
    """Return Dask's own settings for TLS, with a certificate of our own making."""
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "cert.pem")
    settings = {"distributed.comm.tls.ca-file": str(folder / "ca.pem")}
    for role in ("scheduler", "worker", "client"):
        settings[f"distributed.comm.tls.{role}.cert"] = str(folder / "cert.pem")
    return settings


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return _certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def encrypted(tmp_path: Path, certificates: dict[str, str]) -> Iterator[str]:
    """Address of a scheduler with a worker that speak TLS only."""
    import json

    names = {
        "DASK_" + key.upper().replace(".", "__").replace("-", "_"): value
        for key, value in certificates.items()
    }
    with (
        scheduler(tmp_path, "--protocol", "tls", env=names) as file,
        worker(file, tmp_path, "--protocol", "tls", env=names),
    ):
        yield json.loads(file.read_text())["address"]


def test_tls_by_the_configuration_of_dask(
    tmp_path: Path, expected: Result, encrypted: str, certificates: dict[str, str]
) -> None:
    assert encrypted.startswith("tls://127.0.0.1:")
    with pytest.raises(InputError, match="no certificates here.*distributed.comm.tls.ca-file"):
        run(_config(tmp_path), scheduler=encrypted)
    with dask.config.set(_certificates(tmp_path)):
        with pytest.raises(InputError, match="do not trust each other's certificates.*ca-file"):
            run(_config(tmp_path), scheduler=encrypted)
    with dask.config.set(certificates):
        _assert_same(run(_config(tmp_path), scheduler=encrypted), expected)


@pytest.mark.parametrize(
    "address, error", [("tls://127.0.0.1:1", InputError), ("tcp://127.0.0.1:1", ClusterError)]
)
def test_a_client_that_cannot_connect_is_closed(
    tmp_path: Path, address: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it stays Dask's default client until it is collected, and changes Dask's settings."""
    from distributed import Client

    monkeypatch.setattr("bigfs.runtime.connection.WAIT_SECONDS", 0.5)
    before = dict(dask.config.config)
    with pytest.raises(error) as caught:  # its traceback holds the client
        run(_config(tmp_path), scheduler=address)
    assert dask.config.config == before
    with pytest.raises(ValueError, match="No clients found"):
        Client.current()
    assert address in str(caught.value)


def test_a_cluster_of_ours_stays_on_the_loopback_and_ends_with_the_run(
    tmp_path: Path, expected: Result
) -> None:
    """The command line, so that what listens belongs to nobody else."""
    import yaml

    path = tmp_path / "local.yaml"
    path.write_text(yaml.safe_dump(_config(tmp_path, cluster={"n_workers": 1})))
    command = [sys.executable, "-m", "bigfs.cli", "run", str(path)]
    heard: set[str] = set()
    started = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    family: set[psutil.Process] = set()
    deadline = time.monotonic() + PATIENCE
    while started.poll() is None:
        if time.monotonic() > deadline:
            started.kill()
        try:
            now = psutil.Process(started.pid)
            family |= {now, *now.children(recursive=True)}
            heard |= {
                connection.laddr.ip
                for process in family
                for connection in process.net_connections("inet")
                if connection.status == "LISTEN"
            }
        except psutil.Error:
            pass
        try:
            started.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    output = started.communicate(timeout=60)[0].decode()
    assert started.returncode == 0, output
    assert heard == {"127.0.0.1"}
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    from bigfs.results.result import open_result

    _assert_same(open_result(tmp_path / "run"), expected)


def _settings_of_process() -> tuple[str, str]:
    import dask.config

    return os.environ["GLIBC_TUNABLES"], dask.config.get("distributed.worker.profile.interval")


@pytest.mark.cluster
def test_workers_started_here_have_large_pages_and_look_at_themselves_rarely(client: Any) -> None:
    settings = set(client.run(_settings_of_process).values())
    assert settings == {(os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"), "100ms")}


def test_dask_speaks_as_we_do_and_shows_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """`distributed.client` has a handler of its own beside that of `distributed`."""
    with messages(quiet=False):
        for name in ("distributed", "distributed.client"):
            former = list(logging.getLogger(name).handlers)
            with quiet_end():
                try:
                    raise OSError("the scheduler is gone")
                except OSError:
                    logging.getLogger(name).exception("Failed to reconnect")
                turn_off_logging()
                logging.getLogger(name).error("an end that is expected")
            assert logging.getLogger(name).handlers == former
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["Failed to reconnect"] * 2
