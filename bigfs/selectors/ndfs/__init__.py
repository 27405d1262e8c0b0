"""ndfs."""
