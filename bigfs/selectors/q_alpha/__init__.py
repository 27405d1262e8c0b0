"""q_alpha."""
