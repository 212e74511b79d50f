"""Service: the stream over HTTP, and the page for people."""
