"""The plan of a run: its cost, whether it fits, and settings that would make it fit."""
