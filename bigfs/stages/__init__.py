"""The engine: stages, the stores of their results, and how results are opened again."""
