"""Figures of a finished run in the text format of Prometheus, for its collector of text files."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from bigfs.config import Config
from bigfs.core.errors import ConfigError, StorageError
from bigfs.pipeline.data import check_apart
from bigfs.results.result import Result
from bigfs.store.location import as_location, write_atomic

logger = logging.getLogger("bigfs")
_FIRST = "# HELP bigfs_"


def check_metrics(config: Config) -> None:
    """Raise ConfigError if the metrics would replace another file, or lie in the run directory."""
    if config.output.metrics is None:
        return
    check_apart(config.run, "output.metrics", config.output.metrics)
    place = as_location(config.output.metrics)
    try:
        text = place.read_text() if place.exists() else _FIRST
    except (OSError, ValueError):
        text = ""
    if not text.startswith(_FIRST):
        raise ConfigError(
            f"output.metrics: {place} is there, and no file of metrics that bigfs wrote. Give "
            "another name."
        )


def write_metrics(config: Config, result: Result) -> None:
    """Write the metrics of a run, at once for whoever reads them; a failure is logged."""
    if config.output.metrics is None:
        return
    try:
        write_atomic(as_location(config.output.metrics), metrics_of(config, result))
    except (OSError, StorageError) as error:
        logger.warning("%s was not written: %s", config.output.metrics, error)


def metrics_of(config: Config, result: Result) -> str:
    """Return the metrics of a run as text."""
    series = (config.series or result.path.name).translate(_ESCAPED)
    lines, last = [], ""
    for name, about, labels, value in _samples(result):
        if name != last:
            lines += [f"# HELP bigfs_{name} {about}", f"# TYPE bigfs_{name} gauge"]
        both = ",".join(f'{key}="{text}"' for key, text in {"run": series, **labels}.items())
        lines.append(f"bigfs_{name}{{{both}}} {value!r}")
        last = name
    return "\n".join(lines) + "\n"


_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _samples(result: Result) -> Iterator[tuple[str, str, dict[str, str], float]]:
    """Yield name, meaning, labels and value of each metric; those of a name follow each other."""
    manifest, stages = result.manifest, result.manifest["stages"]
    yield "rows", "Rows of the data.", {}, float(result.n_samples)
    yield (
        "new_rows",
        "Rows since the run that was updated; 0 if none was.",
        {},
        float(manifest.get("updated_from", {}).get("new_rows", 0)),
    )
    yield (
        "finished_seconds",
        "When the last stage was finished, since 1970.",
        {},
        max(stage["committed"] for stage in stages.values()),
    )
    for name, stage in stages.items():
        yield "stage_seconds", "Seconds that a stage took.", {"stage": name}, stage["seconds"]
    for name, stage in stages.items():
        peak = float(stage["measured_peak_bytes"])
        yield "stage_peak_bytes", "Largest memory of a process.", {"stage": name}, peak
    if result.recall is not None:
        yield "recall", "Share of the true neighbors in the graph.", {}, result.recall["value"]
    if "compared" in manifest:
        share = manifest["compared"]["share"]
        yield "selection_kept", "Share of the selection that the former run had too.", {}, share
