"""Sources one below the other, as one matrix."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.csr import CSRLayout, SparseSource, as_block
from bigfs.store.source import Source, check_shape, common_types, listed


class ChainedSource(Source):
    """Sources one below the other, with the features of the first, matched by name.

    Parameters
    ----------
    parts : sequence of Source
        At least one.
    uri : str
        What messages call all of them.

    Raises
    ------
    InputError
        If a part has other features than the first.
    """

    def __init__(self, parts: Sequence[Source], uri: str) -> None:
        self.parts, self.uri = list(parts), uri
        first = self.parts[0]
        self.n_features, self.feature_names = first.n_features, first.feature_names
        self._orders = [_order(part, first) for part in self.parts]
        self.dtype = np.result_type(*(part.dtype for part in self.parts))
        self._stored = np.result_type(*(part.stored_dtype for part in self.parts))
        counts = [part.n_samples for part in self.parts]
        self.n_samples = None if None in counts else sum(counts)  # type: ignore[arg-type]
        if self.n_samples is not None:
            check_shape((self.n_samples, self.n_features), uri)
        self.notes, self.categories = first.notes, dict(first.categories)
        self.encoded = dict(first.encoded)
        self.column_types = common_types(self.parts)
        self.index = first.index if len({part.index for part in self.parts}) == 1 else None
        self.starts_quickly = first.starts_quickly
        self.held_bytes = max(part.held_bytes for part in self.parts)
        self.temporary_bytes = max(part.temporary_bytes for part in self.parts)
        self._read_rows = [0] * len(self.parts)

    @property
    def estimated_samples(self) -> int | None:
        """The sum of what the parts say; None if one of them cannot tell."""
        counts = [part.estimated_samples for part in self.parts]
        return None if None in counts else sum(counts)  # type: ignore[arg-type]

    @property
    def sources(self) -> list[tuple[str, int]]:  # type: ignore[override]
        """Name and rows of every part, once all rows were read."""
        return [(p.uri, n) for p, n in zip(self.parts, self._read_rows, strict=True)]

    def locate(self, row: int) -> tuple[str, int]:
        """Return the part that a row of those read so far is in, and its number there."""
        ends = list(accumulate(self._read_rows))
        i = min(bisect_right(ends, row), len(ends) - 1)
        # Rows are counted before they are handed out.
        return self.parts[i].locate(row - (ends[i - 1] if i else 0))

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        for block, order in self._each(lambda part: part.iter_blocks(rows)):
            block = block if order is None else block[:, order]
            yield np.ascontiguousarray(block, self.dtype)

    def iter_index(self) -> Iterator[list[str]]:
        """Yield the ids of the rows."""
        if self.index is not None:
            for part in self.parts:
                yield from part.iter_index()

    def _each(self, read: Any) -> Iterator[tuple[Any, np.ndarray | None]]:
        """Yield the blocks of all parts with the order of their columns, and count the rows."""
        self._read_rows = [0] * len(self.parts)
        for i, (part, order) in enumerate(zip(self.parts, self._orders, strict=True)):
            for block in read(part):
                self._read_rows[i] += block.shape[0]
                yield block, order


class ChainedSparse(SparseSource, ChainedSource):
    """Sparse sources one below the other."""

    parts: list[SparseSource]  # type: ignore[assignment]

    @property
    def layout(self) -> CSRLayout | None:
        """The smallest blocks of the parts; None if one of them does not know."""
        layouts = [part.layout for part in self.parts]
        known = [layout for layout in layouts if layout is not None]
        if len(known) < len(layouts):
            return None
        return CSRLayout(
            min(layout.rows for layout in known),
            sum(layout.n_entries for layout in known),
            max(layout.block_entries for layout in known),
        )

    def iter_csr(self, rows: int) -> Iterator[Any]:
        """Yield consecutive CSR blocks of at most ``rows`` rows."""
        for block, order in self._each(lambda part: part.iter_csr(rows)):
            yield as_block(block if order is None else block[:, order], self.dtype)


def chain(parts: Sequence[Source], uri: str) -> ChainedSource:
    """Return sources one below the other: all sparse, or all dense."""
    sparse = [part.sparse for part in parts]
    if len(set(sparse)) > 1:
        a, b = parts[sparse.index(True)].uri, parts[sparse.index(False)].uri
        raise InputError(f"{uri}: {a} is sparse and {b} is not. Convert them to the same form.")
    return ChainedSparse(parts, uri) if sparse[0] else ChainedSource(parts, uri)


def _order(part: Source, first: Source) -> np.ndarray | None:
    """Return the columns of a part in the order of the first, None if it is theirs."""
    names, expected = part.feature_names, first.feature_names
    if names is None or expected is None:
        if (names is None) != (expected is None):
            without, named = (part, first) if names is None else (first, part)
            raise InputError(
                f"{without.uri} has no names of features and {named.uri} has. All sources need "
                "them, or none."
            )
        if part.n_features != first.n_features:
            raise InputError(
                f"{part.uri} has {part.n_features:,} features and {first.uri} has "
                f"{first.n_features:,}. All sources need the same."
            )
        return None
    if names == expected:
        return None
    places = {name: j for j, name in enumerate(names)}
    missing = [name for name in expected if name not in places]
    new = sorted(places.keys() - set(expected))
    if missing or new:
        differ = [f"it has no {listed(missing)}"] if missing else []
        differ += [f"only it has {listed(new)}"] if new else []
        raise InputError(
            f"{part.uri} has other features than {first.uri}: {' and '.join(differ)}. All sources "
            "need the same; of tables input.columns (--columns, columns=) chooses common ones."
        )
    return np.array([places[name] for name in expected])
