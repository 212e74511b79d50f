"""Benchmarks (room between evaluation and cli): what the machine gives, as ratios taken in one run.

Read ``timing`` (medians of interleaved repeats) and ``result`` (a measurement and its target), then ``twin`` (the
released code's formulation), ``scenes`` (encoders and data to measure with), and the groups: ``stream``, ``decisions``,
``training``, ``memory``. ``suite`` runs them. Nothing here prints: the command ``talon bench speed`` does.
"""

from talon_ocd.benchmarks.result import Result
from talon_ocd.benchmarks.suite import GROUPS, machine, run
from talon_ocd.benchmarks.timing import Timing, interleaved
from talon_ocd.benchmarks.twin import OneByOne, TwoForward

__all__ = ["GROUPS", "OneByOne", "Result", "Timing", "TwoForward", "interleaved", "machine", "run"]
