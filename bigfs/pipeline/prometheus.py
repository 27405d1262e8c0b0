"""Figures of a run in the text format of Prometheus, for its collector of text files."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bigfs.config import Config
from bigfs.core import errors
from bigfs.pipeline.data import check_apart
from bigfs.pipeline.update import is_below
from bigfs.results.result import Result
from bigfs.store.location import as_location, write_atomic
from bigfs.store.objects import ObjectPath
from bigfs.store.records import check_new_file

logger = logging.getLogger("bigfs")
_FIRST = b"# HELP bigfs_"
_RUNNING, _BUG = -1, 1
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metrics:
    """The file of ``output.metrics``, if there is one; what cannot be written is logged.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    manifest : dict or None
        Of the run directory, once it is open.
    """

    def __init__(self, config: Config) -> None:
        """Raise ConfigError if there is no folder for them, or they would replace another file."""
        self._config = config
        self.manifest: dict[str, Any] | None = None
        if config.output.metrics is None:
            return
        check_apart(config.run, "output.metrics", config.output.metrics)
        place = as_location(config.output.metrics)
        try:
            if isinstance(place, ObjectPath):
                if place.exists() and not place.read_text().startswith(_FIRST.decode()):
                    raise errors.InputError(f"{place} already exists, and bigfs did not write it.")
            else:
                check_new_file(place, _FIRST)
        except (errors.InputError, ValueError) as error:
            raise errors.ConfigError(f"output.metrics: {error}") from None

    def write(self, code: int = _RUNNING, result: Result | None = None) -> None:
        """Write the figures that are known, at once for whoever reads them."""
        if self._config.output.metrics is None:
            return
        place = as_location(self._config.output.metrics)
        place = Path(os.path.realpath(place)) if isinstance(place, Path) else place
        try:
            write_atomic(place, metrics_of(self._config, code, self.manifest, result))
        except (OSError, errors.StorageError) as error:
            logger.warning("%s was not written: %s", self._config.output.metrics, error)


@contextmanager
def writing_metrics(config: Config) -> Iterator[Metrics]:
    """Yield the metrics of a run; if the block fails they say so.

    Those of a run that holds the directory already are left alone.
    """
    metrics = Metrics(config)
    try:
        yield metrics
    except errors.RunLockedError:
        raise
    except KeyboardInterrupt:
        metrics.write(errors.EXIT_INTERRUPTED)
        raise
    except Exception as error:
        metrics.write(error.exit_code if isinstance(error, errors.BigfsError) else _BUG)
        raise


def metrics_of(
    config: Config, code: int, manifest: dict[str, Any] | None, result: Result | None
) -> str:
    """Return the metrics of a run as text.

    Parameters
    ----------
    config : Config
    code : int
        The exit code of the run; -1 while it is running.
    manifest : dict or None
        Of the run directory; None if the run did not come to open it.
    result : Result or None
        None unless it is finished.
    """
    name = config.series or as_location(config.run).absolute().name
    series, manifest = name.translate(_ESCAPED), manifest or {"stages": {}}
    if code == errors.EXIT_DONE and is_below(config, manifest):
        code = errors.EXIT_DIFFERENT
    lines = []
    for name, about, values in _samples(code, manifest, result):
        lines += [f"# HELP bigfs_{name} {about}", f"# TYPE bigfs_{name} gauge"]
        for stage, value in values.items():
            of_stage = f',stage="{stage}"' if stage else ""
            lines.append(f'bigfs_{name}{{run="{series}"{of_stage}}} {value!r}')
    return "\n".join(lines) + "\n"


def _samples(
    code: int, manifest: dict[str, Any], result: Result | None
) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield name, meaning and values of each metric, by stage or by no name."""
    stages = manifest["stages"]
    yield "exit_code", "How the last run ended; -1 while it is running.", {"": code}
    if result is not None:
        new = float(manifest.get("updated_from", {}).get("new_rows", 0))
        yield "rows", "Rows of the data.", {"": float(result.n_samples)}
        yield "new_rows", "Rows since the run that was updated; 0 if none was.", {"": new}
    if stages:
        last = max(stage["committed"] for stage in stages.values())
        yield "finished_seconds", "When the last stage was finished, since 1970.", {"": last}
        seconds = {name: stage["seconds"] for name, stage in stages.items()}
        yield "stage_seconds", "Seconds that a stage took.", seconds
        peaks = {name: float(stage["measured_peak_bytes"]) for name, stage in stages.items()}
        yield "stage_peak_bytes", "Largest memory of a process.", peaks
    if result is not None and result.recall is not None:
        yield "recall", "Share of the true neighbors in the graph.", {"": result.recall["value"]}
    if result is not None and "compared" in manifest:
        share = manifest["compared"]["share"]
        yield "selection_kept", "Share of the selection that the former run had too.", {"": share}
