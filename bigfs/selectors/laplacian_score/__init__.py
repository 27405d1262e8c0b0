"""laplacian_score."""
