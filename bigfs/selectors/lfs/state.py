"""State of the search of LFS, and its candidates; a state is stored and read as one file."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigfs.selectors.lfs.kernels import Clusterings, Rules
from bigfs.solvers.separability import ClusterSums
from bigfs.store.location import Location, replaced_file


@dataclass
class SearchState:
    """A solution, and where the search stands.

    Attributes
    ----------
    rules : Rules
        Memberships.
    subsets : ndarray of shape (n_clusters, n_features), bool
    sums : ClusterSums
    origin : ndarray of shape (n_features,)
        What sums and rules count from.
    trace : list of dict
        The accepted replacements.
    round, next_cluster : int
        Where to go on.
    version : int
        Number of steps that changed the solution.
    tried : ndarray of shape (n_clusters,), int64
        The version in which a cluster's subsets were last tried.
    """

    rules: Rules
    subsets: np.ndarray
    sums: ClusterSums
    origin: np.ndarray
    trace: list[dict[str, Any]] = field(default_factory=list)
    round: int = 0
    next_cluster: int = 0
    version: int = 0
    tried: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def finished(self) -> bool:
        """True if all clusters' subsets were tried on this solution in vain."""
        return bool((self.tried == self.version).all())


@dataclass
class Matches:
    """Clusters of candidate clusterings, each with the cluster it overlaps most, by columns.

    Attributes
    ----------
    pairs : ndarray of shape (n_matches, 3), int64
        Clustering, the label of it that is the new cluster, and the cluster it would replace.
    same : ndarray of shape (n_matches,), bool
        It has exactly the members of the old one: the values are equal (proposition 2).
    overlap, unassigned, penalty : ndarray of shape (n_matches,), float64
        O and U with the replacement, and ``2 (alpha dO + beta dU)``.
    ratios : ndarray of shape (n_matches,), float64
        Log of the adjusted value over that of the old cluster; -inf where it is not known.
    traced : ndarray of shape (n_matches,), bool
        The ratio is of traces: it took no products.
    """

    pairs: np.ndarray
    same: np.ndarray
    overlap: np.ndarray
    unassigned: np.ndarray
    penalty: np.ndarray
    ratios: np.ndarray
    traced: np.ndarray

    def __len__(self) -> int:
        return len(self.pairs)

    def best(self) -> np.ndarray:
        """Return the place of the largest ratio for each cluster that has a match."""
        order = np.lexsort((self.pairs[:, 0], -self.ratios, self.pairs[:, 2]))
        return order[np.unique(self.pairs[order, 2], return_index=True)[1]]


@dataclass
class Proposal:
    """A cluster of a candidate clustering, to take the place of the one it overlaps most.

    Attributes
    ----------
    clustering, member, cluster : int
        Which label of which candidate would replace which cluster.
    mask : ndarray of shape (n_features,), bool
        The candidate's features.
    same : bool
        It has exactly the members of the old one: the values are equal (proposition 2).
    overlap, unassigned : float
        O and U with the replacement.
    penalty : float
        ``2 (alpha dO + beta dU)``.
    sums : tuple of (float, ndarray, ndarray)
        Count, sums and products of the new cluster; only their diagonal where that was enough.
    traced : bool
        The ratio is of traces.
    ratio : float
        Log of the adjusted value over that of the old cluster.
    error : float
        Its standard error; NaN where it did not matter.
    """

    clustering: int
    member: int
    cluster: int
    mask: np.ndarray
    same: bool
    overlap: float
    unassigned: float
    penalty: float
    sums: Any
    traced: bool
    ratio: float
    error: float = np.nan

    @property
    def pair(self) -> tuple[int, int, int]:
        """Its name in the passes."""
        return self.clustering, self.member, self.cluster


def save_state(path: Location, state: SearchState) -> None:
    """Write a state beside its name and rename it."""
    with replaced_file(path) as file:
        np.savez(
            file,
            centers=state.rules.clusterings.centers,
            masks=state.rules.clusterings.masks,
            members=state.rules.members,
            subsets=state.subsets,
            counts=state.sums.counts,
            sums=state.sums.sums,
            products=state.sums.products,
            origin=state.origin,
            tried=state.tried,
            places=[state.round, state.next_cluster, state.version],
            trace=json.dumps(state.trace),
        )


def load_state(path: Location) -> SearchState | None:
    """Return a stored state, or None where there is none that can be read."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            values = {name: stored[name] for name in stored.files}
        rules = Rules(Clusterings(values["centers"], values["masks"]), values["members"])
        sums = ClusterSums(values["counts"], values["sums"], values["products"])
        trace = json.loads(str(values["trace"]))
        done, next_cluster, version = (int(place) for place in values["places"])
        return SearchState(
            rules,
            values["subsets"],
            sums,
            values["origin"],
            trace,
            done,
            next_cluster,
            version,
            values["tried"],
        )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
