"""The bench of genes to keep runs at toy size."""

from __future__ import annotations

from tests.bench import bench_genes


def test_markers_and_agreement_are_measured() -> None:
    X, types = bench_genes.rare_types(300, 400)
    methods = ["highly_variable (deviance)", "chance"]
    rows = bench_genes.figures(X, types, [120, 200], methods, planted=True)
    assert [(row["what"], row["m"]) for row in rows[:2]] == [(methods[0], 120), (methods[0], 200)]
    assert 0 < rows[1]["markers"] <= 1 and rows[1]["nmi"] > 0
    assert abs(rows[3]["markers"] - 0.5) < 0.2, "half of all genes at random"
