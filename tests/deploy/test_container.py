"""The steps of the Containerfile in a fresh virtual environment, since no engine is at hand."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
FOLDER = REPO / "deploy" / "container"


def _instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Containerfile, each with its text on one line."""
    text = re.sub(r"\\\n\s*", "", (FOLDER / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def _pins() -> dict[str, str]:
    lines = (FOLDER / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {_canonical(name): version for name, version in pairs}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_image_runs_as_nobody_in_particular_and_holds_no_more_than_it_needs() -> None:
    instructions = _instructions()
    users = [text for name, text in instructions if name == "USER"]
    assert users[-1:] == ["65532:65532"]
    assert instructions.index(("USER", users[-1])) > max(
        i for i, (name, _) in enumerate(instructions) if name == "RUN"
    )
    bases = {text.split()[0] for name, text in instructions if name == "FROM"}
    (base,) = bases
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+-slim-\w+", base)
    copied = [text.split()[0] for name, text in instructions if name == "COPY"]
    assert "." not in copied


def test_every_dependency_is_pinned_and_allowed() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pins = _pins()
    for line in [*project["dependencies"], *extras["s3"]]:
        name, least = re.fullmatch(r"([\w-]+)>=([\d.]+)", line).groups()
        have = [int(part) for part in re.findall(r"\d+", pins[_canonical(name)])]
        assert have >= [int(part) for part in least.split(".")], line


@pytest.mark.network
@pytest.mark.timeout(1500)  # downloads, beside which CI checks types
def test_the_steps_of_the_containerfile(tmp_path: Path) -> None:
    """Build and run below a folder instead of /, with this Python for that of the base image."""
    root, environment, here = tmp_path / "root", dict(os.environ), tmp_path / "root"
    (root / "usr/local/bin").mkdir(parents=True)
    (root / "tmp").mkdir()
    python = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    (root / "usr/local/bin/python").symlink_to(python)
    environment["PATH"] = f"{root}/usr/local/bin:{os.environ['PATH']}"

    def inside(text: str) -> str:
        """Return a text with the paths of the image where they are here."""
        return re.sub(r"(?<![\w./])/(opt|src|tmp|usr/local)\b", rf"{root}/\1", text)

    for name, text in _instructions():
        if name == "WORKDIR":
            here = Path(inside(text))
            here.mkdir(exist_ok=True)
        elif name == "ENV":
            pairs = dict(pair.split("=", 1) for pair in text.split())
            environment.update({key: inside(value) for key, value in pairs.items()})
        elif name == "COPY" and "--from" not in text:
            *sources, target = shlex.split(text)
            place = here / inside(target)
            for source in sources:
                origin = REPO / source
                if origin.is_dir():
                    shutil.copytree(origin, place, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(origin, place)
        elif name == "RUN":
            subprocess.run(
                inside(text).replace("--no-cache-dir ", ""),  # of use to an image only
                shell=True,
                check=True,
                cwd=here,
                env=environment,
                timeout=900,
            )
    frozen = subprocess.run(
        ["python", "-m", "pip", "--python", root / "opt/bigfs/bin/python", "freeze"],
        env={**environment, "PATH": f"{root}/usr/local/bin:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        text=True,
        timeout=400,
    )
    actual = dict(line.split("==") for line in frozen.stdout.splitlines() if "==" in line)
    actual.pop("bigfs", None)
    pins = _pins()
    assert {_canonical(name): version for name, version in actual.items()} == pins
    del environment["OMP_NUM_THREADS"]
    shutil.rmtree(root / "src")  # what runs below is the wheel, without a checkout

    def bigfs(*arguments: str) -> str:
        done = subprocess.run(
            ["bigfs", *arguments],
            cwd=root / "tmp",
            env={**environment, "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = re.search(r"\n +bigfs (run \w+)\n", bigfs("--help"))[1].split()
    assert "mcfs: 20 of 64 features selected" in bigfs(*first, "--set", "run=out")
    assert (root / "tmp/out/features.csv").exists()
    bigfs("init", "ndfs")
    assert "ndfs: " in bigfs("run", "ndfs.yaml", "--set", "input.uri=sklearn:digits")
