"""All settings together: presets, changes by name, plain data and TOML (layer: config)."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from talon_ocd.config.evidence import EvidenceConfig
from talon_ocd.config.offline import CalibrationConfig, OfflineConfig
from talon_ocd.config.online import ADAPTATIONS, GuardConfig, OnlineConfig
from talon_ocd.errors import ConfigError, nearest
from talon_ocd.settings import build, check_types, merge, require, toml

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - Python 3.10
    import tomli as tomllib

PRESETS = ("default", "official", "paper")
_SECTIONS = ("offline", "online", "evidence", "calibration", "guard")


@dataclass(frozen=True)
class TalonConfig:
    """All settings of a model. ``TalonConfig()`` is the default preset."""

    preset: str = "default"
    """The preset that this config started from; fields may have been changed since."""
    seed: int = 0
    """Seed of everything random in training and rehearsal. Code and paper: 1028."""
    offline: OfflineConfig = field(default_factory=OfflineConfig)
    online: OnlineConfig = field(default_factory=OnlineConfig)
    evidence: EvidenceConfig = field(default_factory=EvidenceConfig)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)

    def __post_init__(self) -> None:
        check_types(self)
        require(self, "seed", 0 <= self.seed < 2**32, "between 0 and 2^32 - 1")

    @classmethod
    def from_preset(cls, name: str, family: str = "") -> TalonConfig:
        """Return a preset; ``family`` (``clip``, ``dino``, ...) picks the values that depend on the backbone.

        >>> TalonConfig.from_preset("official", "clip").online.threshold
        0.75
        """
        makers = {
            "default": lambda: cls.default(family),
            "official": lambda: cls.official(family),
            "paper": lambda: cls.paper(family),
        }
        if name not in makers:
            raise ConfigError(f"preset {name!r} is not known; use one of {', '.join(PRESETS)}.{nearest(name, PRESETS)}")
        made = makers[name]()
        if family == "vectors":
            # Embeddings have no random views, and are good as they are unless somebody knows better.
            made = replace(made, offline=replace(made.offline, augmentation="none", epochs=0))
        return made

    @classmethod
    def default(cls, family: str = "") -> TalonConfig:
        """The evidence rule on pre-trained and briefly trained features; an encoder without any is only trained."""
        if family == "tiny-vit":
            offline = OfflineConfig(epochs=30, batch_size=32, classifier_init="random", keep_pretrained=False)
            return cls(offline=offline)
        return cls()

    @classmethod
    def official(cls, family: str = "") -> TalonConfig:
        """The choices of the released code; the threshold of DINO is the paper's, the code has no other (#25)."""
        offline = OfflineConfig(
            epochs=100, keep_pretrained=False, classifier="margin", warmup_epochs=50, warmup_start=1e-4, lr_floor=0.0
        )
        online = OnlineConfig(
            rule="cosine",
            threshold=0.70 if family == "dino" else 0.75,
            adapt=ADAPTATIONS,
            encoder_lr=1e-1 if family == "clip" else 1e-2,
        )
        return cls(preset="official", seed=1028, offline=offline, online=online, guard=GuardConfig(enabled=False))

    @classmethod
    def paper(cls, family: str = "") -> TalonConfig:
        """The paper as printed, misprints included (each is one field away from its intent)."""
        offline = OfflineConfig(
            epochs=100,
            keep_pretrained=False,
            classifier="margin",
            reduction="sum",
            lr_encoder=1e-4 if family == "clip" else 1e-3,
            weight_decay=0.05,
            warmup_epochs=0,
            lr_floor=1e-5,
            trainable="block",
        )
        online = OnlineConfig(
            rule="cosine",
            threshold=0.70 if family == "dino" else 0.75,
            adapt=ADAPTATIONS,
            encoder_first=False,
            count_founder=False,
            min_group=1,
            group_mean="normalised",
            repel_sign="together",
            repel_reduction="sum",
            align_over="all",
            encoder_scope="block",
            encoder_lr=1e-4,
            encoder_clip=None,
        )
        return cls(preset="paper", seed=1028, offline=offline, online=online, guard=GuardConfig(enabled=False))

    def override(self, **changes: Any) -> TalonConfig:
        """Return a copy with fields changed by dotted or plain name; ``None`` values are left alone.

        >>> TalonConfig().override(epochs=3, threshold=0.6).offline.epochs
        3
        """
        data = self.to_dict()
        for name, value in changes.items():
            if value is not None:
                _place(data, name, value)
        return TalonConfig.from_dict(data)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain data, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TalonConfig:
        """Build from plain data; an unknown key is refused with the nearest known one."""
        config: TalonConfig = build(cls, data, "")
        return config

    @classmethod
    def from_toml(cls, path: str | Path, family: str = "", preset: str = "default") -> TalonConfig:
        """Read a TOML file over ``preset``; a line ``preset = "..."`` in it goes before."""
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{path}: can't be read as a TOML config ({error}).") from error
        base = cls.from_preset(str(data.get("preset", preset)), family).to_dict()
        merge(base, data, "")
        return cls.from_dict(base)

    def to_toml(self) -> str:
        """Return the settings as TOML that ``from_toml`` reads back."""
        return toml(self.to_dict())


def _place(data: dict[str, Any], name: str, value: Any) -> None:
    section, _, key = name.rpartition(".")
    if name == "preset":
        raise ConfigError("preset can't be changed afterwards, it says where a config started from; use --preset.")
    tables = [data.get(section, {})] if section else [data, *(data[part] for part in _SECTIONS)]
    for table in tables:
        if key not in _SECTIONS and isinstance(table, dict) and key in table:
            table[key] = value
            return
    known = [item for table in (data, *(data[s] for s in _SECTIONS)) for item in table if item not in _SECTIONS]
    raise ConfigError(f"config key {name!r} is not known.{nearest(key, known)}")
