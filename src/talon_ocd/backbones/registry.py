"""Backbones by name (layer: backbones): embedded ones, hub ids and local folders through one door."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from talon_ocd.backbones import efficientnet_lite, tiny, vectors
from talon_ocd.backbones.base import Backbone
from talon_ocd.backbones.efficientnet_lite import EfficientNetLite0
from talon_ocd.backbones.hub import HubBackbone
from talon_ocd.backbones.paired import KIND as PAIRED
from talon_ocd.backbones.paired import Paired
from talon_ocd.backbones.tiny import TinyViT
from talon_ocd.backbones.vectors import Vectors
from talon_ocd.errors import BackboneError, ConfigError, nearest
from talon_ocd.images.transforms import Preprocessing

_EMBEDDED: dict[str, Callable[..., Backbone]] = {
    efficientnet_lite.NAME: EfficientNetLite0.pretrained,
    tiny.NAME: TinyViT,
}
_KINDS: dict[str, type[Backbone]] = {
    efficientnet_lite.NAME: EfficientNetLite0,
    tiny.NAME: TinyViT,
    "hub": HubBackbone,
    vectors.NAME: Vectors,
}
_WELL_KNOWN = (
    "facebook/dino-vits16",
    "facebook/dino-vitb16",
    "facebook/dino-vitb8",
    "facebook/dinov2-small",
    "facebook/dinov2-base",
    "facebook/dinov2-with-registers-base",
    "facebook/dinov3-vits16-pretrain-lvd1689m",
    "facebook/dinov3-vitb16-pretrain-lvd1689m",
    "google/siglip-base-patch16-224",
    "google/siglip2-base-patch16-224",
    "google/vit-base-patch16-224-in21k",
    "openai/clip-vit-base-patch16",
    "openai/clip-vit-base-patch32",
    "openai/clip-vit-large-patch14",
)


def list_backbones(pattern: str = "*") -> list[str]:
    """Return embedded backbones and well-known hub ids that match a pattern; other hub ids work as well.

    >>> list_backbones("*lite*"), list_backbones("openai/*base*")
    (['efficientnet-lite0'], ['openai/clip-vit-base-patch16', 'openai/clip-vit-base-patch32'])
    """
    return [name for name in (*_EMBEDDED, *_WELL_KNOWN) if fnmatchcase(name, pattern)]


def get_backbone(name: str, *, aspect: str | None = None, **options: Any) -> Backbone:
    """Build a backbone with its pre-trained weights.

    Args:
        name: an embedded name, a hub id (``org/name``) or a folder saved by transformers.
        aspect: ``squash`` resizes to a square, ``keep`` the shorter side; default: the backbone's own.
        options: what the family takes, such as ``image_size``; an unknown one is refused.

    >>> get_backbone("tiny-vit", depth=1, aspect="keep").preprocessing.aspect
    'keep'
    """
    build = _EMBEDDED[name] if name in _EMBEDDED else _hub_builder(name)
    known = list(inspect.signature(build).parameters)
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ConfigError(
            f"{name} does not know the option {', '.join(unknown)}; it takes {', '.join(['aspect', *known])}."
            f"{nearest(unknown[0], known)}"
        )
    backbone = build(**options)
    if aspect is not None:
        backbone.preprocessing = replace(backbone.preprocessing, aspect=aspect)  # type: ignore[arg-type]
    return backbone


def backbone_from_architecture(architecture: dict[str, Any], preprocessing: Preprocessing) -> Backbone:
    """Rebuild a saved backbone without its weights; the caller loads them."""
    kind = str(architecture.get("kind"))
    if kind == PAIRED:
        base = backbone_from_architecture(architecture["base"], preprocessing)
        return Paired(
            base,
            trained=architecture.get("trained", True),
            texture=architecture.get("texture", 0),
            trained_texture=architecture.get("trained_texture", False),
        )
    if kind not in _KINDS:
        raise BackboneError(
            f"the saved backbone is of kind {kind!r}, this version builds {', '.join(_KINDS)}; upgrade it."
        )
    return _KINDS[kind].from_architecture(architecture, preprocessing)


def _hub_builder(name: str) -> Callable[[], Backbone]:
    if "/" not in name and not Path(name).is_dir():
        known = [*_EMBEDDED, *_WELL_KNOWN]
        hint = nearest(name, [*known, *(key.split("/")[-1] for key in known)])
        raise BackboneError(
            f"backbone {name!r} is not known; give {', '.join(_EMBEDDED)}, a hub id such as "
            f"{_WELL_KNOWN[1]}, or a folder that holds such a model.{hint}"
        )

    def build() -> Backbone:
        return HubBackbone.pretrained(name)

    return build
