"""Checksums of every method's results, to show that a change of the code changes none of them.

Every method is fitted on five small sets, and run as a pipeline on two of them, in threads of one
process and on two worker processes; the quickstart pipeline and the graphs themselves are in it
as well. Only public names are used, so the file runs on any two states of the project::

    python -m tests.bench.same_bits write before.json    # at one state
    python -m tests.bench.same_bits compare before.json  # at another; exit code 1 if they differ
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

CLUSTERS = {"n_clusters": 3}
FITS: dict[str, dict[str, Any]] = {
    "MaxVariance": {},
    "LaplacianScore": {},
    "SPEC": {"ranking": "phi3"},
    "MCFS": CLUSTERS,
    "NDFS": CLUSTERS,
    "UDFS": CLUSTERS,
    "QAlpha": CLUSTERS,
    "M3FS": {"n_clusters": 2},
    "MaximumMarginClustering": {"n_clusters": 2},
    "FSGMM": {"n_clusters": 5},
    "LFS": CLUSTERS,
    "GFSKMeans": CLUSTERS,
}
RUNS: dict[str, dict[str, Any]] = {
    "max_variance": {},
    "laplacian_score": {},
    "spec": {"spec": {"ranking": "phi3"}},
    "mcfs": {"mcfs": CLUSTERS},
    "ndfs": {"ndfs": CLUSTERS},
    "udfs": {"udfs": CLUSTERS},
    "q_alpha": {"q_alpha": CLUSTERS},
    "m3fs": {"m3fs": {"n_clusters": 2}},
    "fsgmm": {"fsgmm": {"n_clusters": 5}},
    "lfs": {"lfs": CLUSTERS},
    "gfs_kmeans": {"gfs_kmeans": CLUSTERS},
    "column_subset": {},
    "pivoted_qr": {},
    "random_selection": {},
}


def small_sets(toy: bool = False) -> dict[str, np.ndarray]:
    """Return the sets; ``toy`` keeps the first one only."""
    from sklearn.datasets import load_digits, load_iris, load_wine

    generator = np.random.default_rng(0)
    wine = load_wine().data
    sets = {"wine": (wine - wine.mean(0)) / wine.std(0)}
    if toy:
        return sets
    centers = generator.normal(0, 3, (4, 6))
    groups = generator.integers(0, 4, 900)
    planted = generator.normal(size=(900, 24)).astype(np.float32)
    planted[:, :6] += centers[groups].astype(np.float32)
    return sets | {
        "iris": load_iris().data,
        "digits": load_digits().data[:300, 8:24],
        "planted": planted,
        "wide": generator.normal(size=(40, 60)) + (np.arange(40) % 3)[:, None] * np.eye(60)[0],
    }


def digest(*arrays: Any) -> str:
    """Return a checksum of the bytes, types and shapes of arrays."""
    total = hashlib.sha256()
    for array in arrays:
        values = np.ascontiguousarray(array)
        total.update(f"{values.dtype.str}{values.shape}".encode())
        total.update(values.tobytes())
    return total.hexdigest()[:16]


def fitted(name: str, settings: dict[str, Any], X: Any) -> str:
    """Return the checksum of a fit, or that it was refused."""
    import bigfs

    half = X.shape[1] // 2
    try:
        selector = getattr(bigfs, name)(half, **settings).fit(X)
    except Exception as error:  # a refusal is a result too; its wording is not
        return f"refused: {isinstance(error, ValueError)}"
    parts = [selector.scores_, selector.ranking_, selector.get_support()]
    parts += [getattr(selector, a)[:] for a in ("labels_", "eigenvalues_") if hasattr(selector, a)]
    return digest(*parts)


def ran(method: str, sections: dict[str, Any], source: Path, folder: Path) -> str:
    """Return the checksum of a pipeline's result."""
    import bigfs

    settings = {
        "run": str(folder / f"{source.stem}-{method}"),
        "input": {"uri": str(source)},
        "method": method,
        "n_features_to_select": np.load(source, mmap_mode="r").shape[1] // 2,
        **sections,
    }
    try:
        result = bigfs.run(settings)
    except Exception as error:
        return f"refused: {isinstance(error, ValueError)}"
    return digest(result.scores, result.ranking, result.selected)


def graphs(X: np.ndarray) -> str:
    """Return the checksum of a set's neighbors and eigenvectors."""
    import bigfs

    graph = bigfs.knn_graph(X, 5)
    spectral = bigfs.spectral_embedding(graph, 4)
    return digest(graph.indices[:], graph.distances[:], spectral.eigenvalues, spectral.embedding[:])


def everything(folder: Path, toy: bool) -> Iterator[tuple[str, str]]:
    """Yield names and checksums under the scheduler in scope."""
    import bigfs

    for number, (name, X) in enumerate(small_sets(toy).items()):
        yield f"graph {name}", graphs(X)
        for method, settings in FITS.items():
            yield f"fit {method} {name}", fitted(method, settings, X)
        if number < 2:
            source = folder / f"{name}.npy"
            np.save(source, X)
            for method, sections in RUNS.items():
                yield f"run {method} {name}", ran(method, sections, source, folder)
    pipeline = Path(__file__).parents[2] / "pipelines" / "quickstart.yaml"
    result = bigfs.run(pipeline, overrides=[f"run={folder / 'quickstart'}"])
    yield "quickstart", digest(result.scores, result.ranking, result.selected)


def checksums(schedulers: tuple[str, ...], toy: bool = False) -> dict[str, str]:
    """Return the checksums of everything, under each scheduler."""
    from distributed import Client, LocalCluster

    figures: dict[str, str] = {}
    for scheduler in schedulers:
        cluster: Any = nullcontext()
        if scheduler == "workers":
            cluster = LocalCluster(
                n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
            )
        with tempfile.TemporaryDirectory() as folder, cluster as running:
            client: Any = nullcontext() if running is None else Client(running)
            with client:
                for name, value in everything(Path(folder), toy):
                    figures[f"{scheduler} {name}"] = value
                    print(f"{scheduler} {name}: {value}", file=sys.stderr, flush=True)
    return figures


def main() -> int:
    """Write checksums, or compare with those written before."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--schedulers", nargs="+", default=["threads", "workers"])
    parser.add_argument("--toy", action="store_true", help="one set only")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    measured = checksums(tuple(arguments.schedulers), arguments.toy)
    if arguments.action == "write":
        arguments.file.write_text(json.dumps(measured, indent=1) + "\n")
        print(f"{len(measured)} checksums written")
        return 0
    before = json.loads(arguments.file.read_text())
    shared = sorted(set(measured) & set(before))
    differing = [name for name in shared if measured[name] != before[name]]
    for name in differing:
        print(f"{name}: {before[name]} before, {measured[name]} now")
    print(f"{len(shared) - len(differing)} of {len(shared)} checksums agree")
    return 1 if differing or not shared else 0


if __name__ == "__main__":
    sys.exit(main())
