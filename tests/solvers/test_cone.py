"""The cone program of M3FS: ours against Clarabel, against closed forms and its own bound."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigfs.core.errors import InputError
from bigfs.solvers import secondorder as soc
from bigfs.solvers.cone import ConeProgram, solve_cone
from bigfs.solvers.msupport import half_squared_dual, half_squared_norm, weights_of


def program(
    d: int,
    P: int,
    m: int,
    *,
    n_planes: int = 8,
    C: float = 10.0,
    smoothness: float = 0.0,
    intercept: bool = True,
    balance: float = 0.3,
    seed: int = 0,
) -> ConeProgram:
    """Planes of a random clustering of random rows, as a pass over data would give them."""
    generator = np.random.default_rng(seed)
    n, D = 400, d + intercept
    X = generator.normal(size=(n, D))
    if intercept:
        X[:, -1] = 1
    form = X.T @ X / n
    planes, bounds = np.zeros((n_planes, D, P)), np.zeros(n_planes)
    if P == 1:
        z = np.sign(X[:, : min(5, d)].sum(axis=1) + 0.5 * generator.normal(size=n))
    else:
        z = X[:, : max(P, d)][:, :P].argmax(axis=1)
    for j in range(n_planes):
        chosen = generator.random(n) < (0.9 if j else 1.1)
        bounds[j] = chosen.mean()
        if P == 1:
            planes[j, :, 0] = (chosen * z) @ X / n
            continue
        rival = (z + 1 + generator.integers(P - 1, size=n)) % P
        for p in range(P):
            planes[j, :, p] = (chosen * ((z == p) * 1.0 - (rival == p))) @ X / n
    smooth = smoothness * form if smoothness else None
    return ConeProgram(planes, bounds, X.mean(axis=0), balance, smooth, C, m, d)


CASES = {
    "two clusters": program(40, 1, 8),
    "two clusters, smooth": program(40, 1, 8, smoothness=0.5),
    "no intercept": program(40, 1, 8, smoothness=0.5, intercept=False),
    "four clusters": program(24, 4, 6, C=100.0),
    "four clusters, smooth": program(24, 4, 6, smoothness=0.1),
    "all features": program(12, 1, 12),
    "all features, three clusters": program(12, 3, 12, smoothness=0.1),
    "all features, none smooth": program(12, 3, 12, C=100.0),
    "all features, no balance": program(30, 4, 30, C=1000.0, balance=np.inf, intercept=False),
    "one feature": program(30, 1, 1, C=50.0),
    "wide": program(150, 3, 20, smoothness=0.05, n_planes=15),
    "no balance": program(24, 3, 6, balance=np.inf),
    "tight balance": program(24, 3, 6, balance=1e-3, C=1000.0),
}


@pytest.mark.parametrize("name", CASES)
def test_ours_and_clarabel_agree(name):
    cone = CASES[name]
    ours, other = solve_cone(cone, solver="active"), solve_cone(cone, solver="clarabel")
    assert ours.objective == pytest.approx(other.objective, rel=1e-5)
    assert ours.gap <= 1e-5
    assert ours.objective == pytest.approx(cone.objective(ours.V), rel=1e-12)
    assert ours.sigma.min() >= 0 and ours.sigma.max() <= 1
    assert ours.sigma.sum() == pytest.approx(cone.n_selected)
    np.testing.assert_allclose(ours.sigma, other.sigma, atol=0.02)
    means = cone.mean @ ours.V
    spread = abs(means[0]) if len(means) == 1 else np.ptp(means)
    assert spread <= cone.balance + 1e-6


def test_a_warm_start_changes_the_way_but_not_the_end():
    cone = CASES["wide"]
    cold = solve_cone(cone, solver="active")
    warm = solve_cone(cone, solver="active", start=cold.slopes)
    assert warm.objective == pytest.approx(cold.objective, rel=1e-5)
    assert warm.n_iter <= cold.n_iter
    misleading = solve_cone(cone, solver="active", start=2 - cold.slopes)
    assert misleading.objective == pytest.approx(cold.objective, rel=1e-5)


def test_features_that_are_missing_enter_near_the_solution():
    cone = CASES["wide"]
    cold = solve_cone(cone, solver="active")
    lacking = np.ones(cone.n_features)
    lacking[np.argsort(-cold.sigma, kind="stable")[[0, 3]]] = 0.0
    entered = solve_cone(cone, solver="active", start=lacking)
    assert entered.objective == pytest.approx(cold.objective, rel=1e-5)
    assert entered.gap <= 1e-5
    np.testing.assert_allclose(entered.sigma, cold.sigma, atol=0.02)


def test_constant_features_get_nothing():
    cone = program(20, 1, 4)
    cone.planes[:, 3] = 0.0
    solution = solve_cone(cone, solver="active")
    assert solution.V[3] == pytest.approx(0, abs=1e-6)
    assert solution.sigma[3] < 1e-3


def test_an_unknown_solver_is_refused():
    with pytest.raises(InputError, match="auto, clarabel or active"):
        solve_cone(CASES["one feature"], solver="scs")


@given(
    st.lists(st.floats(0, 1e3), min_size=1, max_size=12),
    st.integers(1, 12),
)
@settings(max_examples=200, deadline=None)
def test_the_weights_minimize_and_the_dual_bounds(values, m):
    norms = np.array(values)
    m = min(m, len(norms))
    sigma = weights_of(norms, m)
    assert sigma.min() >= 0 and sigma.max() <= 1 + 1e-12
    assert sigma.sum() == pytest.approx(m)
    # Fenchel: <u, r> <= norm(u) + dual(r), with equality at r = u / sigma.
    least = half_squared_norm(norms, m)
    slopes = np.divide(norms, sigma, out=np.zeros_like(norms), where=sigma > 0)
    assert norms @ slopes <= least + half_squared_dual(slopes, m) + 1e-6 * (1 + least)
    assert least == pytest.approx(0.5 * norms @ slopes, rel=1e-9, abs=1e-12)


def test_the_scaling_takes_one_element_to_the_other():
    generator = np.random.default_rng(0)
    x, s = generator.normal(size=(2, 5, 50))
    for z in (x, s):
        z[0] = np.linalg.norm(z[1:], axis=0) * (1 + generator.random(50)) + 1e-3
    scaling = soc.Scaling(np.stack([x, s]))
    np.testing.assert_allclose(scaling.half(x), scaling.middle)
    np.testing.assert_allclose(scaling.half(scaling.half(x)), s, rtol=1e-8, atol=1e-8)
    # Scaled changes of both; those of x and s themselves say how far these may go.
    changes = generator.normal(size=(2, *x.shape))
    moved = [scaling.half(changes[0]), scaling.half(changes[1])]
    a = scaling.longest(np.stack([moved[0], changes[1]]))
    least = [soc.edge(z + a * step).min() for z, step in ((x, changes[0]), (s, moved[1]))]
    assert min(least) == pytest.approx(0, abs=1e-8)
    inside = [soc.edge(z + 0.999 * a * step).min() for z, step in ((x, changes[0]), (s, moved[1]))]
    assert min(inside) > 0
    assert scaling.longest(np.stack([scaling.middle, scaling.middle])) == np.inf
    # A push leads the Jordan product of the middle and both changes to its target.
    aim, middle = scaling.push(changes, 0.5), scaling.middle
    wanted = -_jordan(*changes)
    wanted[0] += 0.5
    np.testing.assert_allclose(_jordan(middle, middle + aim), wanted, rtol=1e-6, atol=1e-6)


def _jordan(a, b):
    return np.vstack([(a * b).sum(axis=0), a[0] * b[1:] + b[0] * a[1:]])


@pytest.mark.slow
def test_ours_is_ten_times_faster_on_images_with_five_clusters():
    cone = program(784, 5, 50, n_planes=20, smoothness=0.05)
    seconds = {}
    for solver in ("active", "clarabel"):
        begun = time.perf_counter()
        solution = solve_cone(cone, solver=solver)
        seconds[solver] = time.perf_counter() - begun, solution.objective
    assert seconds["active"][1] == pytest.approx(seconds["clarabel"][1], rel=1e-4)
    assert 10 * seconds["active"][0] < seconds["clarabel"][0], seconds
