"""Rules that turn features and memory into answers: attach or create."""

from talon_ocd.online.rules.cosine import Assignment, CosineRule

__all__ = ["Assignment", "CosineRule"]
