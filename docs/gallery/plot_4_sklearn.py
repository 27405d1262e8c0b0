"""
Tuning the number of features in a scikit-learn pipeline
========================================================

Selectors are transformers: they can be steps of pipelines, and their settings can be tuned by a
grid search. A single fit gives the selection for every number of features (``support``); here a
grid search tries several numbers in front of a classifier.
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
