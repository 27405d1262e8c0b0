"""SPEC written from the paper: every eigenpair of the normalized Laplacian, dense."""

from __future__ import annotations

import numpy as np


def spec_scores(X: np.ndarray, W: np.ndarray, ranking: str) -> np.ndarray:
    """Section 3.2 of Zhao, Liu 2007: small is good for phi1 and phi2, large for phi3."""
    X = np.asarray(X, dtype=np.float64)
    degrees = W.sum(axis=1)
    root = np.sqrt(degrees)
    Ln = np.eye(len(X)) - W / np.outer(root, root)
    values, vectors = np.linalg.eigh(Ln)
    first = root / np.linalg.norm(root)
    scores = []
    for f in X.T:
        h = root * f
        h = h / np.linalg.norm(h)
        share = (h @ vectors) ** 2
        phi1 = (values * share).sum()
        results = {
            "phi1": phi1,
            "phi2": phi1 / (1 - (h @ first) ** 2),
            # The eigenvectors of 0 span xi_1 and, in a graph of several parts, more.
            "phi3": ((2 - values) * share).sum() - 2 * (h @ first) ** 2,
        }
        scores.append(results[ranking])
    return np.array(scores)
