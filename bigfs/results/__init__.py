"""Results of finished runs: reading, plotting and export."""
