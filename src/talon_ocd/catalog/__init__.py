"""Catalog: what people say about categories: names, merges, splits, and undo of all of it."""
