"""Memory: sufficient statistics of every category, exact search over them, and their update from the stream."""

from talon_ocd.memory.beliefs import Beliefs
from talon_ocd.memory.merges import merges
from talon_ocd.memory.neighbours import CandidateIndex
from talon_ocd.memory.prototypes import PrototypeMemory
from talon_ocd.memory.recent import Recent
from talon_ocd.memory.refine import Groups, moved, nudge, refine
from talon_ocd.memory.search import Neighbours, nearest_two
from talon_ocd.memory.two_covariance import TwoCovariance

__all__ = [
    "Beliefs",
    "CandidateIndex",
    "Groups",
    "Neighbours",
    "PrototypeMemory",
    "Recent",
    "TwoCovariance",
    "merges",
    "moved",
    "nearest_two",
    "nudge",
    "refine",
]
