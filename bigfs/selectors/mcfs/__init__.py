"""mcfs."""
