"""gfs_kmeans."""
