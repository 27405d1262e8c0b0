"""The pages in Markdown: links lead somewhere, commands run as they stand."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bigfs
from bigfs.cli import main
from bigfs.core import errors
from bigfs.selectors.registry import load_comparison, load_config
from tests.conftest import REPO

README = (REPO / "README.md").read_text()
PAGES = [
    REPO / "README.md",
    REPO / "deploy" / "README.md",
    REPO / "pipelines" / "README.md",
    REPO / "pipelines" / "paper" / "README.md",
    REPO / "tests" / "README.md",
    REPO / "tests" / "bench" / "README.md",
]
BENCHES = sorted(path.stem for path in (REPO / "tests" / "bench").glob("bench_*.py"))


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", page.read_text())
    assert links
    for link in links:
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


def test_pages_of_the_site_begin_and_end_at_headings() -> None:
    for page in sorted((REPO / "docs").glob("*.md")):
        included = ""
        for line in page.read_text().splitlines():
            if line.startswith("```{include} "):
                included = (page.parent / line.split()[1]).read_text()
            elif line.startswith((":start-after:", ":end-before:")):
                assert f"\n{json.loads(line.split(': ', 1)[1])}\n" in f"\n{included}", (page, line)


def test_the_readme_is_short_and_leads_to_every_other_page() -> None:
    assert len(README.splitlines()) <= 180
    for page in PAGES[1:]:
        assert f"]({page.relative_to(REPO).as_posix()})" in README


@pytest.mark.full
def test_the_printed_result_is_that_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [shown] = re.findall(r"^```text\n(.+?)^```", README, flags=re.M | re.S)
    with pytest.raises(SystemExit) as ended:
        main(["run", str(REPO / "pipelines/quickstart.yaml"), "--set", f"run={tmp_path}/run"])
    assert not ended.value.code
    printed = capsys.readouterr().out.splitlines()
    for line in shown.splitlines():
        assert line.strip() == "..." or line in printed, line


@pytest.mark.full
def test_the_commands_for_spectra_take_a_table_of_wavelengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header of plain wavelengths may as well be a sample: the command says that it is none."""
    monkeypatch.chdir(tmp_path)
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 80)), columns=range(400, 800, 5))
    X.to_csv("spectra.csv", index=False)
    block = README.partition("columns are wavelengths:")[2].split("```")[1]
    commands = [line for line in block.replace("\\\n", "").splitlines() if "bigfs " in line]
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(command, comments=True)[1:])
        assert not ended.value.code, command
    assert (tmp_path / "runs" / "spectra-mcfs" / "features.csv").exists()


def test_the_recipe_of_conda_has_the_dependencies_of_the_package() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    recipe = (REPO / "deploy" / "conda" / "recipe.yaml").read_text()
    renamed = {"dask": "dask-core", "matplotlib": "matplotlib-base"}
    run = re.findall(r"^    - (\S+) (>=\S+)$", recipe.partition("\n  run:\n")[2], flags=re.M)
    wanted = [re.match(r"([\w-]+)(.*)", text) for text in project["dependencies"]]
    assert run == [
        ("python", project["requires-python"]),
        *((renamed.get(m[1], m[1].lower()), m[2]) for m in wanted if m),
    ]
    assert f'version: "{bigfs.__version__}"' in recipe


def test_the_changelog_can_be_read_in_two_minutes() -> None:
    text = (REPO / "CHANGELOG.md").read_text()
    assert f"## {bigfs.__version__}" in text and len(text.splitlines()) <= 120


def test_the_command_that_runs_the_tests_is_marked() -> None:
    """`.ci/run` runs the block after the marker."""
    [block] = re.findall(r"^<!-- ci: test -->\n```bash\n(.+?)^```", README, flags=re.M | re.S)
    assert "pytest" in block


def test_the_readme_explains_every_exit_code() -> None:
    explained = {int(code) for code in re.findall(r"^\| (\d+) \|", README, flags=re.MULTILINE)}
    assert explained == {value for name, value in vars(errors).items() if name.startswith("EXIT_")}


def test_four_methods_are_in_the_readme_and_all_in_the_next_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["schema"])
    methods = json.loads(capsys.readouterr().out)["properties"]["method"]["enum"]
    few, all_of_them = (
        set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE))
        for page in (README, PAGES[2].read_text())
    )
    assert few == {"mcfs", "ndfs", "column_subset", "highly_variable"}
    assert all_of_them == set(methods)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_pipelines_that_are_named_are_there(page: Path) -> None:
    for name in re.findall(r"\bpipelines/[\w/]+\.yaml", page.read_text()):
        (load_comparison if "compare" in name or "paper" in name else load_config)(REPO / name)


def test_benchmarks_are_run_as_modules_that_exist() -> None:
    texts = {page: page.read_text() for page in PAGES}
    texts |= {path: path.read_text() for path in (REPO / "tests" / "bench").glob("*.py")}
    for path, text in texts.items():
        assert not re.search(r"python3? tests/bench/", text), path
        for name in re.findall(r"python -m tests\.bench\.([a-z_0-9]+)", text):
            assert (REPO / "tests" / "bench" / f"{name}.py").exists(), (path, name)


def test_the_page_of_benchmarks_lists_each() -> None:
    rows = re.findall(r"^\| (`.+?) \|", PAGES[-1].read_text(), flags=re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert listed >= set(BENCHES)
    for name in BENCHES:
        usage = (REPO / "tests" / "bench" / f"{name}.py").read_text()
        assert f"python -m tests.bench.{name}" in usage, name


def test_the_tests_of_every_module_can_be_found() -> None:
    """In the file of its name, in those of its method, or in one that the page of tests names."""
    rows = re.findall(r"^\| (.*`.*\.py`.*|.*`.*/`.*) \| (.*`.*) \|$", PAGES[4].read_text(), re.M)
    assert len(rows) > 40
    package, listed = REPO / "bigfs", set()
    for modules, tests in rows:
        for name in re.findall(r"`([\w/*.]+(?:\.py|/))`", modules):
            matching = list(package.glob(f"{name}*.py" if name.endswith("/") else name))
            assert matching, name
            listed.update(matching)
        for name in re.findall(r"`(.*?)`", tests):
            assert (REPO / name).is_file(), name
    for path in set(package.rglob("*.py")) - listed - set(package.rglob("__init__.py")):
        room, *method = path.relative_to(package).parent.parts or (".",)
        names = [f"test_{path.stem}.py", *(f"test_{name}*.py" for name in method)]
        assert any(list((REPO / "tests" / room).glob(name)) for name in names), path
