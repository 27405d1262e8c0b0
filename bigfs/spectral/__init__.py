"""Spectral embeddings of neighbor graphs."""

from bigfs.spectral.embedding import SpectralEmbedding, spectral_embedding

__all__ = ["SpectralEmbedding", "spectral_embedding"]
