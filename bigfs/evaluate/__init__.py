"""How good a selection is: metrics, and the papers' protocols."""
