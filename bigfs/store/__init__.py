"""Opening, ingesting and checking data, and the run directory."""

from bigfs.store.ingest import IngestReport, ingest
from bigfs.store.source import Source, open_matrix

__all__ = ["IngestReport", "Source", "ingest", "open_matrix"]
