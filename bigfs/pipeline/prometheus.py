"""Figures of a run in the text format of Prometheus, for its collector of text files."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bigfs.config import Config
from bigfs.core import errors
from bigfs.pipeline.data import check_apart
from bigfs.pipeline.update import is_below
from bigfs.results.result import Result
from bigfs.store.location import Location, as_location, write_atomic
from bigfs.store.records import check_new_file

logger = logging.getLogger("bigfs")
_FIRST = b"# HELP bigfs_"
_RUNNING, _BUG = -1, 1
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metrics(AbstractContextManager["Metrics"]):
    """The file of ``output.metrics``, if there is one; what cannot be written is logged.

    A run is done within it: if the block fails the metrics say so. Those of a run that holds the
    directory already are left alone.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    manifest : dict
        Of the run directory; without stages until that is open.
    """

    def __init__(self, config: Config) -> None:
        """Raise ConfigError if there is no folder for them, or they would replace another file."""
        self._config = config
        self.manifest: dict[str, Any] = {"stages": {}}
        self._place: Location | None = None
        if config.output.metrics is None:
            return
        check_apart(config.run, "output.metrics", config.output.metrics)
        place = as_location(config.output.metrics)
        try:
            if isinstance(place, Path):
                place = check_new_file(place, _FIRST)
            elif place.exists() and not place.read_text().startswith(_FIRST.decode()):
                raise errors.InputError(f"{place} already exists, and bigfs did not write it.")
        except (errors.InputError, ValueError) as error:
            raise errors.ConfigError(f"output.metrics: {error}") from None
        self._place = place

    def write(self, code: int = _RUNNING, result: Result | None = None) -> None:
        """Write the figures that are known, at once for whoever reads them.

        Parameters
        ----------
        code : int, default=-1
            The exit code of the run; -1 while it is running.
        result : Result or None, default=None
            None unless it is finished.
        """
        if self._place is None:
            return
        run = self._config.series or as_location(self._config.run).absolute().name
        if code == errors.EXIT_DONE and is_below(self._config, self.manifest):
            code = errors.EXIT_DIFFERENT
        lines = []
        try:
            for name, about, values in _samples(code, self.manifest, result):
                lines += [f"# HELP bigfs_{name} {about}", f"# TYPE bigfs_{name} gauge"]
                for stage, value in values.items():
                    of_stage = f',stage="{stage}"' if stage else ""
                    labels = f'run="{run.translate(_ESCAPED)}"{of_stage}'
                    lines.append(f"bigfs_{name}{{{labels}}} {value!r}")
            write_atomic(self._place, "\n".join(lines) + "\n")
        except (OSError, errors.StorageError) as error:
            logger.warning("%s was not written: %s", self._config.output.metrics, error)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.write(errors.EXIT_INTERRUPTED)
        elif isinstance(error, Exception) and not isinstance(error, errors.RunLockedError):
            self.write(error.exit_code if isinstance(error, errors.BigfsError) else _BUG)


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
