"""Measure a stream and show what it did: scores, protocols and the report."""

from talon_ocd.evaluation.report import Exemplars, ReportInput, thumbnail, write_report
from talon_ocd.metrics import Accuracy, greedy_accuracy, strict_accuracy

__all__ = [
    "Accuracy",
    "Exemplars",
    "ReportInput",
    "greedy_accuracy",
    "strict_accuracy",
    "thumbnail",
    "write_report",
]
