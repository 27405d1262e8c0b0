"""Evaluation of selections: metrics, and the protocols of the papers."""
