"""Stability: one method fitted to many samples of the rows, drawn in pairs that share no row."""
