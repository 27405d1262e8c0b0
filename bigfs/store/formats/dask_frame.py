"""Dask frames: computed a partition at a time under whatever scheduler is active."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bigfs.runtime.execute import dask_get
from bigfs.store.columns import ALL_FEATURES, Roles
from bigfs.store.formats.memory import FrameSource
from bigfs.store.source import Source


class DaskFrameSource(Source):
    """A Dask DataFrame; one partition is in memory at a time, and counting its rows reads it.

    What Dask takes to compute a partition is in no plan: nothing tells before it is computed.
    """

    n_samples = None

    def __init__(self, X: Any, roles: Roles = ALL_FEATURES) -> None:
        self.uri, self.index, self._X = "X", roles.index, X
        # The types of the columns are known without reading.
        part = replace(roles, partitions={})
        meta = FrameSource(X._meta, self.uri, part, distinct=self._distinct)
        self.n_features, self.dtype = meta.n_features, meta.dtype
        self.feature_names, self.notes = meta.feature_names, meta.notes
        self.categories = meta.categories
        self._roles = replace(part, encoding=replace(roles.encoding, known=meta.categories))

    def _distinct(self, column: str) -> Any:
        return self._X[column].unique().compute(scheduler=dask_get())

    def _parts(self) -> Iterator[FrameSource]:
        for i in range(self._X.npartitions):
            frame = self._X.partitions[i].compute(scheduler=dask_get())
            yield FrameSource(frame, self.uri, self._roles)

    def iter_index(self) -> Iterator[list[str]]:
        """Yield the ids of the rows."""
        if self.index is not None:
            for part in self._parts():
                yield from part.iter_index()

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        for part in self._parts():
            for block in part.iter_blocks(rows):
                yield np.ascontiguousarray(block, self.dtype)
