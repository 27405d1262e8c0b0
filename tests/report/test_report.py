"""The report of a run is one file that says the answer first, and harms nobody."""

from __future__ import annotations

import base64
import re
import shlex
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bigfs
from bigfs.core.errors import InputError
from bigfs.pipeline.finished import write_report
from bigfs.results.plots import read_axis
from bigfs.results.sample import explained_shares
from tests.test_cli import bigfs_command  # noqa: F401

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "a&b",
    "x" * 300,
    "\u202eend",
]


class _Tags(HTMLParser):
    """All tags with their attributes, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def _parsed(place: Path) -> _Tags:
    page = _Tags()
    page.feed(place.read_text())
    return page


def _pictures(page: _Tags) -> dict[str, str]:
    """Return the pictures of a page, SVG in base64, by what they show."""
    begins = "data:image/svg+xml;base64,"
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert all(attrs["src"].startswith(begins) for attrs in images)
    return {a["alt"]: base64.b64decode(a["src"].removeprefix(begins)).decode() for a in images}


def _settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "run": str(folder / "run"),
        "input": {"uri": "sklearn:digits"},
        "method": "max_variance",
        "n_features_to_select": 20,
        **changes,
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reported")
    given = _settings(folder, method="mcfs", mcfs={"n_clusters": 10})
    evaluate = {"labels": "sklearn:digits", "n_repetitions": 2, "n_init": 1}
    bigfs.run({**given, "evaluate": evaluate, "report": {"image_shape": [8, 8]}})
    return folder / "run"


def test_a_report_in_a_bucket_is_that_of_a_run_there(finished: Path) -> None:
    message = "s3://lab/r.html: the report can only be written to a local file"
    with pytest.raises(InputError, match=message):
        write_report(finished, "s3://lab/r.html")


def test_the_answer_comes_first_and_the_figures_are_those_of_the_result(finished: Path) -> None:
    page = _parsed(write_report(finished))
    result = bigfs.open_result(finished)
    best = [
        result.name_of(f) for f in result.ranking.tolist() if f in set(result.selected.tolist())
    ]
    beginning = page.text[: page.text.index("In the image")]
    assert "20 of 64 features" in beginning
    assert [beginning.index(name) for name in best] == sorted(
        beginning.index(name) for name in best
    )
    share = result.curves.adds.sum()
    assert f"{100 * share:.0f} %of the features' variance" in beginning
    for title in ("Scores", "Number of features", "Correlation", "Map of the rows", "Quality",
                  "Measured and planned cost", "How to repeat this", "graph recall"):  # fmt: skip
        assert title in page.text
    assert f"NMI {100 * result.evaluation['selected']['nmi_mean']:.1f} %" in page.text
    assert "largest relative gap" in page.text
    assert set(_pictures(page)) == {
        "Selected features", "Curves over the number of features", "Map of the rows",
        "Correlation of the selected features", "Means of the selected features in each cluster",
    }  # fmt: skip
    first = dict(page.tags[[tag for tag, _ in page.tags].index("details")][1])
    assert "open" not in first, "the configuration is closed"


def test_what_a_run_was_warned_about_is_on_the_first_screen(tmp_path: Path) -> None:
    X = np.tile(np.random.default_rng(0).normal(size=(30, 4)), (8, 1))  # copies of rows
    np.save(tmp_path / "X.npy", X)
    given = _settings(tmp_path, input={"uri": str(tmp_path / "X.npy")}, method="laplacian_score")
    notes = bigfs.run({**given, "n_features_to_select": 2}).notes
    page = _parsed(write_report(tmp_path / "run"))
    assert notes
    for note in notes:
        assert page.text.index(note) < page.text.index("Map of the rows")


def test_it_needs_no_other_file_and_stays_small(finished: Path) -> None:
    place = write_report(finished)
    assert place.stat().st_size < 2_000_000
    text = place.read_text()
    assert not re.search(r"src=\"(?!data:)|href\s*=|url\(|@import|https?://", text)
    for picture in _pictures(_parsed(place)).values():
        declared = r'xmlns(:\w+)?="[^"]*"|<metadata>.*?</metadata>|<!DOCTYPE[^>]*>'
        outside = re.sub(declared, "", picture, flags=re.S)
        assert not re.search(r'href="(?!#|data:)|url\((?!#)|https?://', outside)


def test_how_to_repeat_a_run_of_an_object(tmp_path: Path) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 5)), columns=[*"abcde"])
    settings = {"run": str(tmp_path / "run"), "method": "max_variance", "n_features_to_select": 2}
    result = bigfs.run(settings, data=frame)
    text = _parsed(write_report(result.path)).text
    command = next(line for line in text.splitlines() if "bigfs.run(" in line).strip()
    command = command.partition("bigfs.run(")[2].replace("...", "frame")
    command = command.replace("ANOTHER", str(tmp_path / "again"))
    again = eval(f"bigfs.run({command[: command.index(')') + 1]}", {"bigfs": bigfs, "frame": frame})  # noqa: S307
    np.testing.assert_array_equal(again.ranking, result.ranking)


def test_names_of_features_are_text(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(40, len(HOSTILE)))
    pd.DataFrame(values, columns=HOSTILE).to_csv(tmp_path / "X.csv", index=False)
    uri = str(tmp_path / "X.csv")
    bigfs.run(_settings(tmp_path, input={"uri": uri}, n_features_to_select=4))
    page = _parsed(write_report(tmp_path / "run"))
    assert "script" not in {tag for tag, _ in page.tags}
    assert _pictures(page)
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert "<script>alert(1)</script>" in page.text
    # A name that turns the direction of writing stays within its element.
    text = (tmp_path / "run/report.html").read_text()
    inside = re.findall(r"<bdi>(.*?)</bdi>|title=\"(.*?)\"", text)
    inside = ["".join(parts) for parts in inside]
    assert text.count("\u202e") == sum(name.count("\u202e") for name in inside) > 0


@pytest.mark.parametrize("method", ["ndfs", "lfs", "laplacian_score", "m3fs"])
def test_methods_with_and_without_clusters_and_graphs(tmp_path: Path, method: str) -> None:
    own = {} if method == "laplacian_score" else {method: {"n_clusters": 3}}
    if method == "m3fs":
        own[method]["C"] = 100.0  # with less it joins two of the three
    given = _settings(tmp_path, input={"uri": "sklearn:iris"}, method=method, **own)
    bigfs.run({**given, "n_features_to_select": 2})
    page = _parsed(write_report(tmp_path / "run"))
    has_clusters = "Means of the selected features in each cluster" in _pictures(page)
    assert has_clusters == (method != "laplacian_score")
    groups = bigfs.open_result(tmp_path / "run").plot.sample().groups
    assert len(set(groups.tolist())) == (1 if method == "laplacian_score" else 3)


@pytest.mark.parametrize(
    ("n", "d"), [(2, 1), (5, 40), (30, 3)], ids=["one feature", "wide", "constant"]
)
def test_degenerate_data(tmp_path: Path, n: int, d: int) -> None:
    X = np.random.default_rng(0).normal(size=(n, d))
    X[:, d // 2 :] = 3.0 if d == 3 else X[:, d // 2 :]
    np.save(tmp_path / "X.npy", X)
    given = _settings(tmp_path, input={"uri": str(tmp_path / "X.npy")}, n_features_to_select=d)
    bigfs.run(given)
    assert "nan" not in _parsed(write_report(tmp_path / "run")).text.lower()


def test_a_place_for_each_feature_is_checked_before_the_run(tmp_path: Path) -> None:
    np.save(tmp_path / "axis.npy", np.arange(63))
    (tmp_path / "axis.txt").write_text("\n".join(map(str, range(400, 464))))
    for report, message in (
        ({"image_shape": [8, 9]}, "8 x 9 is 72 pixels, but the data have 64"),
        ({"axis": str(tmp_path / "axis.npy")}, "a finite number for each of the 64"),
        ({"axis": str(tmp_path / "none.txt")}, "none.txt cannot be read"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            bigfs.run(_settings(tmp_path, report=report))
        assert ".." not in str(caught.value)
    pd.DataFrame({"nm": np.arange(400, 464), "name": "a"}).to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(InputError, match="report.axis: .*b.csv has no column 'um'"):
        bigfs.run(_settings(tmp_path, report={"axis": f"{tmp_path}/b.csv::um"}))
    np.testing.assert_array_equal(read_axis(f"{tmp_path}/b.csv::nm", 64), np.arange(400, 464))
    assert not (tmp_path / "run").exists()
    bigfs.run(_settings(tmp_path, report={"axis": str(tmp_path / "axis.txt")}))
    page = _parsed(write_report(tmp_path / "run"))
    assert "Along the axis" in page.text and "Scores along the axis" in _pictures(page)


def test_what_a_finished_run_proposes_and_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "with a blank"
    np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(40, 6)))
    given = {"run": str(run), "input": {"uri": str(tmp_path / "X.npy")}, "method": "max_variance"}
    result = bigfs.run({**given, "n_features_to_select": 2})
    proposed = [line for line in result.summary().splitlines() if ": bigfs " in line]
    assert [shlex.split(line.partition(": bigfs ")[2])[1] for line in proposed] == [str(run)] * 2
    with pytest.raises(InputError, match=r"^support \(export --m\): n_features_to_select .* Got 0"):
        result.export(tmp_path / "X.csv", n_features_to_select=0)
    monkeypatch.setattr("os.access", lambda place, mode: False)
    with pytest.raises(InputError, match=r"has no write permission. Give .* for the report \(-o\)"):
        write_report(run)


def test_explained_shares_are_those_of_least_squares() -> None:
    X = np.random.default_rng(0).normal(size=(60, 6))
    X[:, 5] = X[:, 0] + X[:, 1]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    shares = explained_shares(X, [0, 1, 5, 2])
    for k, columns in enumerate(([0], [0, 1], [0, 1], [0, 1, 2])):
        rest = X - X[:, columns] @ np.linalg.lstsq(X[:, columns], X, rcond=None)[0]
        plain = (rest**2).sum() / (X**2).sum()
        assert shares[k] == pytest.approx(1 - plain * 59 / (59 - len(columns)))


def test_the_command_writes_it_unless_told_not_to(bigfs_command, tmp_path: Path) -> None:  # noqa: F811
    given = ["max_variance.yaml"]
    file = tmp_path / given[0]
    file.write_text(
        f"run: {tmp_path}/run\ninput: {{uri: sklearn:iris}}\nmethod: max_variance\n"
        "n_features_to_select: 2\n"
    )
    place = tmp_path / "run" / "report.html"
    assert not bigfs_command("run", str(file), "--set", "report=null").out.count("Report:")
    assert not place.exists()
    assert f"Report: {place}" in bigfs_command("run", str(file)).out
    first = place.read_text()
    shown = bigfs_command(
        "run", str(file), "--set", "report=null", "--set", "n_features_to_select=1"
    )
    assert shown.code == 0 and not place.exists(), "the report of another result is gone"
    bigfs_command("run", str(file))
    assert "2 of 4 features" in first and "2 of 4 features" in place.read_text()
    # A file of that name that is somebody's stays.
    place.write_text("mine")
    shown = bigfs_command("run", str(file))
    assert shown.code == 0 and "the report was not written" in shown.err
    assert bigfs_command("report", str(tmp_path / "run")).code == 2
    assert place.read_text() == "mine"
    other = tmp_path / "other.html"
    assert bigfs_command("report", str(tmp_path / "run"), "-o", str(other)).code == 0
    again = bigfs_command("report", str(tmp_path / "run"), "-o", str(other))
    assert again.code == 2 and "other.html already exists. Give another name." in again.err
    assert bigfs_command("report", str(tmp_path)).code == 2
    for output in (".", f"{tmp_path}/none/x.html", f"{tmp_path}/run/data.zarr/x.html"):
        assert bigfs_command("report", str(tmp_path / "run"), "-o", output).code == 2


def test_a_comparison_has_a_report(tmp_path: Path) -> None:
    bigfs.compare(
        {
            "run": str(tmp_path / "run"),
            "input": {"uri": "sklearn:iris"},
            "methods": ["max_variance", "laplacian_score"],
            "n_features_to_select": [1, 2],
            "evaluate": {"labels": "sklearn:iris", "n_repetitions": 2, "n_init": 1},
        }
    )
    page = _parsed(write_report(tmp_path / "run"))
    assert "2 methods on sklearn:iris" in page.text and "Highest NMI" in page.text
    assert "Selected features in common" in page.text
    assert list(_pictures(page)) == ["Scores by number of features"]
    assert not any(attrs.get("href", "#")[0] != "#" for _, attrs in page.tags)


@pytest.mark.full
@pytest.mark.parametrize("size", ["1280,900", "500,900"], ids=["desktop", "phone"])
def test_a_browser_shows_it(finished: Path, tmp_path: Path, size: str) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no Chromium here: install the system's package chromium")
    place = write_report(finished)
    picture = tmp_path / "page.png"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
               "--disable-background-networking", "--disable-component-update", "--disable-sync",
               f"--user-data-dir={tmp_path}/profile", f"--window-size={size}"]  # fmt: skip
    subprocess.run([*command, f"--screenshot={picture}", place.as_uri()], check=True,
                   capture_output=True, timeout=120)  # fmt: skip
    from matplotlib.image import imread

    pixels = imread(picture)[:, :, :3]
    width = int(size.split(",")[0])
    assert pixels.shape[1] == width
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50, "the page is not empty"
    shown = subprocess.run([*command, "--dump-dom", place.as_uri()], check=True,
                           capture_output=True, text=True, timeout=120)  # fmt: skip
    assert "20 of 64 features" in shown.stdout
