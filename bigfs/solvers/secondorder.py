"""Second-order cones, many at once: Jordan products, Nesterov-Todd scaling, steps to the edge.

A column of an array is one cone's element ``z`` with ``z_0 >= |z_1..|``. The rotated cone
``t s >= |v|^2`` is the same cone in the coordinates ``(t + s, t - s) / sqrt(2), sqrt(2) v``.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """Return the product of every two columns."""
    return np.asarray(np.vecdot(a.T, b.T))


def edge(z: np.ndarray) -> np.ndarray:
    """Return ``z_0^2 - |z_1..|^2`` of every element, without cancellation."""
    length = np.sqrt(_dot(z[1:], z[1:]))
    return (z[0] - length) * (z[0] + length)


def inverse(z: np.ndarray) -> np.ndarray:
    """Return the elements whose Jordan products with z are one."""
    out = -z / edge(z)
    out[0] *= -1
    return out


def longest(z: np.ndarray, step: np.ndarray) -> float:
    """Return how far elements may move along a step before one leaves its cone (infinity: never).

    With ``z / sqrt(edge)`` as the origin of a scaling, the step's smallest eigenvalue tells.
    """
    root = np.sqrt(np.maximum(edge(z), 1e-300))
    unit = z / root
    inner = unit[0] * step[0] - _dot(unit[1:], step[1:])
    share = (inner + step[0]) / (unit[0] + 1)
    rest = step[1:] - share * unit[1:]
    smallest = (inner - np.sqrt(_dot(rest, rest))) / root
    worst = float(smallest.min())
    return np.inf if worst >= 0 else -1.0 / worst


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the Jordan product."""
    out = a[0] * b + b[0] * a
    out[0] = _dot(a, b)
    return out


def _divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return y with ``a o y = b``."""
    first = (a[0] * b[0] - _dot(a[1:], b[1:])) / edge(a)
    out = (b - first * a) / a[0]
    out[0] = first
    return np.asarray(out)


@dataclass(frozen=True)
class Scaling:
    """The symmetric H with ``H x = s`` of every pair, ``H = (2 q q' - J) / eta^2``."""

    q: np.ndarray  # of shape (P + 2, n), float64
    eta2: np.ndarray  # of shape (n,), float64
    middle: np.ndarray  # of shape (P + 2, n), float64: ``H^(1/2) x = H^(-1/2) s``

    @classmethod
    def of(cls, x: np.ndarray, s: np.ndarray) -> Scaling:
        """Return the scaling of pairs inside the cones."""
        of_x, of_s = np.sqrt(edge(x)), np.sqrt(edge(s))
        x_unit, s_unit = x / of_x, s / of_s
        gamma = np.sqrt((1 + _dot(x_unit, s_unit)) / 2)
        q = (s_unit - x_unit) / (2 * gamma)
        # q lies on the hyperboloid; its first entry follows from the others without cancellation.
        q[0] = np.sqrt(1 + _dot(q[1:], q[1:]))
        bare = cls(q, of_x / of_s, np.empty(0))
        return cls(q, bare.eta2, bare._half(x))

    def _half(self, z: np.ndarray) -> np.ndarray:
        """Return ``H^(1/2) z``."""
        q0, q1 = self.q[0], self.q[1:]
        along = _dot(q1, z[1:])
        out = np.empty_like(z)
        out[0] = q0 * z[0] + along
        out[1:] = z[1:] + q1 * (z[0] + along / (1 + q0))
        out /= np.sqrt(self.eta2)
        return out

    def _half_inverse(self, z: np.ndarray) -> np.ndarray:
        """Return ``H^(-1/2) z``."""
        q0, q1 = self.q[0], self.q[1:]
        along = _dot(q1, z[1:])
        out = np.empty_like(z)
        out[0] = q0 * z[0] - along
        out[1:] = z[1:] - q1 * (z[0] - along / (1 + q0))
        out *= np.sqrt(self.eta2)
        return out

    def apply(self, z: np.ndarray) -> np.ndarray:
        """Return ``H z``."""
        out = 2 * _dot(self.q, z) * self.q
        out[0] -= z[0]
        out[1:] += z[1:]
        out /= self.eta2
        return out

    def rotated(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return eta^2 and q's parts that multiply t, s and v: ``q'z = q_t t + q_s s + q_v'v``."""
        q_t, q_s, q_v = split_dual(self.q)
        return self.eta2, q_t, q_s, q_v

    def push(self, predicted: tuple[np.ndarray, np.ndarray] | None, target: float) -> np.ndarray:
        """Return r of ``ds = r - H dx`` that leads the products to ``target``.

        Parameters
        ----------
        predicted : (ndarray, ndarray) or None
            A predicted change of x and s whose product is taken off.
        target : float
        """
        wanted = -_product(self.middle, self.middle)
        if predicted is not None:
            wanted -= _product(self._half(predicted[0]), self._half_inverse(predicted[1]))
        wanted[0] += target
        return self._half(_divided(self.middle, wanted))
