"""The matrix as row blocks, their kernels, preprocessing and k-means."""

from bigfs.blocks.lazy import lazy_array
from bigfs.blocks.rowblocks import BlockReader, RowBlocks

__all__ = ["BlockReader", "RowBlocks", "lazy_array"]
