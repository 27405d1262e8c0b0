"""Numerical routines on small dense arrays: no I/O, no Dask."""
