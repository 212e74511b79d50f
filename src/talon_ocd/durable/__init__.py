"""Durable: a stream that survives: journal, snapshots, replay."""
