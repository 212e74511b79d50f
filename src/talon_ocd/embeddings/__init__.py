"""Discovery on embeddings: vectors that people have (``streams``), and files of them (``archive``)."""

from talon_ocd.embeddings.archive import Archive, Embedder, Embedding, write_archive
from talon_ocd.embeddings.streams import discover_features, feature_stream

__all__ = ["Archive", "Embedder", "Embedding", "discover_features", "feature_stream", "write_archive"]
