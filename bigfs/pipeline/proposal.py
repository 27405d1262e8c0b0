"""Commands that `inspect` proposes: each is tried, up to the plan, before it is printed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.plan.planning import check_config
from bigfs.selectors.configs import load_config
from bigfs.selectors.scoring import resolved
from bigfs.store.csr import SparseSource
from bigfs.store.formats.annotated import OBS_NAMES, contents
from bigfs.store.location import Location
from bigfs.store.source import Source, as_path, open_matrix

# As many genes as the field's first step keeps.
_GENES = 2000
_HEAD_ROWS, _SHOWN = 1000, 20


def proposal(
    path: str | Location, settings: Sequence[str], method: str = "mcfs"
) -> tuple[str, str]:
    """Return the command of a run with some settings, and why it would be refused, if it would.

    The input is opened, its first rows are read, and the settings are checked against it. Fewer
    features are asked for where the template would keep more than there are.
    """
    given = [f"input.uri={path}", *settings]
    refusal = ""
    try:
        config = load_config(method, given)
        source = open_matrix(config.input.uri, **config.opening)
        next(source.iter_blocks(_HEAD_ROWS), None)
        if config.n_features_to_select >= source.n_features:
            given.append(f"n_features_to_select={max(1, source.n_features // 2)}")
            config = load_config(method, given)
        check_config(resolved(config, source), source)
    except InputError as error:
        refusal = str(error)
    words = [word for setting in given for word in ("--set", setting)]
    return shlex.join(["bigfs", "run", method, *words]), refusal


def annotated_lines(path: str | Location, source: Source, opening: Mapping[str, Any]) -> list[str]:
    """Return what else an AnnData holds, and the command that fits it; nothing of other data."""
    place = as_path(str(path))
    if source.index != OBS_NAMES or place is None:
        return []
    members = contents(place)
    lines = [
        f"{group}: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
        for group, names in members.items()
        if names
    ]
    settings = [f"input.{name}={value}" for name, value in opening.items()]
    layer = None if "layer" in opening else _layer_of_counts(path, source, members["layers"])
    settings += [f"input.layer={layer}"] if layer else []
    if layer is None:
        method, what = "mcfs", "It would take"
    else:
        method, what = "highly_variable", "For counts"
        settings.append(f"n_features_to_select={min(_GENES, max(1, source.n_features // 2))}")
    classes = [name.partition(" (")[0] for name in members["obs"] if "categories" in name]
    command, refusal = proposal(path, settings, method)
    lines += ["", f"With {command} it would say: {refusal}" if refusal else f"{what}: {command}"]
    if classes and "labels" not in opening:
        named = " or ".join(f"input.labels={name}" for name in classes[:3])
        lines.append(f"To compare the selection with known classes, add --set {named}.")
    return lines


def _layer_of_counts(path: str | Location, source: Source, layers: Sequence[str]) -> str | None:
    """Return the layer that holds counts, "" for X itself, None if there are none."""
    if _holds_counts(source):
        return ""
    for layer in layers:
        with suppress(InputError):
            if _holds_counts(open_matrix(path, layer=layer)):
                return layer
    return None


def _holds_counts(source: Source) -> bool:
    """Say whether the first rows are whole numbers from 0 on, mostly zeros."""
    if isinstance(source, SparseSource):
        return source.starts_quickly and source.holds_counts()
    X = next(source.iter_blocks(_HEAD_ROWS), np.zeros((0, 1)))[:_HEAD_ROWS]
    are_counts = bool((X >= 0).all()) and bool((X == np.floor(X)).all())
    return are_counts and bool((X == 0).mean() > 0.5)
