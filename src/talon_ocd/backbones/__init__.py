"""Encoders (room: backbones): a picture's pixels become a feature, in a frozen trunk and an adaptable head.

Read ``base.py`` (the contract), then ``efficientnet_lite.py`` on ``lite_layers.py`` (the embedded default),
``tiny.py`` (trained from scratch), ``hub.py`` (encoders of transformers) and ``registry.py`` (by name).
Importing this room doesn't import transformers.
"""

from talon_ocd.backbones.base import Backbone, Scope
from talon_ocd.backbones.efficientnet_lite import EfficientNetLite0
from talon_ocd.backbones.hub import HubBackbone
from talon_ocd.backbones.paired import Paired, PairedHead, paired
from talon_ocd.backbones.registry import backbone_from_architecture, get_backbone, list_backbones
from talon_ocd.backbones.tiny import TinyViT

__all__ = [
    "Backbone",
    "EfficientNetLite0",
    "HubBackbone",
    "Paired",
    "PairedHead",
    "Scope",
    "TinyViT",
    "backbone_from_architecture",
    "get_backbone",
    "list_backbones",
    "paired",
]
