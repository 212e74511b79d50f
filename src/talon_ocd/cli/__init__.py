"""Command line: one file a command; it only translates."""
