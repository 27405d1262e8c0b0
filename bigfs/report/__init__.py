"""Reports and figures of results."""
