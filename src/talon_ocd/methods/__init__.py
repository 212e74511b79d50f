"""The methods room: TALON and every method it is compared with, under one contract.

Read ``base`` (recipe, method) and ``streams`` (what a stream is), ``networks`` and ``training`` (shared parts), then
any method: each is one file. ``registry`` knows them by name.
"""

from talon_ocd.methods.base import GradientRecipe, Method, Recipe, Trained
from talon_ocd.methods.networks import HeadNetwork
from talon_ocd.methods.registry import Entry, get_method, list_methods, register_file
from talon_ocd.methods.streams import FrozenStream, Match, MethodStream, OneByOneStream, PrototypeStream
from talon_ocd.methods.training import Group, Training

__all__ = [
    "Entry",
    "FrozenStream",
    "GradientRecipe",
    "Group",
    "HeadNetwork",
    "Match",
    "Method",
    "MethodStream",
    "OneByOneStream",
    "PrototypeStream",
    "Recipe",
    "Trained",
    "Training",
    "get_method",
    "list_methods",
    "register_file",
]
