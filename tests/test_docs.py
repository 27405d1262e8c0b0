"""The documentation builds without a warning, needs nothing from outside, and its examples run."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).parents[1]
EXAMPLES = sorted((REPO / "docs" / "gallery").glob("plot_*.py"))
pytestmark = pytest.mark.full


class _Page(HTMLParser):
    """The resources that a page loads, where it links to, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "search", "next", "prev"):
            self.loads.append(given.get("href", ""))
        elif given.get("src"):
            self.loads.append(given["src"])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_of_the_gallery_runs(example: Path, tmp_path: Path) -> None:
    for needed in ("anndata", "xarray"):
        if needed in example.read_text():
            pytest.importorskip(needed)
    paths = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:bigfs", str(example)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(example.read_text().splitlines()) <= 60


def test_the_site_builds_and_needs_nothing_from_outside(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the extra bigfs[docs] is not installed")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-d", str(tmp_path / "doctrees"),
               str(REPO / "docs"), str(site)]  # fmt: skip
    done = subprocess.run(
        command, env={**os.environ, "BIGFS_DOCS_EXAMPLES": "0"}, capture_output=True, text=True,
        timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = {place: _Page(place.read_text()) for place in site.rglob("*.html")}
    assert {site / f"{name}.html" for name in (
        "index", "start", "data", "choose", "scale", "nights", "api",
    )} <= pages.keys()  # fmt: skip
    assert len(list((site / "auto_gallery").glob("plot_*.html"))) == len(EXAMPLES) == 8
    for place, page in pages.items():
        outside = [load for load in page.loads if load.startswith(("http:", "https:", "//"))]
        assert not outside, (place, outside)
        for link in page.links:
            if link.startswith(("http:", "https:", "mailto:")):
                continue
            path, _, anchor = link.partition("#")
            target = (place.parent / path).resolve() if path else place
            assert target.exists(), (place, link)
            if anchor and target in pages:
                assert anchor in pages[target].anchors, (place, link)
