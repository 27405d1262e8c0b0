"""
Comparing methods
=================

Several methods on one graph, in one table: each beside all features and beside chance.
"""

import tempfile

import bigfs

comparison = bigfs.compare(
    {
        "run": f"{tempfile.mkdtemp()}/run",
        "input": {"uri": "sklearn:digits"},
        "methods": ["mcfs", "column_subset", "max_variance"],
        "n_features_to_select": [5, 10, 20],
        "evaluate": {"labels": "sklearn:digits", "n_repetitions": 5},
    }
)
print(comparison.to_frame()[["name", "n_features", "nmi_mean", "nearest_neighbor_error"]])

# %%
axes = comparison.plot()
