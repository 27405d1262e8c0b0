"""Shared utilities without internal dependencies."""
