"""Numerical routines on arrays in memory: no I/O, no Dask."""
