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
    """A solution, and where the search stands."""

    rules: Rules  # memberships
    subsets: np.ndarray  # of shape (n_clusters, n_features), bool
    sums: ClusterSums
    origin: np.ndarray  # of shape (n_features,): what sums and rules count from
    trace: list[dict[str, Any]] = field(default_factory=list)  # the accepted replacements
    # Where to go on.
    round: int = 0
    next_cluster: int = 0
    version: int = 0  # number of steps that changed the solution
    # Of shape (n_clusters,), int64: the version in which a cluster's subsets were last tried.
    tried: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def finished(self) -> bool:
        """True if all clusters' subsets were tried on this solution in vain."""
        return bool((self.tried == self.version).all())


@dataclass
class Matches:
    """Clusters of candidate clusterings, each with the cluster it overlaps most, by columns."""

    # Of shape (n_matches, 3), int64: clustering, the label of it that is the new cluster, and the
    # cluster it would replace.
    pairs: np.ndarray
    # Of shape (n_matches,), bool: it has exactly the members of the old one: the values are equal
    # (proposition 2).
    same: np.ndarray
    traced: np.ndarray  # of shape (n_matches,), bool: the ratio is of traces: it took no products
    # Of shape (n_matches,), float64: O and U with the replacement, and ``2 (alpha dO + beta dU)``.
    overlap: np.ndarray
    unassigned: np.ndarray
    penalty: np.ndarray

    def __len__(self) -> int:
        return len(self.pairs)


@dataclass
class Proposal:
    """A cluster of a candidate clustering, to take the place of the one it overlaps most."""

    # Which label of which candidate would replace which cluster.
    candidate: int
    member: int
    cluster: int
    mask: np.ndarray  # of shape (n_features,), bool: the candidate's features
    center: np.ndarray  # of shape (n_clusters, n_features), float64: the candidate's centers
    labels: np.ndarray | None  # of shape (n_rows,), int16: of rows in memory
    same: bool  # it has exactly the members of the old one: the values are equal (proposition 2)
    # O and U with the replacement.
    overlap: float
    unassigned: float
    sums: Any  # count, sums and products of the new cluster, as in the state's sums
    traced: bool  # the ratio is of traces
    ratio: float  # log of the adjusted value over that of the old cluster
    error: float = np.nan  # its standard error; NaN where it did not matter


def clusterings_of(proposals: list[Proposal]) -> tuple[Clusterings, np.ndarray]:
    """Return the clusterings of proposals, and their pairs among them as in `Matches`."""
    first = {proposal.candidate: proposal for proposal in reversed(proposals)}
    places = {candidate: place for place, candidate in enumerate(first)}
    labels = [proposal.labels for proposal in first.values() if proposal.labels is not None]
    clusterings = Clusterings(
        np.stack([proposal.center for proposal in first.values()]),
        np.stack([proposal.mask for proposal in first.values()]),
        np.stack(labels) if labels else None,
    )
    pairs = [[places[each.candidate], each.member, each.cluster] for each in proposals]
    return clusterings, np.array(pairs, dtype=np.int64)


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
            second=state.sums.products,
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
        sums = ClusterSums(values["counts"], values["sums"], values["second"])
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
