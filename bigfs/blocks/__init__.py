"""The matrix as row blocks, their kernels, preprocessing and k-means."""

from bigfs.blocks.rowblocks import BlockReader, RowBlocks, lazy_array

__all__ = ["BlockReader", "RowBlocks", "lazy_array"]
