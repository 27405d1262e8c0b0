"""A stage: its name, its dependencies, and the strategy that is planned and run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.cost import Shape, StageCost
from bigfs.graph import AffinityMatrix
from bigfs.graph.knn import KNNGraph
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.store.csr import is_large
from bigfs.store.location import Location
from bigfs.store.rundir import stage_key
from bigfs.store.scratch import ArrayRef, Scratch, read_attributes


class StageStrategy(Protocol):
    """One strategy for a stage: the plan prints its cost, the run executes it."""

    def cost(self) -> StageCost | None:
        """Return the cost; None if it is not planned."""

    def run(self, inputs: Inputs, out: Scratch) -> None:
        """Fill the folder ``out`` with the stage's result."""


@dataclass(frozen=True)
class Stage:
    """One checkpointed step.

    Attributes
    ----------
    name : str
        Name of the stage, also of its zarr group in the run directory.
    version : int
        Incremented when the algorithm's results change.
    settings : dict
        Settings that the result depends on, besides the earlier stages.
    choose : callable
        ``choose(shape)`` returns the strategy for data of the given shape. Raises MemoryLimitError
        if none fits.
    beside : bool
        True if it reads only the data, and no later stage reads its result.
    sparse : bool or "large", default=False
        True if it accepts CSR blocks of sparse data; otherwise they are made dense for it.
        "large": only if they would exceed 2 GiB dense.
    updates : bool, default=False
        True if it reuses what it stored for the first rows when rows were added.
    finishing : frozenset of str, default=frozenset()
        Settings that affect only its last part. A finished stage that differs in these settings
        only is passed to it as `Inputs.neighbors`.
    """

    name: str
    version: int
    settings: dict[str, Any]
    choose: Callable[[Any], StageStrategy]
    beside: bool = False
    sparse: bool | Literal["large"] = False
    updates: bool = False
    finishing: frozenset[str] = frozenset()

    def takes_entries(self, shape: Shape) -> bool:
        """Return True if it accepts CSR blocks of sparse data of the given shape."""
        return self.sparse is True or (self.sparse == "large" and is_large(shape))

    def key(self, *upstream: str) -> str:
        """Return the key of the stage's result, given the keys of the stages or data before it."""
        return stage_key(self.name, self.version, self.settings, *upstream)

    def is_like(self, record: dict[str, Any]) -> bool:
        """Return True if a manifest's record is of a stage with this version and these settings."""
        settings = json.loads(json.dumps(self.settings))
        return (record["version"], record["settings"]) == (self.version, settings)

    def shared_key(self, *upstream: str) -> str | None:
        """Return the key without the settings of the last part; None if it has no such part."""
        if not self.finishing:
            return None
        settings = {k: value for k, value in self.settings.items() if k not in self.finishing}
        return stage_key(self.name, self.version, settings, *upstream)


@dataclass(frozen=True)
class Unplanned:
    """A strategy whose cost is not planned."""

    compute: Callable[[Inputs, Scratch], None]

    def cost(self) -> None:
        """Return None: the cost is not planned."""

    def run(self, inputs: Inputs, out: Scratch) -> None:
        """Fill the folder ``out``."""
        self.compute(inputs, out)


def unplanned_stage(
    name: str,
    version: int,
    settings: dict[str, Any],
    compute: Callable[[Inputs, Scratch], None],
    *,
    sparse: bool | Literal["large"] = False,
) -> Stage:
    """Return a stage whose cost is not planned; ``compute(inputs, out)`` runs it."""
    return Stage(name, version, settings, lambda shape: Unplanned(compute), sparse=sparse)


@dataclass(frozen=True)
class Base:
    """A finished run on the first rows of the data, which is updated."""

    run: str  # name of the run
    n_samples: int
    # Dict of str to (str, Path or ObjectPath): key and location of each of its stages that may be
    # used.
    stages: dict[str, tuple[str, Location]]
    # ``check(name)`` raises CorruptStoreError if the files of a stage have changed.
    check: Callable[[str], None]
    least_recall: float  # smallest accepted recall of an updated graph
    most_residual: float  # largest accepted residual of eigenvectors started from those of the base


@dataclass
class Inputs:
    """The inputs of a stage: the opened data and what earlier stages stored.

    Attributes
    ----------
    blocks : RowBlocks
    finished : dict of str to Path or ObjectPath
        Location of each finished stage, by its plain name.
    checkpoint : Path, ObjectPath or None
        A folder of the running stage that is kept when a run is interrupted.
    neighbors : Path, ObjectPath or None
        A finished graph stage that differs only in the weights, if there is one.
    former : Path, ObjectPath or None
        The same stage of a finished run on the first rows.
    base : Base or None
    keeps_start : bool
        True if stages keep what an update starts from: sums over all rows, further eigenvectors.
    """

    blocks: RowBlocks
    finished: dict[str, Location] = field(default_factory=dict)
    checkpoint: Location | None = None
    neighbors: Location | None = None
    former: Location | None = None
    base: Base | None = None
    keeps_start: bool = False

    @property
    def graph(self) -> KNNGraph:
        """The graph stored by its stage."""
        path = self.finished["graph"]
        return KNNGraph.open(path, read_attributes(path)["graph"])

    @property
    def affinity(self) -> AffinityMatrix:
        """The affinity matrix stored by the graph stage."""
        path = self.finished["graph"]
        about = read_attributes(path)
        known = "arrays" in about["graph"]  # missing for a finished graph, which has no partitions
        partitions = ArrayRef.at(path / "partitions") if known else None
        return AffinityMatrix.open(path / "affinity", about["affinity"], partitions)

    @property
    def spectral(self) -> SpectralEmbedding:
        """The embedding stored by its stage."""
        return SpectralEmbedding.open(self.finished["spectral"])

    def n_clusters(self, wanted: int | str) -> tuple[int, dict[str, Any]]:
        """Return the number of clusters, and details on how "auto" chose it.

        Parameters
        ----------
        wanted : int or "auto"
            "auto": the number of eigenvectors that the spectral stage kept, see
            `bigfs.spectral.choice.suggest_n_clusters`.

        Returns
        -------
        n_clusters : int
        details : dict
            ``n_clusters`` and ``spectrum``, the eigenvalues; empty if a number was given.
        """
        if not isinstance(wanted, str):
            return wanted, {}
        spectral = self.spectral
        n_clusters = len(spectral.eigenvalues)
        return n_clusters, {"n_clusters": n_clusters, "spectrum": np.array(spectral.spectrum)}
