"""Pipelines: runs, and comparisons of several methods on the same data."""

from bigfs.pipeline.compare import compare
from bigfs.pipeline.table import ComparisonResult

__all__ = ["ComparisonResult", "compare"]
