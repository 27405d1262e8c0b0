"""The command line: parse arguments, call the library, print results."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal, get_args, get_origin

import click

from bigfs import __version__
from bigfs.config.loading import validated
from bigfs.config.sections import OPENING, InputConfig
from bigfs.core.errors import EXIT_DIFFERENT, EXIT_DOES_NOT_FIT, EXIT_DONE
from bigfs.core.yamltext import read_yaml
from bigfs.runtime.terminal import (
    as_program,
    choose_format,
    exit_code,
    interrupts,
    messages,
    say,
    show,
)
from bigfs.selectors.registry import json_schema, load_comparison, load_config, write_schema

_pipeline = click.argument("pipeline", type=click.Path(dir_okay=False))
_overrides = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Change a setting of the file; may be repeated.",
)
_scheduler = click.option(
    "--scheduler", metavar="ADDRESS", help="Use the workers of a running Dask scheduler."
)
_fresh = click.option(
    "--fresh", is_flag=True, help="Repeat finished stages; each is kept until it is replaced."
)
_quick = click.option(
    "--quick",
    is_flag=True,
    help="Select the features that fits on small samples agree on; no graph of all rows. If the "
    "data have fewer rows than the samples together, the full run is done instead.",
)
_quiet = click.option("--quiet", is_flag=True, help="Show only warnings and the result.")


def _choice(*names: str, of: tuple[str, ...], text: str, **more: Any) -> Any:
    """Return an option that accepts one of the words ``of``; the first is its default."""
    kind = click.Choice(of)
    return click.option(*names, type=kind, default=of[0], show_default=True, help=text, **more)


_form = _choice("--format", "form", of=("text", "json"), text="What to print.")
_log_format = _choice(
    "--log-format",
    of=("text", "json"),
    text="Format of the log on stderr; json: one object per line.",
    expose_value=False,
    is_eager=True,
    callback=lambda context, option, value: choose_format(value),
)


def _count(name: str, default: int, text: str) -> Any:
    """Return an option that accepts an integer of at least 1."""
    at_least_one = click.IntRange(min=1)
    return click.option(name, type=at_least_one, default=default, show_default=True, help=text)


# Settings that are texts even if they look like numbers.
_TEXTS = ("variable", "layer", "index", "labels")


def settings_of_input(*names: str) -> Callable[[Any], Any]:
    """Return a decorator that adds an option for each of the given settings of the input."""

    def add(command: Any) -> Any:
        for name in reversed(names):
            field = InputConfig.model_fields[name]
            choices = [str(value).lower() for value in get_args(field.annotation)]
            is_choice = get_origin(field.annotation) is Literal
            option = click.option(
                f"--{name.replace('_', '-')}",
                type=click.Choice(choices) if is_choice else str,
                metavar=None if is_choice else "NAME" if name in _TEXTS else "VALUE",
                help=(field.description or "").replace("null:", "Default:"),
            )
            command = option(command)
        return command

    return add


def read_input(uri: str, settings: dict[str, str | None]) -> InputConfig:
    """Return the settings of an input from options, whose values are parsed as in --set."""
    given = {
        name: text if name in _TEXTS else read_yaml(text, f"--{name}")
        for name, text in settings.items()
        if text is not None
    }
    return validated(InputConfig, {"uri": uri, **given}, "the options")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="bigfs")
def cli() -> None:
    """Unsupervised feature selection on data larger than memory.

    \b
    A first result, with built-in data:
        bigfs run quickstart
    The same for your own matrix (rows are samples), from a commented file:
        bigfs init mcfs
        bigfs run mcfs.yaml --set input.uri=my.npy

    \b
    Exit codes: 0 done; 2 bad input or configuration; 3 does not fit the memory limit;
    4 cluster or storage failure, safe to run again; 5 numerical failure;
    6 'diff --fail-below' or output.diff_below: selections have less in common;
    75 another run holds the run directory; 130 interrupted, safe to resume.

    \b
    Completion of commands and options, for bash (similar for zsh and fish):
        eval "$(_BIGFS_COMPLETE=bash_source bigfs)"
    """


@cli.command()
@_pipeline
@_overrides
@_scheduler
@_fresh
@_quick
@click.option(
    "--performance-report",
    metavar="FILE.html",
    help="Save Dask's performance report of the workers (needs a cluster).",
)
@_log_format
@_quiet
def run(pipeline: str, overrides: tuple[str, ...], quick: bool, quiet: bool, **options: Any) -> int:
    """Run a pipeline from data to ranked features.

    If a run was stopped, the same command continues it after its last finished stage.

    \b
    Examples:
        bigfs run pipelines/quickstart.yaml
        bigfs run my.yaml --set graph.n_neighbors=10 --set run=runs/k10
        bigfs run my.yaml --scheduler tcp://127.0.0.1:8786
        bigfs run my.yaml --quick --set run=runs/quick
    """
    config = load_config(pipeline, [*overrides, *(["quick=true"] if quick else [])])
    from bigfs.pipeline.finished import report_of_run
    from bigfs.pipeline.run import run as run_pipeline
    from bigfs.pipeline.update import is_below

    with messages(quiet):
        result = run_pipeline(config, **options)
        lines = [result.summary()]
        if config.report is not None:
            lines += report_of_run(result.path)
    show("\n".join(lines), kept=True)
    return EXIT_DIFFERENT if is_below(config, result.manifest) else EXIT_DONE


@cli.command()
@_pipeline
@_overrides
@_scheduler
@_quick
@_form
def plan(
    pipeline: str, overrides: tuple[str, ...], scheduler: str | None, quick: bool, form: str
) -> None:
    """Print the cost of a pipeline without running it.

    For each stage: the largest resident size of a worker, bytes of the data read, passes over
    them, tasks, the largest task graph, requests to storage, scratch and estimated processor
    time. If it does not fit memory_limit, the workers or the disk, settings that would fit are
    proposed, and the exit code is 3.

    \b
    Examples:
        bigfs plan pipelines/mcfs.yaml
        bigfs plan my.yaml --set memory_limit=2GiB --scheduler tcp://127.0.0.1:8786
        bigfs plan my.yaml --quick
    """
    config = load_config(pipeline, [*overrides, *(["quick=true"] if quick else [])])
    from bigfs.plan.planning import plan_pipeline

    costs = plan_pipeline(config, scheduler=scheduler)
    show(costs.text() if form == "text" else json.dumps(costs.as_dict(), indent=2))
    if form == "text" and config.update is not None:
        show("These are the costs of a full run; an update of the former run takes less.")
    if not costs.fits:
        sys.exit(EXIT_DOES_NOT_FIT)


@cli.command()
@click.argument("source")
@click.argument("dest")
@settings_of_input(*OPENING, "missing")
@click.option("--overwrite", is_flag=True, help="Replace an existing store.")
@click.option("--append", is_flag=True, help="Add the rows to an existing store.")
@click.option("--memory-limit", metavar="SIZE", help="Memory that this process may use (4 GiB).")
@_quiet
def ingest(
    source: str,
    dest: str,
    overwrite: bool,
    append: bool,
    memory_limit: str | None,
    quiet: bool,
    **settings: Any,
) -> None:
    """Write a matrix as a chunked zarr store.

    Streams block by block, refuses values that are not numbers, and stores a checksum of each
    chunk. SOURCE is a .npy, .npz, .csv, .parquet, .mat, .h5ad or .zarr path, or sklearn:NAME;
    SOURCE and DEST may be s3://, gs:// or az:// addresses (pip install 'bigfs[s3]').

    \b
    Examples:
        bigfs ingest cells.csv cells.zarr
        bigfs ingest scans.mat scans.zarr --variable fea --missing mean
        bigfs ingest scene.nc::radiance scene.zarr --features band
        bigfs ingest sklearn:digits digits.zarr
        bigfs ingest tonight.parquet cells.zarr --append
    """
    from bigfs.store.ingest import ingest as ingest_matrix
    from bigfs.store.source import as_part, open_matrix

    given = read_input(source, settings)
    with messages(quiet):
        with as_part() if append else nullcontext():
            matrix = open_matrix(given.uri, **given.opening)
        report = ingest_matrix(
            matrix,
            dest,
            missing=given.missing,
            overwrite=overwrite,
            append=append,
            memory_limit=memory_limit,
        )
    show(report.text(given.missing), kept=True)
    if given.opening["labels"]:
        named = "FILE::COLUMN, of all rows" if append else f"{source}::COLUMN"
        show(f"Labels are not stored: name them as evaluate.labels={named}.")


@cli.command()
@click.argument("path")
@click.option("--verify", is_flag=True, help="Read every chunk and compare its checksum.")
@settings_of_input(*OPENING)
@_quiet
def inspect(path: str, verify: bool, quiet: bool, **settings: Any) -> None:
    """Describe data, a store, a run or a result.

    For data: the columns, the errors that a run would report, and settings that avoid them.

    \b
    Examples:
        bigfs inspect cells.csv
        bigfs inspect runs/quickstart
        bigfs inspect cells.zarr --verify
        bigfs inspect scene.nc --features band
    """
    from bigfs.pipeline.inspect import inspect as inspect_path

    given = read_input(path, settings)
    with messages(quiet):
        opening = given.model_dump(include=set(OPENING), exclude_defaults=True)
        text = inspect_path(given.uri, verify=verify, **opening)
    show(text)


@cli.command()
@click.argument("result")
@click.option(
    "--labels",
    required=True,
    metavar="URI",
    help="Known classes, in the order of the rows: y.npy, FILE.npz::NAME, FILE.csv::COLUMN or "
    "sklearn:digits.",
)
@_count("--n-repetitions", 20, "Runs of k-means to average.")
@_count("--n-init", 1, "Initializations of each run; the one with the lowest inertia counts.")
@_choice(
    "--init",
    of=("k-means++", "random"),
    text="Initial centers; random uses random rows, as the papers do.",
)
@_quiet
def evaluate(result: str, quiet: bool, **options: Any) -> None:
    """Compare a selection with known labels.

    RESULT is a run directory. The selected features are compared with all and with random ones by
    the accuracy, mutual information and Rand index of k-means and the 1-nearest-neighbor error.
    More than 100 features are evaluated by their first 50 principal components.

    \b
    Examples:
        bigfs evaluate runs/quickstart --labels sklearn:digits
        bigfs evaluate runs/cells --labels cells.csv::type --n-repetitions 5
    """
    from bigfs.pipeline.finished import evaluate_result

    with messages(quiet):
        evaluation = evaluate_result(result, **options)
    show(evaluation.summary())


@cli.command()
@click.argument("pipelines", metavar="PIPELINE...", nargs=-1, required=True)
@_overrides
@_scheduler
@_fresh
@_choice(
    "--format",
    "form",
    of=("text", "csv", "json"),
    text="Format to print; the run directory has all of them.",
)
@click.option(
    "--ranks",
    "folder",
    metavar="FOLDER",
    default="runs/ranks",
    show_default=True,
    help="With several files: folder for the ranks of the methods.",
)
@_log_format
@_quiet
def compare(
    pipelines: tuple[str, ...],
    overrides: tuple[str, ...],
    form: str,
    folder: str,
    quiet: bool,
    **options: Any,
) -> None:
    """Compare several methods on the same data, in one table and one figure.

    Ingest, graph, eigenvectors and Gram matrix are computed once for all methods. If a
    comparison was stopped, the same command continues it. Several files, one per data set, also
    give the mean ranks of the methods, with Friedman's test and Nemenyi's critical difference.

    \b
    Examples:
        bigfs compare pipelines/compare/digits.yaml
        bigfs compare my.yaml --set evaluate.n_repetitions=5 --format csv > table.csv
        bigfs compare faces.yaml digits.yaml letters.yaml --ranks runs/ranks
    """
    configs = [load_comparison(pipeline, overrides) for pipeline in pipelines]
    from bigfs.pipeline import compare as compare_methods
    from bigfs.pipeline.compare import compare_all

    with messages(quiet):
        tables: list[Any]
        if len(configs) == 1:
            tables = [compare_methods(configs[0], **options)]
        else:
            of_sets, ranks = compare_all(configs, folder, **options)
            tables = [*(of_sets if form == "text" else []), ranks]
    show("\n\n".join(getattr(table, form)().rstrip("\n") for table in tables), kept=True)


@cli.command()
@click.argument("run")
@click.option("-o", "--output", metavar="FILE", help="A new file. Default: RUN/report.html.")
def report(run: str, output: str | None) -> None:
    """Write the report of a run or a comparison as one self-contained HTML file.

    'bigfs run' writes it at the end, unless the pipeline sets report: null.

    \b
    Examples:
        bigfs report runs/mcfs
        bigfs report runs/digits -o digits.html
    """
    from bigfs.pipeline.finished import write_report

    show(f"{write_report(run, output)} is written.", kept=True)


@cli.command()
@click.argument("run")
@click.argument("dest")
@click.option("--m", "n_features_to_select", metavar="M", type=int, help="Number of features.")
@click.option("--by-rank", is_flag=True, help="Order the columns by rank.")
@click.option(
    "--ids",
    is_flag=True,
    help="Add the rows' ids (input.index), or their numbers from 0 if no row was left out.",
)
@click.option(
    "--annotate", is_flag=True, help="Copy the whole AnnData, with the result in its var."
)
@click.option("--overwrite", is_flag=True, help="Replace a file, or a store that bigfs wrote.")
@_log_format
@_quiet
def export(run: str, dest: str, annotate: bool, quiet: bool, **options: Any) -> None:
    """Write the selected columns of a run's data to DEST.

    The name of DEST chooses the format: .zarr, .parquet, .feather, .npy, .csv or .h5ad; .tif for
    an image. Columns keep the order of the input, their names, and their type if the file declares
    it; if missing values were filled (input.missing), or an image has a no-data value, all are
    floats (bigfs.to_grid puts them on a map). DEST appears when the export is complete.
    For an AnnData, a .h5ad keeps everything except the columns that are left out, unless rows were
    left out (input.rows, drop_rows): then it has only the selected columns. With --annotate it
    is a copy of the input, a .h5ad or AnnData .zarr, with bigfs_rank, bigfs_score and
    bigfs_selected in its var, for mask_var="bigfs_selected" of scanpy's functions. With
    --overwrite it may be the input itself, which is replaced in one step.

    \b
    Examples:
        bigfs export runs/mcfs selected.npy
        bigfs export runs/mcfs cells_selected.h5ad --annotate
        bigfs export runs/mcfs selected.parquet --m 20 --by-rank
    """
    from bigfs.results.annotate import export_result
    from bigfs.results.result import open_result

    with messages(quiet):
        place = export_result(open_result(run), dest, annotate=annotate, **options)
    show(f"{place} is written.", kept=True)


@cli.command()
@click.argument("first", metavar="RUN_A")
@click.argument("second", metavar="RUN_B")
@click.option(
    "--fail-below",
    metavar="SHARE",
    type=click.FloatRange(0, 1),
    help="Exit with code 6 if the selections share less than this, such as 0.8 of the larger one.",
)
@_form
def diff(first: str, second: str, fail_below: float | None, form: str) -> int:
    """Compare the selections of two runs.

    Prints the features that were added, removed or changed their rank, the overlap compared
    with chance, and the differences in data, settings and versions.

    \b
    Examples:
        bigfs diff runs/nightly-2026-11-21 runs/nightly-2026-11-22 --fail-below 0.8
        bigfs diff runs/mcfs runs/ndfs --format json
    """
    from bigfs.pipeline.diff import diff_runs

    difference = diff_runs(first, second)
    show(getattr(difference, form)().rstrip("\n"))
    share = difference.overlap.share
    if fail_below is None or share >= fail_below:
        return EXIT_DONE
    text = f"the share in common, {share:.2f}, is below --fail-below {fail_below:g}"
    say(text, logging.WARNING, event="different", exit_code=EXIT_DIFFERENT)
    return EXIT_DIFFERENT


@cli.command()
@click.argument("template", default="mcfs")
@click.option("-o", "--output", metavar="FILE", help="The file to write. Default: ./TEMPLATE.yaml.")
@click.option("--list", "listed", is_flag=True, help="List the templates instead.")
def init(template: str, output: str | None, listed: bool) -> None:
    """Write a commented pipeline file to start from.

    The schema that its first line names for editors is written beside it. Commands also accept the
    name of a template in place of a pipeline file: bigfs run quickstart.

    \b
    Examples:
        bigfs init
        bigfs init compare/digits -o my-comparison.yaml
    """
    from bigfs.config.loading import described_templates, write_template

    if listed:
        show("\n".join(described_templates()))
        return
    file, command = write_template(template, output)
    write_schema(file, command)
    then = f"Set input.uri in it to your data, then: bigfs {command} {file}"
    show(f"{file} is written. {then}", kept=True)


@cli.command()
@click.argument("kind", type=click.Choice(["run", "compare"]), default="run")
def schema(kind: str) -> None:
    """Print the JSON schema of pipeline files or of comparisons.

    Editors use it to complete keys and mark mistakes.

    \b
    Examples:
        bigfs schema > bigfs.schema.json
        bigfs schema compare > bigfs-compare.schema.json
    """
    show(json.dumps(json_schema(kind), indent=2))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the exit code of the command.

    Parameters
    ----------
    arguments : list of str or None, default=None
        The arguments. None: those of the process.
    """
    choose_format("text")
    with interrupts():
        code = exit_code(cli, arguments)
    sys.exit(code)


def program() -> None:
    """Run the command line as the main program, where an interrupt ends the process at once."""
    as_program(main)


if __name__ == "__main__":
    program()
