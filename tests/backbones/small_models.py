"""Small encoders of every family with random weights, saved as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
FAMILIES = (
    "vit",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_vit",
    "clip_vision_model",
    "siglip_vision_model",
)


def build(model_type: str) -> nn.Module:
    """Build the library's own model; every parameter is random, so that no bias or scale hides at 0 or 1."""
    models: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "vit": (transformers.ViTConfig, transformers.ViTModel, {}),
        "dinov2": (transformers.Dinov2Config, transformers.Dinov2Model, {"mlp_ratio": 2}),
        "dinov2_with_registers": (
            transformers.Dinov2WithRegistersConfig,
            transformers.Dinov2WithRegistersModel,
            {"mlp_ratio": 2, "num_register_tokens": 2},
        ),
        "dinov3_vit": (transformers.DINOv3ViTConfig, transformers.DINOv3ViTModel, {"num_register_tokens": 2}),
        "clip_vision_model": (
            transformers.CLIPVisionConfig,
            transformers.CLIPVisionModelWithProjection,
            {"projection_dim": 24},
        ),
        "siglip_vision_model": (transformers.SiglipVisionConfig, transformers.SiglipVisionModel, {}),
    }
    config_class, model_class, extra = models[model_type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        model: nn.Module = model_class(config_class(**SIZES, **extra)).eval()
        randomise(model)
    return model


def build_pair(family: str) -> nn.Module:
    """Build a whole image-text model (``clip`` or ``siglip``)."""
    text = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text |= {"vocab_size": 20, "projection_size": 32} if family == "siglip" else {"vocab_size": 20}
    model: nn.Module
    if family == "clip":
        pair = transformers.CLIPConfig(text_config=text, vision_config=SIZES, projection_dim=24)
        model = transformers.CLIPModel(pair)
    else:
        both = transformers.SiglipConfig(text_config=text, vision_config=SIZES)
        model = transformers.SiglipModel(both)
    randomise(model)
    model.train(False)
    return model


def randomise(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)


def save(model: Any, folder: Path) -> str:
    model.save_pretrained(folder)
    return str(folder)


@torch.no_grad()
def feature(model: Any, model_type: str, pixels: Tensor) -> Tensor:
    """What the library itself calls the image's feature."""
    output = model(pixel_values=pixels)
    if model_type == "clip_vision_model":
        embeds: Tensor = output.image_embeds
        return embeds
    cls: Tensor = output.pooler_output if model_type == "siglip_vision_model" else output.last_hidden_state[:, 0]
    return cls
