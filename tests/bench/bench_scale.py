"""Measurements in different units: selections of the values as they are, and of one scale.

    python -m tests.bench.bench_scale

Wine and breast cancer of scikit-learn, methods at their defaults with as many clusters as classes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import bigfs

SETS = {"wine": 3, "breast_cancer": 2}
PREPROCESS = ("none", "standardize")
METHODS = ("mcfs", "ndfs", "max_variance", "column_subset")


def measure(name: str, preprocess: str, n_repetitions: int = 20) -> list[tuple[str, int, str]]:
    """Return name, number of features, and NMI / 1-NN error in percent of every selection."""
    clusters = {"n_clusters": SETS[name]}
    methods = [
        {"method": method, method: clusters} if method in ("mcfs", "ndfs") else method
        for method in METHODS
    ]
    with tempfile.TemporaryDirectory() as folder:
        comparison = bigfs.compare(
            {
                "run": folder,
                "input": {"uri": f"sklearn:{name}"},
                "preprocess": preprocess,
                "methods": methods,
                "n_features_to_select": [3, 6],
                "evaluate": {"labels": f"sklearn:{name}", "n_repetitions": n_repetitions},
                "compare": {"chance": False},
            }
        )
    return [
        (
            row.name,
            row.n_features,
            f"{100 * row.scores['nmi_mean']:.1f} / "
            f"{100 * row.scores['nearest_neighbor_error']:.1f}",
        )
        for row in comparison.rows
    ]


def main(arguments: list[str]) -> None:
    """Print a table: a line for every selection, a column for every scale of every set."""
    description = str(__doc__).partition("\n")[0]
    argparse.ArgumentParser("bench_scale", description=description).parse_args(arguments)
    columns = [(name, preprocess) for name in SETS for preprocess in PREPROCESS]
    tables = [measure(*column) for column in columns]
    print("".ljust(18) + "".join(f"{name} {what}".rjust(27) for name, what in columns))
    for rows in zip(*tables, strict=True):
        print(f"{rows[0][0]} {rows[0][1]}".ljust(18) + "".join(row[2].rjust(27) for row in rows))


if __name__ == "__main__":
    main(sys.argv[1:])
