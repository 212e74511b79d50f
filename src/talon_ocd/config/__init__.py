"""Every setting of the method, as frozen dataclasses: one object feeds the API, the flags, TOML files and checkpoints.

Each field's docstring gives its symbol, the paper's value and where paper and released code disagree (``#n`` is row n
of the table in ``docs/deviations.md``). Presets are data: they differ only in field values.
"""

from talon_ocd.config.evidence import EvidenceConfig
from talon_ocd.config.offline import CalibrationConfig, OfflineConfig
from talon_ocd.config.online import ADAPTATIONS, Adaptation, GuardConfig, OnlineConfig, parse_adapt
from talon_ocd.config.talon import PRESETS, TalonConfig

__all__ = [
    "ADAPTATIONS",
    "PRESETS",
    "Adaptation",
    "CalibrationConfig",
    "EvidenceConfig",
    "GuardConfig",
    "OfflineConfig",
    "OnlineConfig",
    "TalonConfig",
    "parse_adapt",
]
