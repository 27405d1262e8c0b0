"""The page of deploy/ names files that exist, and all exit codes."""

from __future__ import annotations

import re
from pathlib import Path

from bigfs.core import errors
from bigfs.core.units import format_bytes, parse_bytes
from bigfs.plan.plan import Place
from bigfs.plan.planning import Header, plan_of
from bigfs.selectors.registry import make_config

REPO = Path(__file__).parents[2]
TEXT = (REPO / "deploy" / "README.md").read_text()


def test_every_file_that_it_names_is_there() -> None:
    named = set(re.findall(r"\b(?:deploy|pipelines|tests)/[\w./-]*\w", TEXT))
    named |= {
        f"deploy/{name}" for name in re.findall(r"`((?:slurm|kubernetes|container)/[^`]*)`", TEXT)
    }
    assert len(named) > 8
    assert [name for name in sorted(named) if not (REPO / name).exists()] == []


def test_it_explains_every_exit_code() -> None:
    explained = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, flags=re.MULTILINE)}
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert explained == codes | {1}


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) < 220


def test_the_plans_that_it_shows_are_those_of_now() -> None:
    rows = re.findall(r"^\| ([\d,]+) x ([\d,]+) \| `(.*?)` \| (.*) \|$", TEXT, flags=re.MULTILINE)
    assert len(rows) == 3
    for *size, representation, cells in rows:
        n, d = (int(number.replace(",", "")) for number in size)
        data, limit, *shown = cells.split(" | ")
        config = make_config(
            run="runs/none", input={"uri": "none.npy"}, method="mcfs", n_features_to_select=10,
            memory_limit=limit, graph={"n_neighbors": 5, "representation": representation},
        )  # fmt: skip
        header = Header(n, d, 4, max(1, 16 * 10**6 // (4 * d)), stored=True, exact=True)
        plan = plan_of(config, header, Place(parse_bytes(limit), 1))
        assert plan.fits and data == format_bytes(4 * n * d)
        figures = (plan.predicted_peak_bytes, plan.bytes_read, plan.scratch_bytes)
        assert shown == [format_bytes(figure) for figure in figures]
