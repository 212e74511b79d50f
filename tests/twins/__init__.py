"""Slow, obvious re-implementations that the tests use as oracles."""
