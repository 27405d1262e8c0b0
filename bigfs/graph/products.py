"""Dot products and cosines of the two rows of every edge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.blocks import BlockReader, RowBlocks
from bigfs.blocks.kernels import tile_rows
from bigfs.runtime.execute import run_tasks
from bigfs.store.scratch import ArrayRef, Scratch


@dataclass(frozen=True)
class EdgeProducts:
    """Products along the edges of a neighbor graph."""

    values: ArrayRef  # of shape (n_samples, n_neighbors), float64: of each row with its neighbors
    least: float  # the least positive one, 0 if there is none
    n_unlike: int  # rows whose products with all their neighbors are zero: rows of zeros, above all


def edge_products(
    blocks: RowBlocks, indices: ArrayRef, weight: str, working: Scratch
) -> EdgeProducts:
    """Return the product of every row with each of its neighbors.

    Each block is one task, which also reads the rows that its edges lead to, of one other block
    at a time. The value of an edge is the same bits from both ends.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    indices : ArrayRef of shape (n_samples, n_neighbors), int32
    weight : {"dot", "cosine"}
        ``x'y``, or ``x'y / (|x| |y|)``, which is zero for a row of zeros.
    working : Scratch
        Where the values are stored.
    """
    values = working.create("products", indices.shape, np.float64, blocks.rows)
    results = run_tasks(
        _product_task,
        blocks.bounds,
        blocks.start_pass(),
        indices,
        blocks.rows,
        weight == "cosine",
        values,
        label="products",
        unit="blocks",
    )
    least = min(block_least for block_least, _ in results)
    return EdgeProducts(
        values, least if np.isfinite(least) else 0.0, sum(n_unlike for _, n_unlike in results)
    )


def _product_task(
    bounds: tuple[int, int],
    reader: BlockReader,
    indices: ArrayRef,
    rows: int,
    cosine: bool,
    values: ArrayRef,
) -> tuple[float, int]:
    """Write the products of one block's rows; return the least positive and the unlike rows."""
    start, stop = bounds
    X = reader.read(start, stop)
    neighbors = indices.read(start, stop)
    heads = np.repeat(np.arange(len(X)), neighbors.shape[1])
    tails = neighbors.ravel()
    products: np.ndarray = np.empty(len(tails))
    home = tails // rows
    for other in np.unique(home):
        in_block = np.flatnonzero(home == other)
        if int(other) * rows == start:
            first, Z = start, X
        else:
            first, last = int(tails[in_block].min()), int(tails[in_block].max())
            Z = reader.read(first, last + 1)
        products[in_block] = _pair_products(X, heads[in_block], Z, tails[in_block] - first, cosine)
    products = products.reshape(neighbors.shape)
    values.write(start, products)
    least = float(products.min(initial=np.inf, where=products > 0))
    return least, int((~products.any(axis=1)).sum())


def _pair_products(
    X: np.ndarray, i: np.ndarray, Z: np.ndarray, j: np.ndarray, cosine: bool
) -> np.ndarray:
    """Return ``x_i'z_j`` of every pair, or its cosine, in float64 and in tiles of pairs."""
    products = np.empty(len(i))
    step = tile_rows(X.shape[1])
    for begin in range(0, len(i), step):
        part = slice(begin, begin + step)
        # The order of a row's values decides the order of its sum.
        x = X[i[part]].astype(np.float64, order="C")
        z = Z[j[part]].astype(np.float64, order="C")
        dots = np.einsum("ef,ef->e", x, z)
        if cosine:
            lengths = np.sqrt(np.einsum("ef,ef->e", x, x)) * np.sqrt(np.einsum("ef,ef->e", z, z))
            # Rounding takes the cosine of parallel rows above 1.
            dots = np.clip(dots / np.where(lengths > 0, lengths, np.inf), -1.0, 1.0)
        products[part] = dots
    return products
