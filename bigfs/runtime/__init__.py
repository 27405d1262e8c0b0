"""All scheduling: connecting to Dask, checks of its processes, tasks, progress, interrupts."""
