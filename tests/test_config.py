from pathlib import Path
from typing import Any

import numpy as np
import pytest

from talon_ocd.config import ADAPTATIONS, PRESETS, OfflineConfig, OnlineConfig, TalonConfig, parse_adapt
from talon_ocd.errors import ConfigError


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("family", ["", "clip", "dino"])
def test_presets_survive_plain_data_and_toml(preset: str, family: str, tmp_path: Path) -> None:
    config = TalonConfig.from_preset(preset, family)
    assert config.preset == preset
    assert TalonConfig.from_dict(config.to_dict()) == config
    file = tmp_path / "config.toml"
    file.write_text(config.to_toml(), encoding="utf-8")
    assert TalonConfig.from_toml(file) == config


def test_the_default_decides_by_evidence_on_pretrained_and_briefly_trained_features() -> None:
    config = TalonConfig()
    assert config == TalonConfig.default("clip") == TalonConfig.from_preset("default", "efficientnet-lite")
    assert config.online.by_evidence and config.online.adapt == ("prototypes",) and config.evidence.offset == "auto"
    assert (config.offline.epochs, config.offline.keep_pretrained, config.offline.classifier) == (10, True, "cosine")
    scratch = TalonConfig.default("tiny-vit")  # nothing pre-trained that could be kept
    assert scratch.online == config.online and not scratch.offline.keep_pretrained


def test_evidence_decides_unless_there_is_a_threshold_or_another_rule() -> None:
    assert OnlineConfig().by_evidence
    assert not OnlineConfig(threshold=0.7).by_evidence and not OnlineConfig(rule="cosine").by_evidence


@pytest.mark.parametrize("preset", ["official", "paper"])
def test_talon_itself_keeps_one_head_a_margin_and_the_cosine(preset: str) -> None:
    config = TalonConfig.from_preset(preset)
    assert (config.online.rule, config.online.adapt) == ("cosine", ADAPTATIONS)
    assert (config.offline.keep_pretrained, config.offline.classifier) == (False, "margin")


def test_values_of_the_released_code() -> None:
    clip, dino = TalonConfig.official("clip"), TalonConfig.official("dino")
    assert (clip.online.threshold, dino.online.threshold) == (0.75, 0.70)
    assert (clip.online.encoder_lr, dino.online.encoder_lr) == (0.1, 0.01)
    online = clip.online
    assert (online.eta_known, online.eta_new, online.kappa_known, online.kappa_new) == (0.06, 0.3, 32.0, 8.0)
    assert (online.adapt_every, online.min_group, online.temperature) == (64, 2, 1 / 30)
    offline = clip.offline
    assert (offline.margin, offline.scale, offline.supcon_temperature, offline.epochs) == (0.2, 30.0, 0.08, 100)
    assert clip.seed == 1028


def test_the_paper_as_printed() -> None:
    online = TalonConfig.paper("clip").online
    assert (online.encoder_first, online.count_founder, online.min_group) == (False, False, 1)
    assert (online.repel_sign, online.repel_reduction, online.align_over) == ("together", "sum", "all")
    assert (online.encoder_lr, online.encoder_clip, online.group_mean) == (1e-4, None, "normalised")


def test_a_file_goes_over_its_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('preset = "official"\n[online]\nadapt = ["prototypes"]\n[offline]\nepochs = 7\n', encoding="utf-8")
    config = TalonConfig.from_toml(file, "dino")
    assert (config.online.threshold, config.online.adapt, config.offline.epochs) == (0.70, ("prototypes",), 7)
    assert config.seed == 1028


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[offline]\nepoch = 3", "offline.epoch' is not known. Did you mean 'epochs'"),
        ("offline = 3", "offline' is a section"),
        ("[seed]\na = 1", "seed must be a whole number"),
        ("preset = 'papr'", "Did you mean 'paper'"),
        ("epochs = ", "can't be read as a TOML config"),
        ("[online]\nadapt = 'prototype'", "Did you mean 'prototypes'"),
    ],
)
def test_a_bad_file_is_refused_with_the_remedy(text: str, wanted: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=wanted):
        TalonConfig.from_toml(file)
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        TalonConfig.from_toml(tmp_path / "missing.toml")


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"epochs": -1}, "epochs=-1: epochs must be 0 or more"),
        ({"epochs": "many"}, "epochs='many': epochs must be a whole number"),
        ({"epochs": True}, "whole number"),
        ({"batch_size": 2.5}, "batch_size must be a whole number"),
        ({"margin": float("nan")}, "margin must be a number"),
        ({"threshold": float("nan")}, "threshold must be a number or auto"),
        ({"threshold": "aut"}, "Did you mean 'auto'"),
        ({"threshold": float("inf")}, "threshold must be a number or auto"),
        ({"classifier": "margn"}, "Did you mean 'margin'"),
        ({"encoder_first": 1}, "true or false"),
        ({"encoder_clip": 0.0}, "encoder_clip"),
        ({"seed": -1}, "seed must be between 0"),
        ({"seed": 2**32}, "seed must be between 0"),
        ({"views": 1}, "views"),
        ({"held_out": 1.0}, "held_out"),
        ({"rule": "evidance"}, "Did you mean 'evidence'"),
        ({"dimensions": 0}, "dimensions must be 1 or more"),
        ({"shrinkage": 1.5}, "shrinkage must be between 0 and 1"),
        ({"offset": "automatic"}, "offset must be a number or auto"),
        ({"concentration": 0.0}, "concentration must be above 0"),
        ({"preset": "paper"}, "use --preset"),
        ({"foo.seed": 1}, "foo.seed' is not known"),
        ({"online.epochs": 1}, "is not known"),
        ({"offline": 1}, "is not known"),
    ],
)
def test_a_bad_setting_is_named(changes: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        TalonConfig().override(**changes)


def test_override_takes_plain_and_dotted_names_and_leaves_none_alone() -> None:
    config = TalonConfig().override(**{"calibration.grid": 5, "epochs": 3, "threshold": None, "seed": 9, "keep": 7})
    assert (config.calibration.grid, config.offline.epochs, config.evidence.keep) == (5, 3, 7)
    assert (config.online.threshold, config.seed) == ("auto", 9)


def test_numbers_of_numpy_become_pythons() -> None:
    online = OnlineConfig(threshold=np.float32(0.5), adapt_every=np.int64(3))  # type: ignore[arg-type]
    assert (type(online.threshold), type(online.adapt_every)) == (float, int)
    assert type(OfflineConfig(margin=0).margin) is float


def test_none_is_a_word_where_toml_has_no_null() -> None:
    assert OnlineConfig(encoder_clip="none").encoder_clip is None  # type: ignore[arg-type]


@pytest.mark.parametrize("words", ["none", "", [], ()])
def test_nothing_adapts(words: Any) -> None:
    assert parse_adapt(words) == ()


def test_adaptations_have_one_order() -> None:
    assert parse_adapt(["encoder", "prototypes"]) == ("prototypes", "encoder")
