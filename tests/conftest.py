"""Fixtures of all tests: data sets, one process cluster, three schedulers."""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import hypothesis
import pytest

# Examples are the same on every machine, and a slow one is no failure.
hypothesis.settings.register_profile("bigfs", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("bigfs")

REPO = Path(__file__).parents[1]

# A shell has SIGINT ignored in what it starts in the background, and nohup SIGHUP, both in all that
# is started from there. Tests send them.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


# The second tier, which .ci/run runs after the README's command: tests that need workers, a server,
# data sets of their own, processes or compilations, the batteries over all estimators and all bad
# inputs, and files of many whole runs. So do tests marked `cluster` or `data` and those that use a
# bucket, in any file.
SECOND_TIER = (
    "bench",
    "blocks/test_scales.py",
    "cluster",
    "deploy",
    "evaluate/test_protocols.py",
    "evaluate/test_selection.py",
    "graph/test_affinity.py",
    "graph/test_partition.py",
    "graph/test_representation.py",
    "memory",
    "pipeline/test_chance.py",
    "pipeline/test_compare.py",
    "pipeline/test_diff.py",
    "pipeline/test_paper.py",
    "pipeline/test_stale.py",
    "pipeline/test_update.py",
    "report/test_report.py",
    "selectors/test_clusters.py",
    "selectors/test_lfs_run.py",
    "selectors/test_lfs_strategies.py",
    "selectors/test_m3fs_run.py",
    "selectors/test_ndfs_run.py",
    "selectors/test_redundancy.py",
    "selectors/test_spec.py",
    "selectors/test_stability.py",
    "spectral/test_block.py",
    "spectral/test_chebyshev.py",
    "spectral/test_coarse.py",
    "spectral/test_eigsh.py",
    "store/test_anndata_runs.py",
    "store/test_changed.py",
    "store/test_columns.py",
    "store/test_conformance.py",
    "store/test_healing.py",
    "store/test_hostile.py",
    "store/test_labels.py",
    "store/test_ownership.py",
    "store/test_records_read.py",
    "store/test_rows.py",
    "store/test_s3_inputs.py",
    "store/test_s3_places.py",
    "store/test_s3_runs.py",
    "test_absent.py",
    "test_bad_inputs.py",
    "test_estimators.py",
    "test_held_objects.py",
)
# Of these the first tier takes every k-th case, and the second one all others.
FIRST_CASES = {
    "plan/test_strategies.py::test_the_planned_strategy_runs_with_at_most_the_planned_passes": 6,
    "selectors/test_lfs.py::test_equals_the_dense_reference": 3,
    "selectors/test_m3fs.py::test_passes_are_at_most_those_of_the_cost": 3,
    "selectors/test_m3fs.py::test_the_result_solves_the_dense_problem": 3,
    "selectors/test_ndfs.py::test_the_safe_objective_never_rises": 2,
    "store/test_csr.py::test_every_form_becomes_the_same_store": 4,
    "test_cli.py::test_a_setting_that_names_a_column_works_as_it_is_printed": 3,
}

# Tests with many cases of a kind: the second tier takes every k-th of these, from the first on, and
# a run by hand (`-m slow`) all others. Tests of kills, ownership and memory are never among them.
SAMPLED = {
    "cluster/test_callers.py::test_a_fit_ends_with_the_same_result": 6,
    "evaluate/test_selection.py::test_draws_are_judged_alike_side_by_side_and_one_after_another": 3,
    "pipeline/test_stale.py::test_every_setting_changed_alone_gives_what_a_fresh_run_gives": 6,
    "pipeline/test_templates.py::test_the_template_of_the_baselines_runs_with_each": 4,
    "selectors/test_lfs.py::test_rounding_decides_nothing_where_rows_are_near_several_clusters": 4,
    "selectors/test_missing.py::test_labels_of_all_rows_lose_those_that_are_dropped": 4,
    "selectors/test_ndfs.py::test_the_safe_objective_never_rises_on_images": 3,
    "selectors/test_stability.py::test_every_method": 4,
    "selectors/test_stability.py::test_scikit_learn_contract": 5,
    "spectral/test_block.py::test_panels_of_any_width_have_the_same_bits": 4,
    "store/test_hostile.py::test_a_damaged_manifest_is_named_and_fresh_starts_over": 3,
    "store/test_labels.py::test_a_column_of_an_object_judges_as_that_of_a_file": 3,
    "test_any_data.py::test_every_method_on_any_data": 5,
    "test_any_data.py::test_neither_the_unit_nor_a_shift_of_the_data_matters": 4,
    "test_any_data.py::test_rounding_does_not_order_features_that_are_alike": 5,
    "test_docs.py::test_an_example_of_the_gallery_runs": 4,
    "test_estimators.py::test_constant_features_rank_last_with_finite_scores": 7,
    "test_estimators.py::test_every_kind_of_input_gives_the_same_ranking": 5,
    "test_estimators.py::test_mcfs_equals_the_dense_reference": 4,
    "test_estimators.py::test_ranking_is_the_same_on_every_scheduler": 5,
    "test_estimators.py::test_scikit_learn_contract": 7,
    "test_held_objects.py::test_graphs_and_embeddings": 4,
    "test_held_objects.py::test_neighbors_transformer": 5,
    "test_held_objects.py::test_selectors": 5,
    "test_held_objects.py::test_stability_selection": 4,
}


def _is_left_out(item: pytest.Item, taken: dict[str, int], seen: Counter[str]) -> bool:
    """Say whether a case is one that its tier leaves to the next one: all but every k-th."""
    file = item.path.relative_to(REPO / "tests").as_posix()
    name = f"{file}::{getattr(item, 'originalname', '')}"
    if name not in taken or item.get_closest_marker("slow") is not None:
        return False
    seen[name] += 1
    return (seen[name] - 1) % taken[name] != 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the second tier and of the slow one; single ones carry marks themselves."""
    seen: Counter[str] = Counter()
    for item in items:
        if _is_left_out(item, SAMPLED, seen):
            item.add_marker("slow")
        if _is_left_out(item, FIRST_CASES, seen):
            item.add_marker("full")
        by_file = item.path.relative_to(REPO / "tests").as_posix().startswith(SECOND_TIER)
        by_marker = any(item.get_closest_marker(name) for name in ("cluster", "data"))
        if by_file or by_marker or "s3_endpoint" in getattr(item, "fixturenames", ()):
            item.add_marker("full")


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """A test that changes the level of the package's log would silence the tests after it."""
    logger = logging.getLogger("bigfs")
    before = logger.level
    yield
    after = logger.level
    logger.setLevel(before)
    assert after == before


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the benchmark data sets; tests that need it are skipped without it."""
    named = os.environ.get("BIGFS_DATA")
    folder = Path(named) if named else REPO.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the data sets are not here: set BIGFS_DATA to their folder (now {folder})")
    return folder


@pytest.fixture
def bare() -> None:
    """For tests that look at everything in a folder: no canary is planted there."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Address of the one cluster of all tests: two spawned workers of one thread."""
    from bigfs.runtime.connection import local_cluster

    with local_cluster(2, 1, 3 * 2**29) as running:
        yield running.scheduler_address


@pytest.fixture
def client(cluster: str) -> Iterator[Any]:
    """A client of the cluster, in scope while the test runs."""
    from distributed import Client

    with Client(cluster) as connected:
        yield connected


@pytest.fixture(
    params=["synchronous", "threads", pytest.param("processes", marks=pytest.mark.cluster)]
)
def scheduler(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run one body without threads, with threads, and on the process cluster."""
    if request.param == "processes":
        request.getfixturevalue("client")
        yield request.param
        return
    with dask.config.set(scheduler=request.param):
        yield request.param


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Address of a real S3-compatible server that lives as long as the tests."""
    from tests._s3 import server

    with server() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URI of a new bucket, found by the environment as users set it."""
    import uuid

    from tests._s3 import create_bucket, environment

    for name, value in environment(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    name = f"lab-{uuid.uuid4().hex[:8]}"
    create_bucket(s3_endpoint, name)
    yield f"s3://{name}"
