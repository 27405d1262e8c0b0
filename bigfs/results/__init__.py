"""A finished run as an object."""
