"""Stability: one method on many small samples of the rows, drawn in pairs that share no row."""
