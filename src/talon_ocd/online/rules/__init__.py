"""Rules that turn features and memory into answers: attach or create."""

from talon_ocd.online.rules.assignment import Assignment
from talon_ocd.online.rules.cosine import CosineRule
from talon_ocd.online.rules.evidence import Evidence, EvidenceRule

__all__ = ["Assignment", "CosineRule", "Evidence", "EvidenceRule"]
