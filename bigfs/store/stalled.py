"""Runs that are interrupted again and again before anything more of their work is kept."""

from __future__ import annotations

import json
import zlib
from typing import Any

from bigfs.store.location import Location, files_below

# An interrupt that comes sooner is not that of a time limit.
LONG_SECONDS = 300.0
# Of a manifest: a digest of what was kept when a run was interrupted last, after so long.
KEPT = "kept"


def why_stalled(manifest: dict[str, Any], checkpoints: Location, seconds: float) -> str | None:
    """Note what an interrupted run has kept; return why it will never end, if it does not.

    Parameters
    ----------
    manifest : dict
        Of the run, which is changed.
    checkpoints : Path or ObjectPath
        Folder of its checkpoints.
    seconds : float
        Since the run began.
    """
    if seconds < LONG_SECONDS:
        return None
    stages = {name: record["attempt"] for name, record in manifest["stages"].items()}
    kept = json.dumps([stages, files_below(checkpoints)], sort_keys=True)
    before, manifest[KEPT] = manifest.get(KEPT), f"{zlib.crc32(kept.encode()):08x}"
    if before != manifest[KEPT]:
        return None
    return (
        f"this start was interrupted after {seconds / 60:.0f} minutes, the one before it too, and "
        f"nothing was kept in between: the stage after {', '.join(stages) or 'the beginning'} "
        "takes longer than a start may. Give it more time or more workers, then run again."
    )
