"""Evaluation of selections: metrics, and the papers' protocols."""
