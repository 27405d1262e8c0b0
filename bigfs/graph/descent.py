"""Search within a partition: exact if it is small, else by pynndescent.

`NNDescent` compiles for 25 to 45 s in every process. numba does not cache that code, because it
calls the number of threads through a pointer and contains the address of its distance function.
Here the same functions run with one thread, which is what bigfs requests, and with a distance
that numba knows by its type. The neighbors are bit-identical, and a second process loads the code
in a fraction of a second.
"""

from __future__ import annotations

import logging
import pickle
import threading
import warnings
from collections.abc import Callable
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from bigfs.blocks.kernels import slices
from bigfs.core.errors import InputError
from bigfs.core.seeds import derive_seed
from bigfs.core.threads import compiled
from bigfs.graph.local import nearest, search_exact

logger = logging.getLogger("bigfs")

# Errors raised with another version of pynndescent or a damaged cache file.
_UNUSABLE = (AttributeError, ImportError, TypeError, EOFError, pickle.UnpicklingError)
# The first such error in this process, if any.
_unusable: list[Exception] = []

# Up to this many rows exact search costs less than pynndescent's first call, which compiles for
# 20 s.
EXACT_ROWS = 8192
# pynndescent explores at least this many neighbors: with fewer it would also lose recall.
SEARCH_WIDTH = 16
# pynndescent passes row numbers through float32.
MAX_ROWS = 2**24
_TILE_BYTES = 16 * 1024**2
_TILE_ROWS = 65_536
# With numba's workqueue layer, two threads inside parallel kernels abort the process.
_numba_lock = threading.Lock()


def search_prepared(
    rows: np.ndarray,
    n_neighbors: int,
    seed: int,
    exact_rows: int,
    effort: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return neighbors (int32) and squared distances (float64) among prepared rows.

    Up to ``exact_rows`` rows are searched exactly, as are always too few rows for an index.
    ``effort`` multiplies the number of neighbors that pynndescent explores.
    """
    if len(rows) <= max(exact_rows, 2 * SEARCH_WIDTH, 2 * (n_neighbors + 1)):
        return search_exact(rows, n_neighbors, rows, np.arange(len(rows)))
    if len(rows) >= MAX_ROWS:
        raise InputError(
            f"pynndescent supports fewer than {MAX_ROWS:,} rows at a time. Got {len(rows):,}. "
            "Lower memory_limit, so that the rows are divided into more partitions."
        )
    width = int(effort * max(n_neighbors + 1, SEARCH_WIDTH))
    data = rows if rows.dtype == np.float32 else _in_float32(rows)
    with _numba_lock:
        candidates = descend(data, width, seed)
        del data
    # Sums may be reordered for speed.
    squares = compiled(_squares, "reassoc", "contract")
    indices = np.full((len(rows), n_neighbors), -1, np.int32)
    squared = np.full((len(rows), n_neighbors), np.inf)
    for tile in slices(len(rows), _TILE_ROWS):
        far = squares(rows, tile.start, candidates[tile])
        indices[tile], squared[tile] = nearest(candidates[tile], far, n_neighbors, power=2)
    # Rows with too few neighbors are searched again, exactly.
    short = np.flatnonzero(np.isinf(squared[:, -1]))
    if len(short):
        indices[short], squared[short] = search_exact(rows, n_neighbors, rows[short], short)
    return indices, squared


def _in_float32(rows: np.ndarray) -> np.ndarray:
    """Return rows minus their mean: float32 has few digits far from the origin."""
    out, center = np.empty(rows.shape, np.float32), rows.mean(axis=0)
    for part in slices(len(rows), max(1, _TILE_BYTES // (8 * rows.shape[1]))):
        out[part] = rows[part] - center
    return out


def _squares(rows: Any, first_row: int, candidates: Any) -> np.ndarray:
    """Return the squared distances of some rows from their candidates; compiled by numba."""
    squared = np.full(candidates.shape, np.inf)
    for i in range(candidates.shape[0]):
        for c in range(candidates.shape[1]):
            j = candidates[i, c]
            if j < 0 or j == first_row + i:
                continue
            total = 0.0
            for f in range(rows.shape[1]):
                gap = np.float64(rows[first_row + i, f]) - np.float64(rows[j, f])
                total += gap * gap
            squared[i, c] = total
    return squared


def descend(data: np.ndarray, width: int, seed: int) -> np.ndarray:
    """Return pynndescent's neighbors of every row, which may include the row itself and -1.

    Not thread-safe: with numba's workqueue layer, concurrent calls abort the process.

    Parameters
    ----------
    data : ndarray of shape (n_rows, n_features), float32
    width : int
        Number of neighbors to return.
    seed : int

    Returns
    -------
    neighbors : ndarray of shape (n_rows, width), int32
    """
    import numba

    threads = numba.get_num_threads()
    try:
        with warnings.catch_warnings():
            # Rows with missing neighbors are searched again, exactly.
            warnings.filterwarnings("ignore", message="Failed to correctly find n_neighbors")
            index = _index(
                np.ascontiguousarray(data),
                metric="euclidean",
                n_neighbors=width,
                n_jobs=1,
                random_state=derive_seed(seed, "pynndescent") & 0x7FFFFFFF,
            )
        return np.asarray(index.neighbor_graph[0])
    finally:
        numba.set_num_threads(threads)


def is_compiled() -> bool:
    """Return True if the search need not compile: its code is in this process or on disk."""
    if _unusable:
        return True  # the search that met the error has compiled pynndescent's own code
    try:
        descent = _kept_index().descent  # type: ignore[attr-defined]
        # numba has no public name for the index of its cache.
        return bool(descent.signatures or descent._cache._cache_file._load_index())
    except Exception:
        return False


def _index(rows: np.ndarray, **settings: Any) -> Any:
    """Return pynndescent's index, by our cached code if pynndescent's functions are as expected."""
    import numba
    from pynndescent import NNDescent

    if not _unusable:
        try:
            return _kept_index()(rows, **settings)
        except (*_UNUSABLE, numba.core.errors.NumbaError) as error:
            logger.debug("the cached compiled code of pynndescent cannot be used: %r", error)
            _unusable.append(error.with_traceback(None))  # its frames would keep the rows alive
    return NNDescent(rows, **settings)


@cache
def _kept_index() -> Callable[..., Any]:
    """Return an `NNDescent` class whose iterations are compiled once for all processes.

    Raises
    ------
    AttributeError, ImportError
        If pynndescent's functions are not as expected.
    """
    import numba
    import pynndescent
    from pynndescent import distances
    from pynndescent import pynndescent_ as module

    one_thread = ModuleType("numba")
    one_thread.get_num_threads = numba.njit(_one_thread)  # type: ignore[attr-defined]
    iterate = numba.njit(_with_globals(module.nn_descent_internal.py_func, numba=one_thread))
    search = numba.njit(
        _with_globals(module.nn_descent.py_func, numba=one_thread, nn_descent_internal=iterate)
    )
    numba.extending.overload(_distance)(lambda x, y: lambda x, y: distances.squared_euclidean(x, y))
    # numba finds cached code by the name and file of a function, so the name contains the version.
    run = _with_globals(_run, name=f"_run_{pynndescent.__version__}", search=search)
    descent = compiled(run)

    def nn_descent(
        data: np.ndarray, n_neighbors: int, rng_state: np.ndarray, max_candidates: int,
        dist: Any, n_iters: int, delta: float, *, low_memory: bool, rp_tree_init: bool,
        init_graph: Any, leaf_array: np.ndarray, verbose: bool, kernel: int,
    ) -> Any:  # fmt: skip
        if dist is not distances.squared_euclidean or verbose or not (low_memory and rp_tree_init):
            raise TypeError("NNDescent requests an unsupported search")
        return descent(
            data, n_neighbors, rng_state, max_candidates, n_iters, delta, init_graph, leaf_array,
            kernel,
        )  # fmt: skip

    begin = _with_globals(module.NNDescent.__init__, nn_descent=nn_descent)
    return type("KeptNNDescent", (module.NNDescent,), {"__init__": begin, "descent": descent})


def _with_globals(function: Callable[..., Any], name: str | None = None, **values: Any) -> Any:
    """Return a copy of a function in which some global names have other values."""
    assert isinstance(function, FunctionType)
    copy = FunctionType(
        function.__code__, {**function.__globals__, **values}, argdefs=function.__defaults__
    )
    copy.__qualname__ = name or function.__qualname__
    return copy


def _one_thread() -> int:
    return 1


def _distance(x: Any, y: Any) -> Any:
    """Return the squared Euclidean distance of two rows; compiled code uses pynndescent's."""
    return np.square(x - y).sum()


def _run(
    data: Any, n_neighbors: Any, rng_state: Any, max_candidates: Any, n_iters: Any, delta: Any,
    init_graph: Any, leaf_array: Any, kernel: Any,
) -> Any:  # fmt: skip
    """Search; compiled by numba with pynndescent's own ``nn_descent`` as ``search``."""
    return search(  # type: ignore[name-defined]  # noqa: F821
        data, n_neighbors, rng_state, max_candidates, _distance, n_iters, delta, init_graph, True,
        leaf_array, True, False, kernel,
    )  # fmt: skip
