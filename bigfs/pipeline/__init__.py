"""Several methods on the same data, and the tables of the papers."""

from bigfs.pipeline.compare import compare
from bigfs.pipeline.table import ComparisonResult

__all__ = ["ComparisonResult", "compare"]
