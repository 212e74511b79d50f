from __future__ import annotations

from dataclasses import replace

import pytest

from talon_ocd import backbones
from talon_ocd.backbones import TinyViT, backbone_from_architecture, get_backbone, list_backbones
from talon_ocd.errors import BackboneError, ConfigError


def test_public_names_are_pinned() -> None:
    classes = ["Backbone", "EfficientNetLite0", "Finished", "HubBackbone", "Paired", "PairedHead", "Scope", "TinyViT"]
    functions = ["backbone_from_architecture", "check_vectors", "get_backbone", "list_backbones", "paired"]
    assert backbones.__all__ == [*classes, "Vectors", *functions, "takes_vectors"]


def test_embedded_names_are_listed_first() -> None:
    assert list_backbones()[:2] == ["efficientnet-lite0", "tiny-vit"]
    assert "facebook/dino-vitb16" in list_backbones("facebook/*")
    assert list_backbones("nothing*") == []


def test_options_reach_the_backbone() -> None:
    lite = get_backbone("efficientnet-lite0", image_size=64, aspect="keep")
    assert (lite.name, lite.preprocessing.crop, lite.preprocessing.aspect) == (
        "efficientnet-lite0",
        64,
        "keep",
    )
    assert get_backbone("tiny-vit", depth=1).preprocessing.aspect == "squash"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("efficientnet-lite", "'efficientnet-lite0'"),
        ("tinyvit", "'tiny-vit'"),
        ("dinov2-bas", "dinov2-base'"),
    ],
)
def test_unknown_name_gets_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(BackboneError, match=r"is not known.*hub id.*folder") as caught:
        get_backbone(name)
    assert hint in str(caught.value)


@pytest.mark.parametrize("name", ["efficientnet-lite0", "tiny-vit", "some/model"])
def test_unknown_option_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=r"picture_size.*aspect"):
        get_backbone(name, picture_size=3)


def test_bad_aspect_is_refused() -> None:
    with pytest.raises(ConfigError, match="aspect='stretch'"):
        get_backbone("tiny-vit", aspect="stretch")


def test_unknown_kind_of_saved_backbone_is_explained() -> None:
    with pytest.raises(BackboneError, match="kind 'resnet'"):
        backbone_from_architecture({"kind": "resnet"}, TinyViT().preprocessing)


def test_fingerprint_follows_weights_and_preprocessing() -> None:
    backbone = get_backbone("efficientnet-lite0", image_size=32)
    before = backbone.trunk_fingerprint()
    assert get_backbone("efficientnet-lite0", image_size=32).trunk_fingerprint() == before
    next(iter(backbone.head.parameters())).data.add_(1)
    assert backbone.trunk_fingerprint() == before
    backbone.preprocessing = replace(backbone.preprocessing, aspect="keep")
    assert backbone.trunk_fingerprint() != before
    backbone.preprocessing = replace(backbone.preprocessing, aspect="squash")
    next(iter(backbone.trunk.parameters())).data.add_(1e-6)
    assert backbone.trunk_fingerprint() != before
