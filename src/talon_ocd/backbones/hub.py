"""Vision encoders of the Hugging Face hub (layer: backbones): ViT/DINO, DINOv2, DINOv3, CLIP and SigLIP.

A family is data: which class of transformers loads it and where its parts are. ``hub_parts.py`` runs the
parts, ``hub_files.py`` finds the files. transformers is imported when an encoder is built, not before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from talon_ocd.backbones.base import Backbone, Scope
from talon_ocd.backbones.hub_files import cannot_load, import_transformers, quiet, read_json
from talon_ocd.backbones.hub_parts import BlockLayout, ClsHead, PoolHead, Rotary, TokenTrunk
from talon_ocd.errors import BackboneError, nearest
from talon_ocd.images.transforms import Preprocessing

Triple = tuple[float, float, float]
_IMAGENET: tuple[Triple, Triple] = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_OPENAI: tuple[Triple, Triple] = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_HALF: tuple[Triple, Triple] = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
_SCALED = BlockLayout("norm1", "norm2", "attention", "o_proj", "layer_scale1", "layer_scale2")


@dataclass(frozen=True)
class Family:
    """Where transformers keeps the parts of one kind of encoder (dotted names inside the model)."""

    name: str
    """What presets look at."""
    config_class: str
    model_class: str
    blocks: tuple[str, ...]
    """Where the list of blocks may be; it moved between versions."""
    norm: str
    """Final norm."""
    layout: BlockLayout
    statistics: tuple[Triple, Triple] = _IMAGENET
    """Mean and std where the model brings no preprocessor_config.json."""
    root: str = ""
    pre_norm: str = ""
    projection: str = ""
    pool: str = ""
    rotary: str = ""
    any_size: bool = False
    """Does it take pictures of another size than its config says?"""


_DINOV2_BLOCKS = ("encoder.layer", "encoder.layers", "layers")
_CLIP_LAYOUT = BlockLayout("layer_norm1", "layer_norm2", "self_attn", "out_proj")
_FAMILIES = {
    "vit": Family(
        "dino", "ViTConfig", "ViTModel", ("layers", "encoder.layer"), "layernorm",
        BlockLayout("layernorm_before", "layernorm_after", "attention", "o_proj"),
    ),
    "dinov2": Family(
        "dinov2", "Dinov2Config", "Dinov2Model", _DINOV2_BLOCKS, "layernorm", _SCALED, any_size=True,
    ),
    "dinov2_with_registers": Family(
        "dinov2", "Dinov2WithRegistersConfig", "Dinov2WithRegistersModel", _DINOV2_BLOCKS, "layernorm",
        _SCALED, any_size=True,
    ),
    "dinov3_vit": Family(
        "dinov3", "DINOv3ViTConfig", "DINOv3ViTModel", ("model.layer", "layer", "layers"), "norm", _SCALED,
        rotary="rope_embeddings", any_size=True,
    ),
    "clip_vision_model": Family(
        "clip", "CLIPVisionConfig", "CLIPVisionModelWithProjection", ("encoder.layers",), "post_layernorm",
        _CLIP_LAYOUT, _OPENAI, root="vision_model", pre_norm="pre_layrnorm", projection="visual_projection",
    ),
    "siglip_vision_model": Family(
        "siglip", "SiglipVisionConfig", "SiglipVisionModel", ("encoder.layers",), "post_layernorm",
        _CLIP_LAYOUT, _HALF, root="vision_model", pool="head",
    ),
}  # fmt: skip
_WHOLE = {"clip": "clip_vision_model", "siglip": "siglip_vision_model"}
# What a config carries beside the network's structure, or what another version of transformers may change.
_NOT_STRUCTURE = (
    "_name_or_path", "architectures", "chunk_size_feed_forward", "dtype", "id2label", "is_encoder_decoder",
    "label2id", "out_features", "out_indices", "output_attentions", "output_hidden_states", "problem_type",
    "return_dict", "stage_names", "transformers_version",
)  # fmt: skip


class HubBackbone(Backbone):
    """A vision encoder of transformers, split before its last block.

    Trainable are the last block and, for CLIP, final norm and projection (for SigLIP: norm and pooling). The
    final norm of the DINO families stays frozen, as in every published method that tunes them.
    """

    def __init__(self, model: nn.Module, model_type: str, name: str, preprocessing: Preprocessing) -> None:
        super().__init__()
        family = _FAMILIES[model_type]
        self.family, self.name, self.preprocessing = family.name, name, preprocessing
        self.model_type = model_type
        self.config = _structure(model.config)
        model.eval()  # before anything runs: in training mode, rotary positions are random
        self.trunk, self.head = _split(model, family, preprocessing.crop)
        with torch.no_grad():
            tokens = self.trunk.embeddings(torch.zeros(1, 3, preprocessing.crop, preprocessing.crop))
        self.hidden_shape = tuple(tokens.shape[1:])
        self.local_size = self.hidden_shape[-1]
        self.feature_size = int(self.config["projection_dim" if family.projection else "hidden_size"])
        self.finish()

    @classmethod
    def pretrained(cls, name: str) -> HubBackbone:
        """Load by hub id or from a folder, with the preprocessing that lies beside the weights."""
        transformers = import_transformers()
        model_type, settings = _vision_config(name, read_json(name, "config.json", required=True))
        family = _FAMILIES[model_type]
        config = _config(transformers, family, settings)
        extra = {"add_pooling_layer": False} if family.name == "dino" else {}
        try:
            with quiet(transformers):
                model, report = getattr(transformers, family.model_class).from_pretrained(
                    name, config=config, attn_implementation="sdpa", dtype=torch.float32,
                    output_loading_info=True, **extra,
                )  # fmt: skip
        except Exception as error:
            raise cannot_load(name, error) from error
        missing = sorted(key for key in report["missing_keys"] if not key.endswith("mask_token"))
        if missing:
            raise BackboneError(
                f"{name}: the weights lack {len(missing)} tensors of {family.model_class} "
                f"({', '.join(missing[:3])} ...); random ones would be worthless: download the model again."
            )
        return cls(model, model_type, name, _preprocessing(name, family, config))

    def head_parameter_names(self, scope: Scope) -> list[str]:
        """Return the scope's names; ``head`` is the block alone where the final norm stays frozen."""
        names = [name for name, _ in self.head.named_parameters()]
        if scope == "head" and self.family in ("clip", "siglip"):
            return names
        block = [name for name in names if name.startswith("block.")]
        layout = _FAMILIES[self.model_type].layout
        norms = (f"block.{layout.norm1}.", f"block.{layout.norm2}.")
        return [name for name in block if name.startswith(norms)] if scope == "norms" else block

    def architecture(self) -> dict[str, Any]:
        """Return kind, name, model type and the structure of the vision encoder."""
        return {"kind": "hub", "name": self.name, "model_type": self.model_type, "config": dict(self.config)}

    @classmethod
    def from_architecture(cls, architecture: dict[str, Any], preprocessing: Preprocessing) -> HubBackbone:
        """Build with random weights, without looking at the hub."""
        transformers = import_transformers()
        model_type = _supported(architecture["name"], architecture["model_type"])
        family = _FAMILIES[model_type]
        extra = {"add_pooling_layer": False} if family.name == "dino" else {}
        with quiet(transformers):
            config = _config(transformers, family, architecture["config"])
            model = getattr(transformers, family.model_class)(config, **extra)
        return cls(model, model_type, architecture["name"], preprocessing)


def supported_families() -> list[str]:
    """Return the model types of transformers that can be split."""
    return sorted([*_FAMILIES, *_WHOLE])


def _supported(name: str, model_type: str) -> str:
    if model_type not in _FAMILIES:
        raise BackboneError(
            f"{name}: model type {model_type!r} is not supported; "
            f"supported: {', '.join(supported_families())}.{nearest(model_type, supported_families())}"
        )
    return model_type


def _vision_config(name: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return model type and settings of the vision encoder, which may be half of an image-text model."""
    model_type = str(data.get("model_type"))
    if model_type not in _WHOLE:
        return _supported(name, model_type), data
    vision = dict(data.get("vision_config") or {})
    if "projection_dim" in data:
        vision["projection_dim"] = data["projection_dim"]
    return _WHOLE[model_type], vision


def _config(transformers: Any, family: Family, settings: dict[str, Any]) -> Any:
    # An attention implementation may name code on the hub, which transformers would fetch and run.
    plain = {key: value for key, value in settings.items() if "attn_implementation" not in key}
    config = getattr(transformers, family.config_class).from_dict(plain)
    for key in vars(config):
        if "dropout" in key or key == "drop_path_rate":
            setattr(config, key, 0.0)  # a copy of the head must not draw dice when it is trained
    return config


def _structure(config: Any) -> dict[str, Any]:
    data = {key: value for key, value in config.to_dict().items() if key not in _NOT_STRUCTURE}
    plain: dict[str, Any] = json.loads(json.dumps(data))
    return plain


def _preprocessing(name: str, family: Family, config: Any) -> Preprocessing:
    """Colour statistics from the model's files, else the family's; TALON's margin between resize and crop."""
    data = read_json(name, "preprocessor_config.json", required=False)
    data = data or read_json(name, "processor_config.json", required=False).get("image_processor", {})
    mean, std = family.statistics
    crop = int(config.image_size)
    if family.any_size:
        crop = _side(data.get("crop_size")) or _side(data.get("size")) or min(crop, 224)
        crop -= crop % int(config.patch_size)
    return Preprocessing(
        resize=int(crop / 0.875),
        crop=crop,
        mean=data.get("image_mean") or mean,
        std=data.get("image_std") or std,
    )


def _side(size: Any) -> int:
    """Read ``224``, ``{"height": 224, "width": 224}`` or ``{"shortest_edge": 224}``; anything else is 0."""
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    return size if isinstance(size, int) else 0


def _split(model: nn.Module, family: Family, crop: int) -> tuple[TokenTrunk, nn.Module]:
    """Take the model apart: everything before the last block, and the rest."""
    root = model.get_submodule(family.root) if family.root and hasattr(model, family.root) else model
    blocks = next(part for part in (_find(root, path) for path in family.blocks) if part is not None)
    assert isinstance(blocks, nn.ModuleList)
    rotary = None
    if family.rotary:
        rotary = Rotary(*root.get_submodule(family.rotary)(torch.zeros(1, 3, crop, crop)))
    trunk = TokenTrunk(root.get_submodule("embeddings"), _find(root, family.pre_norm), blocks[:-1], rotary)
    norm = root.get_submodule(family.norm)
    if not family.pool:
        return trunk, ClsHead(blocks[-1], norm, _find(model, family.projection), rotary, family.layout)
    pool = _find(root, family.pool)
    if pool is None:
        raise BackboneError(f"this {family.name} encoder has no pooling head, so it has no image feature.")
    return trunk, PoolHead(blocks[-1], norm, pool)


def _find(root: nn.Module, path: str) -> nn.Module | None:
    """Return the part at a dotted path, or nothing."""
    try:
        return root.get_submodule(path) if path else None
    except AttributeError:
        return None
