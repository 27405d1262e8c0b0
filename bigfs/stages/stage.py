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
    """One way to do a stage: the plan prints its cost, the run executes it."""

    def cost(self) -> StageCost | None:
        """Return the cost; None: not planned."""

    def run(self, inputs: Inputs, out: Scratch) -> None:
        """Fill the folder ``out`` with the stage's result."""


@dataclass(frozen=True)
class Stage:
    """One checkpointed step.

    Attributes
    ----------
    name : str
        Also the name of its zarr group in the run directory.
    version : int
        Raised when the algorithm's results change.
    settings : dict
        What the result depends on, besides the stages before it.
    choose : callable
        ``choose(shape)`` returns the strategy for data of a shape. Raises MemoryLimitError where
        none fits.
    beside : bool
        Whether it reads the data only, and no stage after it reads its result.
    sparse : bool or "large", default=False
        Whether it takes CSR blocks where the data are sparse; else they are made dense for it.
        "large": where they would be above 2 GiB dense.
    updates : bool, default=False
        Whether it takes over what it stored for the first rows, when rows were added.
    finishing : frozenset of str, default=frozenset()
        Settings of its last part only. A finished stage with the same others is handed to it as
        `Inputs.neighbors`.
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
        """Say whether it takes CSR blocks of sparse data of a shape."""
        return self.sparse is True or (self.sparse == "large" and is_large(shape))

    def key(self, *upstream: str) -> str:
        """Return the key of the stage's result, after stages or data with these keys."""
        return stage_key(self.name, self.version, self.settings, *upstream)

    def is_like(self, record: dict[str, Any]) -> bool:
        """Say whether a record of a manifest is of a stage with this version and these settings."""
        settings = json.loads(json.dumps(self.settings))
        return (record["version"], record["settings"]) == (self.version, settings)

    def shared_key(self, *upstream: str) -> str | None:
        """Return a key without the settings of its last part; None if it has no such part."""
        if not self.finishing:
            return None
        settings = {k: value for k, value in self.settings.items() if k not in self.finishing}
        return stage_key(self.name, self.version, settings, *upstream)


@dataclass(frozen=True)
class Unplanned:
    """A strategy whose cost is not planned."""

    compute: Callable[[Inputs, Scratch], None]

    def cost(self) -> None:
        """Return None: not planned."""

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
    """Return a stage whose cost is not planned: ``compute(inputs, out)`` does it."""
    return Stage(name, version, settings, lambda shape: Unplanned(compute), sparse=sparse)


@dataclass(frozen=True)
class Base:
    """A finished run of the first rows of the data, which is updated."""

    run: str  # its name
    n_samples: int
    # Dict of str to (str, Path or ObjectPath): key and place of each of its stages that may be
    # used.
    stages: dict[str, tuple[str, Location]]
    # ``check(name)`` raises CorruptStoreError if the files of a stage are not as they were.
    check: Callable[[str], None]
    least_recall: float  # least share of true neighbors in an updated graph
    most_residual: float  # largest residual of eigenvectors that begin near those of the first rows


@dataclass
class Inputs:
    """The inputs of a stage: the opened data and what earlier stages stored.

    Attributes
    ----------
    blocks : RowBlocks
    finished : dict of str to Path or ObjectPath
        Where each finished stage is, by its plain name.
    checkpoint : Path, ObjectPath or None
        A folder of the running stage that outlives an interrupted run.
    neighbors : Path, ObjectPath or None
        A finished graph stage that differs in the weights only, if there is one.
    former : Path, ObjectPath or None
        The same stage of a finished run of the first rows.
    base : Base or None
    keeps_start : bool
        Whether stages keep what an update begins with: sums over all rows, further eigenvectors.
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
        """The graph that its stage stored."""
        path = self.finished["graph"]
        return KNNGraph.open(path, read_attributes(path)["graph"])

    @property
    def affinity(self) -> AffinityMatrix:
        """The affinity matrix that the graph stage stored."""
        path = self.finished["graph"]
        about = read_attributes(path)
        known = "arrays" in about["graph"]  # else the graph was not searched here
        partitions = ArrayRef.at(path / "partitions") if known else None
        return AffinityMatrix.open(path / "affinity", about["affinity"], partitions)

    @property
    def spectral(self) -> SpectralEmbedding:
        """The embedding that its stage stored."""
        return SpectralEmbedding.open(self.finished["spectral"])

    def n_clusters(self, wanted: int | str) -> tuple[int, dict[str, Any]]:
        """Return the number of clusters, and what the result says of how "auto" chose it.

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
