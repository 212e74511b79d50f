"""Online: decide, remember and adapt while images arrive."""

from talon_ocd.online.adapt import AdaptationLoss, EncoderAdapter, adaptation_loss, entropy
from talon_ocd.online.bounds import Bounds
from talon_ocd.online.decision import Decision, Verdict, decisions, discovered_name
from talon_ocd.online.feature_stream import FeatureArray, FeatureStream, matrix, unit
from talon_ocd.online.guard import Guard, GuardVerdict
from talon_ocd.online.probe import Probe
from talon_ocd.online.rules import Assignment, CosineRule, Evidence, EvidenceRule
from talon_ocd.online.second_thoughts import Merge, Move, SecondThoughts
from talon_ocd.online.stream import DiscoveryStream, Picture

__all__ = [
    "AdaptationLoss",
    "Assignment",
    "Bounds",
    "CosineRule",
    "Decision",
    "DiscoveryStream",
    "EncoderAdapter",
    "Evidence",
    "EvidenceRule",
    "FeatureArray",
    "FeatureStream",
    "Guard",
    "GuardVerdict",
    "Merge",
    "Move",
    "Picture",
    "Probe",
    "SecondThoughts",
    "Verdict",
    "adaptation_loss",
    "decisions",
    "discovered_name",
    "entropy",
    "matrix",
    "unit",
]
