"""What a run will cost, whether it fits, and what would make it fit."""
