"""Who is known, who is labelled, and in which order the rest streams (section 7 of the specification).

``sampling`` draws the labelled half and the orders of the stream; ``lists`` reads the published lists of known and new
classes, which lie beside it as plain text with their checksums in ``SHA256SUMS``.
"""

from talon_ocd.evaluation.splits.lists import ClassSplit, class_names, class_split, first_classes
from talon_ocd.evaluation.splits.sampling import (
    Indices,
    SamplingRule,
    Split,
    StreamOrder,
    known_classes,
    labelled_half,
    split,
    stream_order,
)
from talon_ocd.evaluation.splits.scenarios import Scenario, scenario_order

__all__ = [
    "ClassSplit",
    "Indices",
    "SamplingRule",
    "Scenario",
    "Split",
    "StreamOrder",
    "class_names",
    "class_split",
    "first_classes",
    "known_classes",
    "labelled_half",
    "scenario_order",
    "split",
    "stream_order",
]
