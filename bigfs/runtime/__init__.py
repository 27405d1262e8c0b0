"""Scheduling: connections to Dask, checks of its processes, tasks, progress, interrupts."""
