"""
Comparing methods
=================

This example evaluates several methods on one graph and prints one table. It also includes all
features and random selections (chance).
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
