"""Second-order cones, many at once: Jordan products, Nesterov-Todd scaling, steps to the edge.

A column of an array is one cone's element ``z`` with ``z_0 >= |z_1..|``. The rotated cone
``t s >= |v|^2`` is the same cone in the coordinates ``(t + s, t - s) / sqrt(2), sqrt(2) v``.
"""

from __future__ import annotations

import numpy as np

_ROOT = np.sqrt(0.5)


def join(t: np.ndarray, s: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return elements (P + 2, n) of the cones from t, s (n,) and v (n, P)."""
    return _stacked(_ROOT * (t + s), _ROOT * (t - s), v.T / _ROOT)


def split(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return t, s and v of elements."""
    return _ROOT * (z[0] + z[1]), _ROOT * (z[0] - z[1]), np.ascontiguousarray((_ROOT * z[2:]).T)


def second(z: np.ndarray) -> np.ndarray:
    """Return s of elements."""
    return np.asarray(_ROOT * (z[0] - z[1]))


def join_dual(t: np.ndarray, s: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return elements of the dual cones: ``join(x) . join_dual(y) = t t' + s s' + v'v'``."""
    return _stacked(_ROOT * (t + s), _ROOT * (t - s), _ROOT * v.T)


def _stacked(first: np.ndarray, second: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Return two rows and a matrix one below the other."""
    z = np.empty((2 + rest.shape[0], rest.shape[1]))
    z[0], z[1], z[2:] = first, second, rest
    return z


def split_dual(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the parts that are complementary to t, s and v."""
    return _ROOT * (z[0] + z[1]), _ROOT * (z[0] - z[1]), np.ascontiguousarray((z[2:] / _ROOT).T)


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the product of every two columns, of one array or of several."""
    return np.asarray(np.vecdot(a.mT, b.mT))


def edge(z: np.ndarray) -> np.ndarray:
    """Return ``z_0^2 - |z_1..|^2`` of every element, without cancellation."""
    first, rest = z[..., 0, :], z[..., 1:, :]
    length = np.sqrt(_dot(rest, rest))
    return np.asarray((first - length) * (first + length))


def inverse(z: np.ndarray) -> np.ndarray:
    """Return the elements whose Jordan products with z are one."""
    out = -z / edge(z)
    out[0] *= -1
    return out


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the Jordan product."""
    out = a[0] * b + b[0] * a
    out[0] = _dot(a, b)
    return out


class Scaling:
    """The symmetric H with ``H x = s`` of every pair, ``H = (2 q q' - J) / eta^2``.

    ``H^(1/2)`` and its inverse take the cone to itself, and x and s to the same element: products
    and steps to the edge are those of that element, the middle.

    Parameters
    ----------
    pairs : ndarray of shape (2, P + 2, n), float64
        x and s, inside the cones.
    """

    def __init__(self, pairs: np.ndarray) -> None:
        roots = np.sqrt(edge(pairs))
        x_unit, s_unit = pairs / roots[:, None]
        gamma = np.sqrt((1 + _dot(x_unit, s_unit)) / 2)
        q = (s_unit - x_unit) / (2 * gamma)
        # q lies on the hyperboloid; its first entry follows from the others without cancellation.
        q[0] = np.sqrt(1 + _dot(q[1:], q[1:]))
        self.q, self.eta2 = q, roots[0] / roots[1]
        self._scaled = q / np.sqrt(self.eta2)
        self._rest = q[1:] / (1 + q[0])
        self._eta = 1 / np.sqrt(self.eta2)
        self.middle = self.half(pairs[0])  # ``H^(1/2) x = H^(-1/2) s``
        self._root = np.sqrt(roots[0] * roots[1])  # of the middle's `edge`
        self._unit = self.middle / self._root

    def half(self, z: np.ndarray) -> np.ndarray:
        """Return ``H^(1/2) z``."""
        out = z * self._eta
        along = _dot(self._scaled, z)
        out[1:] += self._rest * (along + out[0])
        out[0] = along
        return np.asarray(out)

    def rotated(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return eta^2 and q's parts that multiply t, s and v: ``q'z = q_t t + q_s s + q_v'v``."""
        q_t, q_s, q_v = split_dual(self.q)
        return self.eta2, q_t, q_s, q_v

    def push(self, predicted: np.ndarray, target: float) -> np.ndarray:
        """Return what changes of x and s add up to, scaled, that lead products to ``target``.

        Parameters
        ----------
        predicted : ndarray of shape (2, P + 2, n)
            A predicted change of both, scaled, whose product is taken off.
        target : float
        """
        wanted = -_product(predicted[0], predicted[1])
        wanted[0] += target
        first = (self._unit[0] * wanted[0] - _dot(self._unit[1:], wanted[1:])) / self._root
        out = (wanted - first * self.middle) / self.middle[0]
        out[0] = first
        out -= self.middle
        return np.asarray(out)

    def longest(self, steps: np.ndarray) -> float:
        """Return how far x and s may move before one leaves its cone (infinity: never).

        From the middle as the origin of a scaling, the smallest eigenvalue of a step tells.

        Parameters
        ----------
        steps : ndarray of shape (2, P + 2, n)
            Changes of both, scaled.
        """
        unit = self._unit
        inner = unit[0] * steps[:, 0] - _dot(unit[1:], steps[:, 1:])
        share = (inner + steps[:, 0]) / (unit[0] + 1)
        rest = steps[:, 1:] - share[:, None] * unit[1:]
        worst = float(((inner - np.sqrt(_dot(rest, rest))) / self._root).min())
        return np.inf if worst >= 0 else -1.0 / worst
