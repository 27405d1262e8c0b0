"""The manifests against the schemas of Kubernetes, and their layout run for real.

Every container is a process here, started by its own command with its own environment, working
directory and /tmp, on a root file system that it cannot write; nothing but the bucket is shared.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import bigfs
from bigfs.core.memory import job_bytes
from bigfs.core.units import parse_bytes
from bigfs.pipeline.run import run
from bigfs.results.result import open_result
from bigfs.selectors.registry import make_config

REPO = Path(__file__).parents[2]
FOLDER = REPO / "deploy" / "kubernetes"


def _documents() -> dict[tuple[str, str], dict[str, Any]]:
    """Return all manifests, by kind and name."""
    results = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            key = (document["kind"], document["metadata"]["name"])
            assert key not in results
            results[key] = document
    return results


MANIFESTS = _documents()


def _pods() -> dict[str, dict[str, Any]]:
    """Return the pod of the scheduler, of a worker and of the run."""
    job = MANIFESTS["CronJob", "bigfs-nightly"]["spec"]["jobTemplate"]["spec"]
    return {
        "scheduler": MANIFESTS["Deployment", "bigfs-scheduler"]["spec"]["template"]["spec"],
        "worker": MANIFESTS["Deployment", "bigfs-worker"]["spec"]["template"]["spec"],
        "run": job["template"]["spec"],
    }


def _container(name: str) -> dict[str, Any]:
    (container,) = _pods()[name]["containers"]
    assert container["name"] == name
    return container


def _pipeline() -> dict[str, Any]:
    return yaml.safe_load(MANIFESTS["ConfigMap", "bigfs-pipeline"]["data"]["nightly.yaml"])


# The validator leaves its files to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("version", ["1.29", "1.31", "1.34"])  # README: the first one
@pytest.mark.parametrize("key", MANIFESTS, ids=lambda key: "-".join(key))
def test_every_manifest_follows_the_schema_of_kubernetes(
    key: tuple[str, str], version: str
) -> None:
    import kubernetes_validate

    kubernetes_validate.validate(MANIFESTS[key], version, strict=True)


def test_a_misspelled_key_would_be_found() -> None:
    import kubernetes_validate

    wrong = {**MANIFESTS["Service", "bigfs-scheduler"], "specs": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.34", strict=True)


@pytest.mark.parametrize("name", ["scheduler", "worker", "run"])
def test_pods_may_do_as_little_as_possible(name: str) -> None:
    pod, container = _pods()[name], _container(name)
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert (
        f"USER {pod['securityContext']['runAsUser']}:"
        in (REPO / "deploy" / "container" / "Containerfile").read_text()
    )
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["image"] == f"bigfs:{bigfs.__version__}"
    kinds = {"emptyDir", "configMap", "secret"}
    assert not [volume for volume in pod["volumes"] if not kinds & set(volume)]


def test_memory_is_that_of_the_pipeline() -> None:
    limit = make_config(**_pipeline()).memory_limit
    (flag,) = [a for a in _container("worker")["args"] if a.startswith("--memory-limit=")]
    assert parse_bytes(flag.partition("=")[2]) == limit
    for name, needed in [("worker", job_bytes(limit)), ("run", limit)]:
        resources = _container(name)["resources"]
        asked = resources["requests"]["memory"]
        assert asked == resources["limits"]["memory"]
        assert parse_bytes(re.sub(r"i$", "iB", asked)) == needed


def test_exit_codes_decide_what_is_tried_again() -> None:
    cron = MANIFESTS["CronJob", "bigfs-nightly"]["spec"]
    assert cron["concurrencyPolicy"] == "Forbid"
    job = cron["jobTemplate"]["spec"]
    hopeless, disrupted = job["podFailurePolicy"]["rules"]
    assert hopeless["action"] == "FailJob"
    assert hopeless["onExitCodes"]["containerName"] == "run"
    assert disrupted["action"] == "Ignore"
    assert job["backoffLimit"] == 5
    # A run that is told to stop needs up to thirty seconds.
    assert job["template"]["spec"]["terminationGracePeriodSeconds"] >= 30
    hour = int(cron["schedule"].split()[1])
    assert hour * 3600 + cron["startingDeadlineSeconds"] + job["activeDeadlineSeconds"] <= 86400


def test_names_that_have_to_agree() -> None:
    service = MANIFESTS["Service", "bigfs-scheduler"]
    selected = service["spec"]["selector"].items()
    scheduler = MANIFESTS["Deployment", "bigfs-scheduler"]["spec"]["template"]
    assert selected <= scheduler["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    address = f"tcp://{service['metadata']['name']}:{port['port']}"
    assert address in _container("worker")["command"]
    assert address in _container("run")["args"]
    policy = MANIFESTS["NetworkPolicy", "bigfs"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= scheduler["metadata"]["labels"].items()
    for key, manifest in MANIFESTS.items():
        if key[0] == "Deployment":
            labels = manifest["spec"]["template"]["metadata"]["labels"]
            assert manifest["spec"]["selector"]["matchLabels"] == labels


def _can_isolate() -> bool:
    command = "mount --bind /tmp /tmp && mount -o remount,bind,ro /"
    tried = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command], capture_output=True, timeout=200
    )
    return tried.returncode == 0


def _placed(text: str, places: dict[str, str]) -> str:
    """Return a text with names of the cluster replaced by what stands for them here."""
    names = "|".join(re.escape(name) for name in places)
    return re.sub(names, lambda actual: places[actual.group()], text)


def _processor() -> dict[str, str]:
    """Return what OpenBLAS was told of this processor: it chooses its kernels by that.

    With the kernels of another type, pods would be pods on another type of processor.
    """
    names = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    return {name: os.environ[name] for name in names if name in os.environ}


@contextmanager
def _pod(
    name: str, folder: Path, secret: dict[str, str], here: dict[str, str], number: int = 0
) -> Iterator[subprocess.Popen[str]]:
    """Run the container of a pod as a process; ``here`` says where names of the cluster are."""
    container = _container(name)
    own = folder / f"{name}-{number}"
    (own / "tmp").mkdir(parents=True)
    places = {**here, "/etc/bigfs": str(own), "/tmp": str(own / "tmp")}
    assert {"name": "dask", "mountPath": "/etc/dask", "readOnly": True} in container["volumeMounts"]
    for volume in _pods()[name]["volumes"]:
        if "configMap" in volume:
            for file, text in MANIFESTS["ConfigMap", volume["configMap"]["name"]]["data"].items():
                (own / file).write_text(_placed(text, here))
    command = [
        _placed(word, places) for word in (*container["command"], *container.get("args", []))
    ]
    # The image's own settings, and no more than the manifest gives.
    environment = {
        **dict.fromkeys(("HOME", "TMPDIR", "MPLCONFIGDIR"), str(own / "tmp")),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(REPO),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "DASK_CONFIG": str(folder / "dask"),  # which is /etc/dask there
        **_processor(),
        **{item["name"]: item["value"] for item in container.get("env", [])},
    }
    if container.get("envFrom"):
        assert container["envFrom"] == [{"secretRef": {"name": "bigfs-s3"}}]
        environment |= secret
    if shutil.which("unshare") and _can_isolate():
        frozen = f"mount --bind '{own}/tmp' '{own}/tmp' && mount -o remount,bind,ro /"
        command = ["unshare", "--mount", "sh", "-c", f'{frozen} && exec "$@"', "sh", *command]
    with (own / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=own / "tmp", env=environment, stdout=log, stderr=log, text=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=60)


def _encrypt(folder: Path) -> None:
    """Make the content of the secret bigfs-dask: certificates, and the file of deploy/README.md."""
    folder.mkdir()
    _, settings = (REPO / "deploy" / "README.md").read_text().split("tls.yaml <<END\n")
    settings = settings.partition("END\n")[0].replace("$HOME/.bigfs", str(folder))
    settings = settings.replace("  comm:\n", "  comm:\n    default-scheme: tls\n")
    (folder / "tls.yaml").write_text(settings)
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=bigfs -keyout key.pem"
    done = subprocess.run([*command.split(), "-out", "cert.pem"], cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize("protocol", ["tcp", pytest.param("tls", marks=pytest.mark.slow)])
def test_the_layout_with_a_bucket_and_no_shared_disk(
    tmp_path: Path, bucket: str, protocol: str
) -> None:
    from sklearn.datasets import load_digits

    from bigfs.store.location import as_location

    X = load_digits().data.astype("f4")
    np.save(tmp_path / "X.npy", X)
    pipeline = {**_pipeline(), "n_features_to_select": 20}
    local = {"run": str(tmp_path / "threads"), "input": {"uri": str(tmp_path / "X.npy")}}
    expected = run({**pipeline, **local, "keep": None})
    content = io.BytesIO()
    np.save(content, X)
    as_location(f"{bucket}/cells.npy").write_bytes(content.getvalue())

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    if protocol == "tls":
        _encrypt(tmp_path / "dask")
    here = {
        "tcp://": f"{protocol}://",
        "bigfs-scheduler": "127.0.0.1",
        "0.0.0.0": "127.0.0.1",
        "8786": port,
        "s3://my-bucket": bucket,
        "cells.zarr": "cells.npy",
        "n_features_to_select: 50": "n_features_to_select: 20",
    }
    secret = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    with ExitStack() as stack:
        stack.enter_context(_pod("scheduler", tmp_path, secret, here))
        for number in range(2):
            stack.enter_context(_pod("worker", tmp_path, secret, here, number))
        job = stack.enter_context(_pod("run", tmp_path, secret, here))
        deadline = time.monotonic() + 180
        while job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
    logs = {path.parent.name: path.read_text() for path in tmp_path.glob("*/log")}
    assert job.returncode == 0, logs
    latest = as_location(f"{bucket}/runs/nightly-latest").read_text().strip()
    assert re.fullmatch(rf"{bucket}/runs/nightly-\d{{4}}-\d\d-\d\d", latest)
    result = open_result(latest)
    assert result.ranking.tolist() == expected.ranking.tolist()
    assert result.scores.tobytes() == expected.scores.tobytes()
    names = {path.name for path in as_location(latest).iterdir()}
    assert "features.csv" in names
    assert not names & {"lease.json", "attempts"}
    log_text = "\n".join(logs.values())
    assert secret["AWS_SECRET_ACCESS_KEY"] not in log_text
