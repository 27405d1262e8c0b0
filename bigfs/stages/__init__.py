"""The engine: stages, the stores of their results, and functions that open results again."""
