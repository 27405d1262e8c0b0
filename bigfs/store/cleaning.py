"""Values of a dense matrix on their way into a store: refused, filled, or their rows left out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.text import FROM_0
from bigfs.runtime.progress import track
from bigfs.store.fingerprint import changed
from bigfs.store.source import Source
from bigfs.store.values import TOO_LARGE, all_usable, checksum, usable

# The policy of copies that are read once: NaN stays.
KEEP = "keep"


class Cleaner:
    """Checks every value, and fills or drops NaN as the policy says.

    ``sums`` are the checksums of the blocks when they were read for the first time, if they were.
    """

    def __init__(
        self, matrix: Source, missing: str, fill: np.ndarray | None, sums: list[str] | None
    ) -> None:
        self._matrix, self._missing, self._fill, self._sums = matrix, missing, fill, sums
        self._dropped: list[np.ndarray] = []
        self.n_read = self.filled = self.dropped = 0

    def clean(self, blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield the blocks without NaN."""
        for i, block in enumerate(blocks):
            if self._sums is not None and self._sums[i : i + 1] != [checksum(block)]:
                raise changed(self._matrix.uri)
            cleaned = block if all_usable(block) else self._mend(block, usable(block))
            self.n_read += len(block)
            yield cleaned

    def dropped_positions(self) -> list[int]:
        """Return which rows were dropped."""
        return np.concatenate(self._dropped).tolist() if self._dropped else []

    def kept(self, pieces: Iterator[list[str]]) -> Iterator[list[str]]:
        """Yield the ids of all rows that were not dropped."""
        dropped = set(self.dropped_positions())
        row = 0
        for piece in pieces:
            yield [text for i, text in enumerate(piece, row) if i not in dropped]
            row += len(piece)

    def _mend(self, block: np.ndarray, good: np.ndarray) -> np.ndarray:
        """Return a block without NaN, or raise at the first value that must not be there."""
        nan = np.isnan(block)
        bad = ~good if self._missing == "error" else ~good & ~nan
        if bad.any():
            self._refuse(block, bad)
        if self._missing == KEEP:
            return block
        if self._missing == "drop_rows":
            keep = ~nan.any(axis=1)
            self.dropped += int((~keep).sum())
            self._dropped.append(self.n_read + np.flatnonzero(~keep))
            return block[keep]
        self.filled += int(nan.sum())
        return np.where(nan, np.zeros(1, block.dtype) if self._fill is None else self._fill, block)

    def _refuse(self, block: np.ndarray, bad: np.ndarray) -> None:
        row = int(bad.any(axis=1).argmax())
        column = int(bad[row].argmax())
        raise refusal(self._matrix, self.n_read + row, column, float(block[row, column]))


def refusal(matrix: Source, row: int, column: int, value: float) -> InputError:
    """Return the error for a value that cannot be used."""
    name = f" ({matrix.feature_names[column]!r})" if matrix.feature_names else ""
    if np.isnan(value):
        cure = (
            "Remove or fill it, or choose a policy: missing = mean, zero or drop_rows "
            "(--set input.missing=mean; ingest: --missing mean)."
        )
    elif np.isinf(value):
        cure = "Infinity cannot be filled: correct the data."
    else:
        cure = TOO_LARGE
    uri, row = matrix.locate(row)
    return InputError(
        f"{uri}: row {row}, column {column}{name} is "
        f"{'NaN' if np.isnan(value) else value}. {cure} {FROM_0}"
    )


def fill_values(matrix: Source, rows: int) -> tuple[np.ndarray, list[str]]:
    """Return the means of the columns without NaN, and the blocks' checksums: one read."""
    sums = []
    total = np.zeros(matrix.n_features)
    count = np.zeros(matrix.n_features, dtype=np.int64)
    with track("column means", matrix.n_samples, "rows") as progress:
        for block in matrix.iter_blocks(rows):
            finite = np.isfinite(block)
            with np.errstate(over="ignore"):  # refused below
                total += np.where(finite, block, 0).sum(axis=0, dtype=np.float64)
            count += finite.sum(axis=0)
            sums.append(checksum(block))
            progress.advance(len(block))
    useless = (count == 0) | ~np.isfinite(total)
    if useless.any():
        column = int(useless.argmax())
        name = f" ({matrix.feature_names[column]!r})" if matrix.feature_names else ""
        why = "values too large to add up" if count[column] else "no values at all"
        raise InputError(
            f"{matrix.uri}: column {column}{name} has {why}, so it has no mean. Drop it, or use "
            "missing = zero."
        )
    return (total / count).astype(matrix.dtype), sums
