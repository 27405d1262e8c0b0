"""NDFS written from the paper: n x n M, explicit inverses, float64."""

from __future__ import annotations

import numpy as np


def normalized_laplacian(W: np.ndarray) -> np.ndarray:
    """L of eq. (5)."""
    degrees = W.sum(axis=1)
    return np.eye(len(W)) - W / np.sqrt(np.outer(degrees, degrees))


def smoothing(X: np.ndarray) -> float:
    """The footnote's very small constant: a millionth of the scale of B's rows, squared."""
    return 1e-12 / np.mean((X**2).sum(axis=0))


def objective(
    X: np.ndarray,
    L: np.ndarray,
    F: np.ndarray,
    B: np.ndarray,
    alpha: float,
    beta: float,
    gamma: float,
    intercept: bool = False,
) -> tuple[float, float, float]:
    """The three parts of eq. (10), with the norm's rows smoothed as in the footnote."""
    rows = np.sqrt((B**2).sum(axis=1) + smoothing(X))
    explained = X @ B + (F.mean(axis=0) if intercept else 0)
    return (
        np.trace(F.T @ L @ F),
        alpha * (((explained - F) ** 2).sum() + beta * rows.sum()),
        gamma / 2 * ((F.T @ F - np.eye(F.shape[1])) ** 2).sum(),
    )  # fmt: skip


def ndfs(
    X: np.ndarray,
    W: np.ndarray,
    F: np.ndarray,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    gamma: float = 1e8,
    update: str = "printed",
    n_iter: int = 30,
    delta: float = 1.0,
    intercept: bool = False,
) -> tuple[np.ndarray, np.ndarray, list[tuple[float, float, float]]]:
    """Algorithm 1; returns F, B (the paper's W) and the objective after every iteration.

    ``delta`` is what D begins as, times the identity. With ``intercept`` the regression has one.
    """
    X, F = np.asarray(X, dtype=np.float64), F.copy()
    n, d = X.shape
    ones = np.zeros((n, n))
    if intercept:
        X, ones = X - X.mean(axis=0), np.full((n, n), 1 / n)
    L = normalized_laplacian(W)
    D = delta * np.eye(d)
    history = []
    for _ in range(n_iter):
        inverse = np.linalg.inv(X.T @ X + beta * D)
        H = X @ inverse @ X.T + ones
        M = L + alpha * (np.eye(n) - H)
        if update == "printed":  # eq. (15); an entry grows at most tenfold
            above = gamma * F
            below = np.maximum(M @ F + gamma * F @ F.T @ F, above / 10)
            F = F * np.divide(above, below, out=np.zeros_like(F), where=below > 0)
        else:
            HF = H @ F
            above = gamma * F + (np.eye(n) - L) @ F + alpha * np.maximum(HF, 0)
            below = (1 + alpha) * F + alpha * np.maximum(-HF, 0) + gamma * F @ F.T @ F
            F = F * np.divide(above, below, out=np.zeros_like(F), where=below > 0) ** 0.25
        F[F < 1e-30] = 0
        if update == "printed":
            norms = np.linalg.norm(F, axis=0)
            F = F / np.where(norms > 0, norms, 1)
        B = inverse @ (X.T @ F)
        D = np.diag(0.5 / np.sqrt((B**2).sum(axis=1) + smoothing(X)))
        history.append(objective(X, L, F, B, alpha, beta, gamma, intercept))
    return F, B, history
