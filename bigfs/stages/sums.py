"""Sums over all rows kept by a stage: later stages and updates need not read these rows again."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np

from bigfs.blocks.kernels import Gram, Moments, PartialGram
from bigfs.graph.representation import gram_is_kept
from bigfs.store.location import Location
from bigfs.store.scratch import ArrayRef, Scratch

_MOMENTS = "moments"
# Names of the arrays that store the fields of `Gram`.
_GRAM = {"gram": "gram", "mean": "gram_mean", "xty": "gram_xty", "y_mean": "gram_y_mean"}


def store_moments(moments: Moments, out: Scratch) -> None:
    """Store moments in the folder of a result."""
    count, *values = astuple(moments)
    out.put(_MOMENTS, np.array([np.full_like(moments.mean, count), *values]))


def read_moments(folder: Location) -> Moments | None:
    """Return the moments that a result keeps; None if it has none."""
    if not (folder / _MOMENTS).exists():
        return None
    counts, *values = ArrayRef.at(folder / _MOMENTS).load()
    return Moments(int(counts[0]), *values)


def store_gram(gram: Gram, out: Scratch) -> None:
    """Store a Gram matrix, and X'Y, in the folder of a stage, unless it is large."""
    if gram_is_kept(len(gram.gram)):
        for field, name in _GRAM.items():
            out.put(name, getattr(gram, field))


def read_gram(folder: Location, count: int) -> PartialGram | None:
    """Return the Gram matrix, of ``count`` rows, that a result keeps; None if it has none."""
    if not (folder / _GRAM["gram"]).exists():
        return None
    gram, mean = (ArrayRef.at(folder / _GRAM[field]).load() for field in ("gram", "mean"))
    return PartialGram(count, mean, np.asfortranarray(gram))


def read_products(folder: Location, count: int) -> Gram:
    """Return the Gram matrix and X'Y, of ``count`` rows, that a stage keeps."""
    arrays = {field: ArrayRef.at(folder / name).load() for field, name in _GRAM.items()}
    return Gram(count, **arrays)
