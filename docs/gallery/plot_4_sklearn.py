"""
A scikit-learn pipeline, with a grid over the number of features
================================================================

Selectors are transformers: they stand in pipelines, and their settings in grids. One fit answers
every number of features (``support``), and a grid tries them behind a classifier.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline

from bigfs import MCFS

X, y = load_digits(return_X_y=True)
X, y = X[:600], y[:600]
pipeline = Pipeline(
    [("select", MCFS(n_clusters=10, verbose=0)), ("classify", KNeighborsClassifier())]
)
sizes = [5, 10, 20, 40]
grid = GridSearchCV(pipeline, {"select__n_features_to_select": sizes}, cv=3).fit(X, y)
print(grid.best_params_)

# %%
ax = plt.subplots()[1]
ax.plot(sizes, grid.cv_results_["mean_test_score"], marker="o")
ax.set(xlabel="selected features", ylabel="accuracy, three folds")
