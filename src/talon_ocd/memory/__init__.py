"""Memory: sufficient statistics of every category, exact search over them, and their update from the stream."""

from talon_ocd.memory.prototypes import PrototypeMemory
from talon_ocd.memory.refine import Groups, moved, refine
from talon_ocd.memory.search import Neighbours, nearest_two

__all__ = ["Groups", "Neighbours", "PrototypeMemory", "moved", "nearest_two", "refine"]
