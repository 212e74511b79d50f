"""Options that more than one command takes, and what they mean."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from talon_ocd.backbones import Backbone, Vectors, get_backbone
from talon_ocd.config import TalonConfig
from talon_ocd.errors import ConfigError
from talon_ocd.images import VectorFacts, display

BackboneOption = Annotated[
    str,
    typer.Option(
        "--backbone",
        "-b",
        help="Encoder: efficientnet-lite0, tiny-vit, a transformers hub id, or a local model folder.",
    ),
]
PresetOption = Annotated[
    str,
    typer.Option("--preset", "-p", help="default (evidence decides), official (released code) or paper (as printed)."),
]
ImageSizeOption = Annotated[
    int | None,
    typer.Option("--image-size", help="Pixels a side, for encoders that take any size (small = fast)."),
]
AspectOption = Annotated[
    str | None,
    typer.Option("--aspect", help="squash (TALON) or keep (GCD, SMILE, PHE) the aspect of pictures."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file with settings; flags go before it, it before the preset."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting, e.g. --set offline.margin=0.3; may be repeated."),
]
EpochsOption = Annotated[int | None, typer.Option("--epochs", min=0, help="Training epochs; 0 trains nothing.")]
ColumnOption = Annotated[
    str | None,
    typer.Option("--column", help="Of a .parquet file: the column of the vectors, where several could be meant."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]

out = Console()
err = Console(stderr=True)


def backbone_from(
    name: str, image_size: int | None, aspect: str | None, vectors: VectorFacts | None = None
) -> Backbone:
    """Build the encoder that the options ask for; embeddings, if that is what the data are, have had theirs."""
    options: dict[str, Any] = {"image_size": image_size, "aspect": aspect}
    given = {key: value for key, value in options.items() if value is not None}
    if vectors is None:
        return get_backbone(name, **given)
    if given:
        raise ConfigError(f"--{next(iter(given)).replace('_', '-')} is for pictures; embeddings are taken as they are.")
    return Vectors.of(vectors, trainable=True)


def checked_device(name: str) -> str:
    """Return the name of a device if this machine has it; else refuse it."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"--device {name!r} can't be used here ({reason}); use cpu.") from error
    return name


def config_from(preset: str, family: str, file: Path | None, settings: list[str] | None, **flags: Any) -> TalonConfig:
    """Build the settings: preset, then file, then ``--set``, then the named flags."""
    base = TalonConfig.from_preset(preset, family)
    if file is not None:
        base = TalonConfig.from_toml(file, family, preset)
    changes = dict(setting(text) for text in settings or [])
    return base.override(**changes).override(**flags)


def split_settings(
    settings: Iterable[str] | None, methods: Collection[str]
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Part settings of the config from those of methods, which are written ``METHOD.NAME=VALUE``.

    What the config has is the config's: ``evidence`` is a section of it as well as a method.

    >>> split_settings(["margin=0.3", "phe.bits=16"], ["phe"])
    (['margin=0.3'], {'phe': {'bits': 16}})
    >>> split_settings(["evidence.dimensions=64"], ["evidence"])
    (['evidence.dimensions=64'], {})
    """
    config = TalonConfig().to_dict()
    shared: list[str] = []
    own: dict[str, dict[str, Any]] = {}
    for text in settings or []:
        name, value = setting(text)
        owner, _, key = name.partition(".")
        if key and owner in methods and key not in config.get(owner, {}):
            own.setdefault(owner, {})[key] = value
        else:
            shared.append(text)
    return shared, own


def sweep_values(text: str) -> tuple[str, list[Any]]:
    """Return name and values of ``NAME=V1,V2,...``.

    >>> sweep_values("online.threshold=0.5,0.6")
    ('online.threshold', [0.5, 0.6])
    """
    name, equals, values = text.partition("=")
    if not equals or not values.strip():
        raise ConfigError(f"--sweep {text!r}: write NAME=V1,V2,..., e.g. --sweep online.threshold=0.5,0.6.")
    return name.strip(), [_value(value.strip()) for value in values.split(",")]


def setting(text: str) -> tuple[str, Any]:
    """Return name and value of ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text!r}: write NAME=VALUE, e.g. --set offline.margin=0.3.")
    return name.strip(), _value(value.strip())


def number_or_word(text: str | None) -> float | str | None:
    """Return a threshold as the number it is, or as the word (``auto``) that it may be.

    >>> number_or_word("0.7"), number_or_word("auto"), number_or_word(None)
    (0.7, 'auto', None)
    """
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text


def _value(text: str) -> Any:
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def command_line() -> str:
    """Return the command as it was typed, for the record."""
    return display(shlex.join(["talon", *sys.argv[1:]]))


def commit() -> str | None:
    """Return the commit of the checkout that this runs from, with ``+`` if changed; ``None`` elsewhere."""
    folder = Path(__file__).resolve().parent
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        inside = _git(folder, "ls-files", "--error-unmatch", str(Path(__file__).resolve()))
        return head + ("+" if _git(folder, "status", "--porcelain", "--", "..") else "") if inside else None
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
