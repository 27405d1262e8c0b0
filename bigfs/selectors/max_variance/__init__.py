"""max_variance."""
