"""The papers' algorithms, dense and slow and obvious; never imported by bigfs."""
