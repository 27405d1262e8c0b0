"""Curves over the number of features, and correlations, by their definitions: slow and dense."""

from __future__ import annotations

import numpy as np


def explained(X: np.ndarray, features: list[int], targets: np.ndarray) -> np.ndarray:
    """Return the share of each centered target that a regression on some features explains."""
    A = X[:, features] - X[:, features].mean(axis=0)
    B = targets - targets.mean(axis=0)
    total = (B**2).sum(axis=0)
    rest = B - A @ np.linalg.lstsq(A, B, rcond=1e-8)[0]
    return np.where(total > 0, 1 - (rest**2).sum(axis=0) / np.where(total > 0, total, 1.0), 0.0)


def explained_variance(X: np.ndarray, features: list[int]) -> float:
    """Return the share of the variance of all features that some of them explain."""
    weights = X.var(axis=0) / (X.var(axis=0).sum() or 1.0)
    return float(weights @ explained(X, features, X))


def explained_others(X: np.ndarray, order: list[int]) -> float:
    """Return what a path explains of the other features, less what noise would explain."""
    n = len(X)
    total, share = float(n * X.var(axis=0).sum()), 0.0
    left = X - X.mean(axis=0)
    for i, feature in enumerate(order):
        column = left[:, feature].copy()
        after = left
        if column @ column > 1e-9 * n * X[:, feature].var():
            after = left - np.outer(column, column @ left) / (column @ column)
        fell = (left**2).sum(axis=0) - (after**2).sum(axis=0)
        others = np.arange(X.shape[1]) != feature
        if fell.sum() == 0:
            others[:] = True
        share += fell[others].sum() - (left[:, others] ** 2).sum() / max(n - 2 - i, 1)
        left = after
    return share / total


def neighbors_kept(X: np.ndarray, features: list[int], k: int) -> np.ndarray:
    """Return the share of its nearest rows that each row keeps in some of the columns."""
    shares = []
    for i in range(len(X)):
        others = [j for j in range(len(X)) if j != i]
        in_all = {j: round(float(((X[i] - X[j]) ** 2).sum()), 9) for j in others}
        kth = sorted(in_all.values())[k - 1]
        true = {j for j in others if in_all[j] <= kth}
        now = {j: round(float(((X[i] - X[j])[features] ** 2).sum()), 9) for j in others}
        reach = sorted(now.values())[k - 1]
        nearer = [j for j in others if now[j] < reach]
        tied = [j for j in others if now[j] == reach]
        chance = (k - len(nearer)) / len(tied)
        shares.append((len(true & set(nearer)) + chance * len(true & set(tied))) / k)
    return np.array(shares)


def closest_selected(X: np.ndarray, selected: list[int], feature: int) -> tuple[int, float]:
    """Return the selected feature of largest absolute correlation with one, and the correlation."""
    best, correlation = -1, 0.0
    for other in selected:
        a, b = X[:, feature] - X[:, feature].mean(), X[:, other] - X[:, other].mean()
        scale = np.sqrt((a @ a) * (b @ b))
        value = float(a @ b / scale) if scale > 0 else 0.0
        if abs(value) > abs(correlation) + 1e-9:
            best, correlation = other, value
    return best, correlation
