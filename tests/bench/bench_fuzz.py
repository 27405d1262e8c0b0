"""Commands on files that were damaged at random: an exit code of ours, and nothing outside.

    python -m tests.bench.bench_fuzz FOLDER [--cases 10000] [--seed 0] [--kinds npy csv ...]

Tables, arrays, stores, pipelines and run directories are written once. In each case a file of one
of them is damaged (bytes, numbers, values of JSON, ends cut off), and a command works on it in a
process of its own, which may take 2 GiB more than it has and 20 s. Every case must end with an exit
code of the design page, without a traceback, and leave all other files as they are. Case i of a
seed is the same every time: --first i --cases 1 repeats it, and shows what was said.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CODES = {0, 2, 3, 4, 5, 6, 75, 130}
LIMIT_BYTES = 2 * 2**30
SECONDS = 20
# What a command may write to, besides what it is told to work on.
_OUTPUTS = ("out", "runs")
_WARM = (
    "bigfs.cli", "bigfs.pipeline.run", "bigfs.pipeline.inspect", "bigfs.pipeline.finished",
    "bigfs.pipeline.diff", "bigfs.plan.planning", "bigfs.store.ingest", "bigfs.results.export",
    "bigfs.store.labels", "bigfs.selectors.one_pass.strategies",
    "bigfs.selectors.one_pass.estimator", "pandas", "scipy.io",
    "scipy.sparse", "numcodecs", "zarr", "dask.threaded", "dask.array",
    *(f"bigfs.store.formats.{name}" for name in ("csv", "mat", "npy", "npz", "zarr_array")),
)  # fmt: skip
# "fit" is `MaxVariance.fit` in Python; everything else is a command of bigfs.
_INGEST = (
    ["ingest", "{}", "out/x.zarr"], ["inspect", "{}"], ["plan", "{}.yaml"], ["fit", "{}"],
)  # fmt: skip
_RUN = (
    ["run", "run.yaml", "--quiet"], ["inspect", "runs/a"], ["report", "runs/a"],
    ["export", "runs/a", "out/x.npy"], ["diff", "runs/a", "runs/b"],
    ["inspect", "runs/a", "--verify"],
)  # fmt: skip
# Kind -> what is damaged (a pattern below the folder), and the commands that work on it.
KINDS: dict[str, tuple[str, tuple[list[str], ...]]] = {
    "npy": ("X.npy", _INGEST),
    "npz": ("X.npz", _INGEST),
    "sparse": ("S.npz", _INGEST),
    "csv": ("X.csv", _INGEST),
    "gz": ("X.csv.gz", _INGEST),
    "mat": ("X.mat", _INGEST),
    "cube": ("cube.mat", _INGEST),
    "hdf5 mat": ("seven.mat", _INGEST),
    "mtx": ("X.mtx", _INGEST),
    "svm": ("X.svm", _INGEST),
    "tif": ("X.tif", _INGEST),
    "feather": ("X.feather", _INGEST),
    "parquet": ("X.parquet", _INGEST),
    "h5": ("X.h5", _INGEST),
    "transposed": ("side.csv", (["ingest", "{}", "out/x.zarr", "--transpose", "true"],)),
    "zarr2": ("two.zarr/**/*", _INGEST),
    "zarr3": ("three.zarr/**/*", _INGEST),
    "shards": ("shards.zarr/**/*", _INGEST),
    "store": ("ours.zarr/**/*", (*_INGEST, ["inspect", "{}", "--verify"])),
    "labels": ("y.npy", (["run", "labels.yaml", "--quiet"],)),
    "yaml": ("run.yaml", (["plan", "run.yaml"], ["run", "run.yaml", "--quiet"])),
    "manifest": ("runs/a/manifest.json", _RUN),
    "lease": ("runs/a/lease.json", (["run", "run.yaml", "--quiet"],)),
    "mark": ("runs/a/.bigfs-run", _RUN),
    "run": ("runs/a/**/*", _RUN),
}
_HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**30, 10**400, 1.5, 1e308, "", "x", "../../x", "/",
    "\0", "\x1b[31m", "9" * 5000, [], [[]], {}, {"a": 1}, [0], [-1, 2], [10**9, 10**9], "<f8", "|O",
    "complex128", "gzip", "=cmd|' /C calc'!A0",
)  # fmt: skip


@dataclass
class Outcome:
    """Outcome of a case."""

    code: int
    said: str
    peak_bytes: int
    seconds: float
    touched: list[str]

    @property
    def is_fine(self) -> bool:
        """True if it ended as the design page says."""
        return self.code in CODES and "Traceback" not in self.said and not self.touched


def main(arguments: list[str] | None = None) -> None:
    """Run the cases and print a line for each kind, and for each case that ended otherwise."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    chosen = parser.parse_args(arguments)
    good = chosen.folder.absolute() / "good"
    if not good.exists():
        # In a process of its own: what starts threads must not be forked. They are written where
        # they are used, since a finished run knows where its input is.
        place = good.with_name("case")
        command = [sys.executable, "-m", "tests.bench.bench_fuzz", "--write", str(place)]
        subprocess.run(command, check=True)
        place.rename(good)
    wrong = fuzz(good, chosen.kinds, chosen.first, chosen.cases, chosen.seed)
    if wrong:
        sys.exit(f"{wrong} of {chosen.cases} cases did not end as they should")


def fuzz(good: Path, kinds: list[str], first: int, cases: int, seed: int) -> int:
    """Run cases on copies of the good files; return how many did not end as they should."""
    for name in _WARM:
        importlib.import_module(name)
    place = good.with_name("case")
    figures: dict[str, Counter[int]] = {kind: Counter() for kind in kinds}
    largest, longest, wrong = 0, 0.0, 0
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(good, place)
    for case in range(first, first + cases):
        dice = random.Random(f"{seed} {case}")
        kind = kinds[case % len(kinds)]
        pattern, commands = KINDS[kind]
        victim = dice.choice(sorted(p for p in good.glob(pattern) if p.is_file()))
        name = victim.relative_to(good)
        content = damaged(victim, dice)
        (place / name).write_bytes(content)
        subject = name.parts[0]
        command = [part.replace("{}", subject) for part in dice.choice(commands)]
        outcome = run_case(command, place, good, {str(name): content})
        figures[kind][outcome.code] += 1
        largest, longest = max(largest, outcome.peak_bytes), max(longest, outcome.seconds)
        if not outcome.is_fine:
            wrong += 1
            print(
                f"case {case}, {kind}: bigfs {' '.join(command)} on {name}: {outcome}", flush=True
            )
        elif cases == 1:
            print(outcome, flush=True)
        shutil.copyfile(victim, place / name)
    for kind, codes in figures.items():
        ends = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
        print(f"{kind:<9} {codes.total():>6} cases; exit codes {ends}")
    print(f"largest rise of a process {largest / 2**20:,.0f} MiB, longest case {longest:.1f} s")
    return wrong


def run_case(command: list[str], place: Path, good: Path, changed: dict[str, bytes]) -> Outcome:
    """Run a command in a process of its own; put back what it may write to."""
    began, before = time.monotonic(), _size_of_a_child()
    message = place.with_name("said.txt")
    child = os.fork()
    if child == 0:
        _run_child(command, place, message)
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    touched = _differences(good, place, changed)
    for name in _OUTPUTS:
        if (place / name).exists():
            shutil.rmtree(place / name)
        shutil.copytree(good / name, place / name)
    for name in touched:
        source, target = good / name, place / name
        if source.exists():
            shutil.copyfile(source, target)
        else:
            target.unlink(missing_ok=True)
    text = message.read_text(errors="replace")
    rise = max(0, usage.ru_maxrss * 1024 - before)
    return Outcome(code, text[-3000:], rise, time.monotonic() - began, touched)


def _run_child(command: list[str], place: Path, message: Path) -> None:
    """Run the command line within the limits, and end the process with its code."""
    code = 99
    try:
        os.chdir(place)
        file = os.open(message, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        limit = _virtual() + LIMIT_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        from bigfs.cli import main as bigfs
        from bigfs.store import lease

        lease.STALE_SECONDS = 0.2  # in this process only
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        try:
            _fit(command[1]) if command[0] == "fit" else bigfs(command)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 98
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _fit(path: str) -> None:
    """Fit a file in Python; end with the exit code of an error of ours."""
    from bigfs import MaxVariance
    from bigfs.core.errors import BigfsError

    try:
        MaxVariance(n_features_to_select=3).fit(path)
    except BigfsError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(0)


def _virtual() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _size_of_a_child() -> int:
    """Return the resident bytes of a fork that does nothing: libraries are not mapped in it yet."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.wait4(child, 0)[2].ru_maxrss * 1024


def _differences(good: Path, place: Path, changed: dict[str, bytes]) -> list[str]:
    """Return the files outside of the outputs that a command has changed, made or removed."""
    known = _files(good)
    now = _files(place)
    names = {name for name in known.keys() | now.keys() if known.get(name) != now.get(name)}
    return sorted(
        name
        for name in names
        if name not in changed or (place / name).read_bytes() != changed[name]
    )


def _files(folder: Path) -> dict[str, str]:
    """Return hashes of the files of a folder, without the outputs."""
    figures = {}
    for top, folders, names in os.walk(folder):
        if Path(top) == folder:
            folders[:] = [name for name in folders if name not in _OUTPUTS]
        for name in names:
            path = Path(top) / name
            digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
            figures[path.relative_to(folder).as_posix()] = digest
    return figures


def damaged(path: Path, dice: random.Random) -> bytes:
    """Return the content of a file with one to three changes."""
    content = path.read_bytes()
    packed = path.suffix == ".gz" and dice.random() < 0.5
    if packed:
        content = gzip.decompress(content)
    for _ in range(dice.choice((1, 1, 2, 3))):
        content = dice.choice(_changes(content))(content, dice)
    return gzip.compress(content, 1) if packed else content


def _changes(content: bytes) -> list[Callable[[bytes, random.Random], bytes]]:
    """Return the ways in which a content may be damaged."""
    measured = [_flip, _cut, _insert, _repeat, _swap_number]
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return measured
    return [*measured, *[_swap_json] * 5]


def _flip(content: bytes, dice: random.Random) -> bytes:
    out = bytearray(content or b"\0")
    # Headers are at the beginning.
    end = len(out) if dice.random() < 0.5 else min(len(out), 200)
    for _ in range(dice.choice((1, 1, 4, 30))):
        out[dice.randrange(end)] = dice.randrange(256)
    return bytes(out)


def _cut(content: bytes, dice: random.Random) -> bytes:
    return content[: dice.randrange(len(content) + 1)]


def _insert(content: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(content) + 1)
    piece = dice.choice(
        (b"\0", b"\n", b",", b'"', b"{", b"[" * 3000, b"&a [*a]", b"\xff\xfe", b"9" * 400)
    )
    return content[:at] + piece + content[at:]


def _repeat(content: bytes, dice: random.Random) -> bytes:
    first, last = sorted(dice.randrange(len(content) + 1) for _ in range(2))
    return content[:last] + content[first:last] * dice.choice((1, 5)) + content[last:]


def _swap_number(content: bytes, dice: random.Random) -> bytes:
    """Put another number in the place of one that is written in digits."""
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?", content[:4000]))
    if not numbers:
        return _flip(content, dice)
    place = dice.choice(numbers)
    number = dice.choice(
        ("0", "-1", "1e999", "nan", "inf", str(2**63), "9" * 30, "9" * 5000, "1e-400", "_")
    )
    return content[: place.start()] + number.encode() + content[place.end() :]


def _swap_json(content: bytes, dice: random.Random) -> bytes:
    """Put another value in a place of a JSON text, or take it away."""
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(content)
        places = _places(value)
        if places:
            holder, key = dice.choice(places)
            if isinstance(holder, dict) and dice.random() < 0.2:
                del holder[key]
            else:
                holder[key] = dice.choice(_HOSTILE)
            with contextlib.suppress(ValueError):
                return json.dumps(value).encode()
    return _flip(content, dice)


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else []
    )
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


def write_good(folder: Path) -> None:
    """Write the files that are damaged, and two finished runs."""
    import numcodecs
    import numpy as np
    import scipy.io
    import scipy.sparse
    import zarr

    from bigfs import ingest, run
    from bigfs.store import lease

    folder.mkdir(parents=True)
    os.chdir(folder)
    for name in (*_OUTPUTS, "canary"):
        Path(name).mkdir()
    Path("canary/thesis.tex").write_text("years of work")
    X = np.random.default_rng(0).normal(size=(40, 6))
    np.save("X.npy", X)
    np.save("y.npy", np.arange(40) % 3)
    np.savez_compressed("X.npz", X=X, y=np.arange(40))
    scipy.sparse.save_npz("S.npz", scipy.sparse.csr_matrix(X * (X > 0)))
    scipy.io.savemat("X.mat", {"fea": X, "gnd": np.arange(40)}, do_compression=True)
    _write_more(X)
    text = ",".join(f"gene {j}" for j in range(6)) + "\n"
    text += "".join(",".join(map(repr, row)) + "\n" for row in X.tolist())
    Path("X.csv").write_text(text)
    Path("X.csv.gz").write_bytes(gzip.compress(text.encode()))
    shapes: dict[str, Any] = {"shape": X.shape, "dtype": X.dtype, "chunks": (20, 3)}
    zarr.create_array("two.zarr", **shapes, zarr_format=2, compressors=numcodecs.GZip())[:] = X
    zarr.create_array("three.zarr", **shapes, compressors=zarr.codecs.ZstdCodec())[:] = X
    zarr.create_array("shards.zarr", **shapes, shards=(40, 6), compressors=zarr.codecs.GzipCodec())[
        :
    ] = X
    ingest("X.csv", "ours.zarr", rows=20)
    base = {"method": "max_variance", "n_features_to_select": 3, "report": None}
    for uri in (
        "X.npy",
        "X.npz",
        "S.npz",
        "X.csv",
        "X.csv.gz",
        "X.mat",
        "cube.mat",
        "seven.mat",
        "X.mtx",
        "X.svm",
        "X.tif",
        "X.feather",
        "X.parquet",
        "X.h5",
        "two.zarr",
        "three.zarr",
        "shards.zarr",
        "ours.zarr",
    ):
        of_input = {"uri": uri} | ({"features": 2} if uri == "cube.mat" else {})
        settings = {"run": "runs/new", "input": of_input, **base}
        Path(f"{uri}.yaml").write_text(json.dumps(settings))
    for name in ("a", "b"):
        run({"run": f"runs/{name}", "input": {"uri": "X.npy"}, **base})
    labels = {"evaluate": {"labels": "y.npy", "n_repetitions": 1, "n_init": 1}}
    Path("labels.yaml").write_text(
        json.dumps({"run": "runs/l", "input": {"uri": "X.npy"}, **base, **labels})
    )
    lines = [
        "# a pipeline",
        "run: runs/a",
        "input: {uri: X.npy, missing: error}",
        "memory_limit: 4 GiB",
    ]
    lines += [
        "method: max_variance",
        "n_features_to_select: 3",
        "report: null",
        "random_state: 0",
        "",
    ]
    Path("run.yaml").write_text("\n".join(lines))
    # Of a process that is gone.
    held = {"owner": "0123456789ab", "pid": 2**40, "host": socket.gethostname(), "beat": 1.0}
    Path("runs/a/lease.json").write_text(json.dumps({**held, "kernel": lease._kernel()}))


def _write_more(X: Any) -> None:
    """Write files of libraries that not everybody has installed."""
    import h5py
    import numpy as np
    import pandas as pd
    import rasterio
    import scipy.io
    import scipy.sparse
    from sklearn.datasets import dump_svmlight_file

    sparse = scipy.sparse.csc_matrix(X * (X > 0))
    scipy.io.savemat("cube.mat", {"cube": X.reshape(8, 5, 6)})
    with h5py.File("seven.mat", "w", userblock_size=512) as file:
        group = file.create_group("X")
        group.attrs["MATLAB_class"], group.attrs["MATLAB_sparse"] = np.bytes_("double"), 40
        group["data"], group["ir"], group["jc"] = sparse.data, sparse.indices, sparse.indptr
    with Path("seven.mat").open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file".ljust(128))
    scipy.io.mmwrite("X.mtx", sparse)
    dump_svmlight_file(sparse.tocsr(), np.arange(40) % 3, "X.svm")
    frame = pd.DataFrame(X, columns=[f"g{j}" for j in range(6)])
    frame.to_feather("X.feather")
    frame.to_parquet("X.parquet")
    frame.T.to_csv("side.csv", header=[f"c{i}" for i in range(40)], index=False)
    with h5py.File("X.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(20, 3), compression="gzip")
    bands = X.T.reshape(6, 8, 5)
    shape = {"count": 6, "height": 8, "width": 5, "dtype": "float64"}
    grid = rasterio.Affine(30, 0, 5e5, 0, -30, 5e6)
    with rasterio.open("X.tif", "w", driver="GTiff", transform=grid, nodata=7, **shape) as picture:
        picture.write(bands)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write_good(Path(sys.argv[2]))
    else:
        main()
