"""Encoders (room: backbones): a picture's pixels become a feature, in a frozen trunk and an adaptable head.

Read ``base.py`` (the contract), then ``efficientnet_lite.py`` on ``lite_layers.py`` (the embedded default),
``tiny.py`` (trained from scratch), ``hub.py`` (encoders of transformers), ``vectors.py`` (embeddings instead of
pictures) and ``registry.py`` (by name).
Importing this room doesn't import transformers.
"""

from talon_ocd.backbones.base import Backbone, Scope
from talon_ocd.backbones.efficientnet_lite import EfficientNetLite0
from talon_ocd.backbones.hub import HubBackbone
from talon_ocd.backbones.paired import Paired, PairedHead, paired
from talon_ocd.backbones.registry import backbone_from_architecture, get_backbone, list_backbones
from talon_ocd.backbones.tiny import TinyViT
from talon_ocd.backbones.vectors import Finished, Vectors, check_vectors, takes_vectors

__all__ = [
    "Backbone",
    "EfficientNetLite0",
    "Finished",
    "HubBackbone",
    "Paired",
    "PairedHead",
    "Scope",
    "TinyViT",
    "Vectors",
    "backbone_from_architecture",
    "check_vectors",
    "get_backbone",
    "list_backbones",
    "paired",
    "takes_vectors",
]
