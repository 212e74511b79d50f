from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from talon_ocd.backbones import HubBackbone, Scope, get_backbone
from talon_ocd.backbones.hub_parts import ClsHead
from talon_ocd.images.transforms import Preprocessing
from tests.backbones import contract, small_models
from tests.backbones.small_models import FAMILIES

CLS_FAMILIES = tuple(name for name in FAMILIES if name != "siglip_vision_model")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    return {name: small_models.save(small_models.build(name), root / name) for name in FAMILIES}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_contract(model_type: str, folders: dict[str, str]) -> None:
    backbone = get_backbone(folders[model_type])
    contract.check_shapes(backbone)
    contract.check_places(backbone)
    contract.check_frozen(backbone)
    contract.check_scopes(backbone)
    contract.check_adapting_a_copy(backbone)
    contract.check_round_trip(backbone)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_equals_the_library(model_type: str, folders: dict[str, str]) -> None:
    backbone = HubBackbone.pretrained(folders[model_type])
    pixels = contract.pixels_for(backbone, count=3)
    expected = small_models.feature(small_models.build(model_type), model_type, pixels)
    torch.testing.assert_close(backbone(pixels), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model_type", CLS_FAMILIES)
def test_the_cls_row_equals_the_whole_block(model_type: str, folders: dict[str, str]) -> None:
    """Values and gradients of the short way are those of the plain block."""
    backbone = HubBackbone.pretrained(folders[model_type])
    hidden = backbone.trunk(contract.pixels_for(backbone)).double()
    short = copy.deepcopy(backbone.head).double()
    assert isinstance(short, ClsHead) and short.layout is not None
    plain = copy.deepcopy(short)
    plain.layout = None
    gradients = []
    for head in (short, plain):
        head.requires_grad_(True)
        features = head(hidden)
        gradients.append(torch.autograd.grad((features**3).sum(), list(head.parameters())))
    torch.testing.assert_close(short(hidden), plain(hidden), rtol=1e-10, atol=1e-10)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("scope", contract.SCOPES)
def test_gradients_are_right(model_type: str, scope: Scope, folders: dict[str, str]) -> None:
    contract.check_gradient(HubBackbone.pretrained(folders[model_type]), scope)


def test_a_block_of_another_make_runs_as_a_whole(folders: dict[str, str]) -> None:
    backbone = HubBackbone.pretrained(folders["vit"])
    head = backbone.head
    assert isinstance(head, ClsHead) and head.layout is not None
    block = copy.deepcopy(head.block)
    block.get_submodule("attention").add_module("q_norm", torch.nn.LayerNorm(8))
    assert not head.layout.fits(block)
    fallback = ClsHead(block, head.norm, None, None, head.layout)
    assert fallback.layout is None
    hidden = backbone.trunk(contract.pixels_for(backbone))
    torch.testing.assert_close(fallback(hidden), head(hidden), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "family", "norms", "beyond_block"),
    [
        ("vit", "dino", ("layernorm_before", "layernorm_after"), set()),
        ("dinov2", "dinov2", ("norm1", "norm2"), set()),
        ("dinov2_with_registers", "dinov2", ("norm1", "norm2"), set()),
        ("dinov3_vit", "dinov3", ("norm1", "norm2"), set()),
        ("clip_vision_model", "clip", ("layer_norm1", "layer_norm2"), {"norm", "projection"}),
        ("siglip_vision_model", "siglip", ("layer_norm1", "layer_norm2"), {"norm", "pool"}),
    ],
)
def test_scopes(
    model_type: str, family: str, norms: tuple[str, ...], beyond_block: set[str], folders: dict[str, str]
) -> None:
    backbone = HubBackbone.pretrained(folders[model_type])
    assert backbone.family == family
    expected = {f"block.{norm}.{kind}" for norm in norms for kind in ("weight", "bias")}
    assert set(backbone.head_parameter_names("norms")) == expected
    block = set(backbone.head_parameter_names("block"))
    assert block == {name for name, _ in backbone.head.named_parameters() if name.startswith("block.")}
    rest = set(backbone.head_parameter_names("head")) - block
    assert {name.split(".")[0] for name in rest} == beyond_block


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_image_half_of_an_image_text_model(family: str, tmp_path: Path) -> None:
    model = small_models.build_pair(family)
    backbone = HubBackbone.pretrained(small_models.save(model, tmp_path / family))
    pixels = contract.pixels_for(backbone)
    vision: Any = model.get_submodule("vision_model")
    with torch.no_grad():
        expected = vision(pixel_values=pixels).pooler_output
        if family == "clip":
            expected = model.get_submodule("visual_projection")(expected)
    torch.testing.assert_close(backbone(pixels), expected, rtol=1e-5, atol=1e-5)
    assert backbone.family == family
    contract.check_round_trip(backbone)


def test_weights_of_torch_are_read(tmp_path: Path) -> None:
    model: Any = small_models.build("vit")
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    backbone = HubBackbone.pretrained(str(tmp_path))
    pixels = contract.pixels_for(backbone)
    torch.testing.assert_close(backbone(pixels), small_models.feature(model, "vit", pixels), rtol=1e-5, atol=1e-5)


def test_preprocessing_falls_back_on_the_family(folders: dict[str, str]) -> None:
    dino = HubBackbone.pretrained(folders["vit"]).preprocessing
    assert dino == Preprocessing(resize=36, crop=32)
    clip = HubBackbone.pretrained(folders["clip_vision_model"]).preprocessing
    assert clip.mean == (0.48145466, 0.4578275, 0.40821073)
    assert clip.std == (0.26862954, 0.26130258, 0.27577711)
    assert HubBackbone.pretrained(folders["siglip_vision_model"]).preprocessing.mean == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("file", "size"),
    [
        ("preprocessor_config.json", {"crop_size": 24}),
        ("processor_config.json", {"size": {"shortest_edge": 24}}),
    ],
)
def test_preprocessing_is_read_from_the_folder(file: str, size: dict[str, Any], tmp_path: Path) -> None:
    folder = small_models.save(small_models.build("dinov2"), tmp_path)
    data: dict[str, Any] = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], **size}
    whole = data if file == "preprocessor_config.json" else {"image_processor": data}
    (tmp_path / file).write_text(json.dumps(whole), encoding="utf-8")
    backbone = get_backbone(folder, aspect="keep")
    expected = Preprocessing(
        resize=27, crop=24, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), interpolation="bicubic", aspect="keep"
    )
    assert backbone.preprocessing == expected
    assert backbone.hidden_shape == (10, 32)
    contract.check_shapes(backbone)
    contract.check_round_trip(backbone)


def test_the_same_weights_have_the_same_fingerprint_under_any_name(folders: dict[str, str], tmp_path: Path) -> None:
    here = HubBackbone.pretrained(folders["dinov3_vit"])
    there = HubBackbone.pretrained(small_models.save(small_models.build("dinov3_vit"), tmp_path))
    assert here.name != there.name
    assert here.trunk_fingerprint() == there.trunk_fingerprint()
    other = HubBackbone.pretrained(folders["dinov2"])
    assert other.trunk_fingerprint() != here.trunk_fingerprint()


def test_a_copy_of_the_head_draws_no_dice(tmp_path: Path) -> None:
    model: Any = small_models.build("vit")
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.5
    backbone = HubBackbone.pretrained(small_models.save(model, tmp_path))
    hidden = backbone.trunk(contract.pixels_for(backbone))
    head = copy.deepcopy(backbone.head).train()
    torch.testing.assert_close(head(hidden), backbone.head(hidden), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", FAMILIES)
def test_full_size(model_type: str) -> None:
    """ViT-B/16 of every family runs one picture of 224 pixels."""
    sizes = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    }
    config = {**sizes, "image_size": 224, "patch_size": 16}
    config |= {"num_register_tokens": 4} if "registers" in model_type or "dinov3" in model_type else {}
    architecture = {"kind": "hub", "name": "base", "model_type": model_type, "config": config}
    backbone = HubBackbone.from_architecture(architecture, Preprocessing())
    with torch.no_grad():
        features = backbone(torch.randn(1, 3, 224, 224))
    assert features.shape == (1, 512 if model_type == "clip_vision_model" else 768)
    assert backbone.hidden_shape[1] == 768
    assert torch.isfinite(features).all()
