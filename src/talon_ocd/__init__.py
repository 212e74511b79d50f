"""On-the-fly category discovery in image streams."""

__version__ = "0.1.0"
