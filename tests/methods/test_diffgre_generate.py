"""Pictures for DiffGRE: spherical interpolation, folders, and a tiny random diffusion model."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from talon_ocd.errors import BackboneError, ConfigError, DataError
from talon_ocd.images import ImageItem
from talon_ocd.images import stream as images_of
from talon_ocd.methods.diffgre.diffusion import (
    CompositionSettings,
    DiffusionGenerator,
    DiffusionParts,
    import_diffusers,
    load_parts,
    slerp,
)
from talon_ocd.methods.diffgre.generate import MANIFEST, BlendGenerator, Parent, generate_folder
from tests import tiny
from tests.cli.running import talon

FAST = CompositionSettings(steps=4, strength=0.5, guidance=2.0)


@given(st.floats(0.05, 3.0), st.floats(0.0, 1.0), st.floats(0.1, 9.0))
def test_slerp_is_the_arc_on_a_circle(angle: float, share: float, length: float) -> None:
    first = torch.tensor([1.0, 0.0], dtype=torch.float64)
    second = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    expected = torch.tensor([math.cos(share * angle), math.sin(share * angle)], dtype=torch.float64)
    torch.testing.assert_close(slerp(first, second, share), expected, atol=1e-9, rtol=1e-7)
    torch.testing.assert_close(slerp(length * first, length * second, share), length * expected, atol=1e-8, rtol=1e-7)


def test_slerp_ends_at_its_ends_and_goes_straight_without_an_arc() -> None:
    first, second = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(slerp(first, second, 0.0), first)
    torch.testing.assert_close(slerp(first, second, 1.0), second)
    torch.testing.assert_close(slerp(first, 3.0 * first, 0.5), 2.0 * first)
    torch.testing.assert_close(slerp(first, -first, 0.25), 0.5 * first)
    rows = slerp(first, second, 0.3)
    for row in range(3):
        torch.testing.assert_close(rows[row], slerp(first[row], second[row], 0.3))


def items() -> list[ImageItem]:
    return list(tiny.part(0, 4, ("0", "1", "2")))


def test_a_folder_of_blends_is_a_source_of_images(tmp_path: Path) -> None:
    written = generate_folder(items(), BlendGenerator(0.25, size=16), 5, tmp_path / "made", seed=3)
    assert written.ready == 5 and not written.skipped
    rows = [json.loads(line) for line in (tmp_path / "made" / MANIFEST).read_text().splitlines()]
    assert len(images_of(tmp_path / "made").items) == len(rows) == 5
    by_source = {item.source: item for item in items()}
    for row in rows:
        assert row["classes"][0] != row["classes"][1] and row["generator"] == "mix" and row["seed"] == 3
        parents = [by_source[source].load().resize((16, 16)) for source in row["parents"]]
        with Image.open(tmp_path / "made" / row["path"]) as made:
            first, second, found = (np.asarray(picture, float) for picture in (*parents, made))
        assert np.abs(found - (0.75 * first + 0.25 * second)).mean() < 25


class Counting(BlendGenerator):
    made = 0

    def compose(self, first: Parent, second: Parent, seed: int) -> Image.Image:
        if self.made == 3:
            raise KeyboardInterrupt
        self.made += 1
        return super().compose(first, second, seed)


def test_a_stopped_folder_is_finished_and_equals_an_unbroken_one(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        generate_folder(items(), Counting(size=16), 6, tmp_path / "a")
    rest = Counting(size=16)
    assert generate_folder(items(), rest, 6, tmp_path / "a").ready == 6 and rest.made == 3
    generate_folder(items(), BlendGenerator(size=16), 6, tmp_path / "b")
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_what_can_not_be_generated_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="two classes"):
        generate_folder(list(tiny.part(0, 4, ("0",))), BlendGenerator(), 2, tmp_path)
    with pytest.raises(DataError, match="1 or more"):
        generate_folder(items(), BlendGenerator(), 0, tmp_path)
    generate_folder(items(), BlendGenerator(0.5, 16), 2, tmp_path / "a")
    with pytest.raises(DataError, match="another folder"):
        generate_folder(items(), BlendGenerator(0.4, 16), 2, tmp_path / "a")
    broken = ImageItem("broken.png", "3", "x", b"no picture")
    written = generate_folder([items()[0], broken], BlendGenerator(size=16), 2, tmp_path / "b")
    assert written.ready == 0 and "broken.png" in written.skipped[0]
    with pytest.raises(ConfigError, match="lambda_text"):
        CompositionSettings(lambda_text=1.5)
    with pytest.raises(ConfigError, match="strength"):
        CompositionSettings(strength=0.0)


def test_the_command_writes_a_folder(tmp_path: Path, known_folder: Path) -> None:
    arguments = ["generate", str(known_folder), "-o", str(tmp_path / "made"), "--model", "mix", "-n", "3", "-q"]
    result = talon(*arguments, "--size", "16")
    assert result.code == 0 and "3 pictures" in result.out
    assert len(list((tmp_path / "made").glob("*.png"))) == 3


def test_without_diffusers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, *rest: Any) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(BackboneError, match=r"talon-ocd\[diffusion\]"):
        import_diffusers()


def tiny_parts(folder: Path) -> DiffusionParts:
    """A latent diffusion model with random weights; its words are letters."""
    pytest.importorskip("diffusers", reason="needs the extra 'diffusion'")
    diffusers, transformers = import_diffusers()
    torch.manual_seed(0)
    blocks = {"block_out_channels": (8, 16), "norm_num_groups": 4}
    unet = diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, cross_attention_dim=16, attention_head_dim=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        **blocks,
    )  # fmt: skip
    vae = diffusers.AutoencoderKL(
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        **blocks,
    )
    text = transformers.CLIPTextModel(
        transformers.CLIPTextConfig(
            vocab_size=60, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=32,
        )
    )  # fmt: skip
    letters = [chr(code) for code in range(97, 123)]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=32)
    return DiffusionParts(vae, unet, diffusers.DDIMScheduler(clip_sample=False), text, tokenizer)


def parents() -> tuple[Parent, Parent]:
    return tuple(Parent(item.load(), str(name)) for item, name in zip(items()[:2], ("cat", "dog"), strict=True))  # type: ignore[return-value]


def test_a_diffusion_model_composes_pictures(tmp_path: Path) -> None:
    parts = tiny_parts(tmp_path / "words")
    made_by = DiffusionGenerator(parts, FAST)
    assert not made_by.uses_images
    first, second = parents()
    picture = made_by.compose(first, second, seed=1)
    assert picture.size == (16, 16) and picture.mode == "RGB"
    assert made_by.compose(first, second, seed=1).tobytes() == picture.tobytes()
    assert made_by.compose(first, second, seed=2).tobytes() != picture.tobytes()
    # With every λ at an end, the other parent has no say.
    ends = DiffusionGenerator(parts, CompositionSettings(lambda_text=0.0, lambda_latent=0.0, steps=4, strength=0.5))
    assert ends.compose(first, second, 1).tobytes() == ends.compose(first, Parent(second.picture, "x"), 1).tobytes()
    for name in ("lambda_text", "lambda_latent"):
        changed = replace(FAST, **{name: 0.1})  # type: ignore[arg-type]
        assert DiffusionGenerator(parts, changed).compose(first, second, 1).tobytes() != picture.tobytes()
    told: list[str] = []
    asked = DiffusionGenerator(parts, FAST, captioner=lambda seen, name: told.append(name) or "a cat")  # type: ignore[func-returns-value]
    asked.compose(first, second, 1)
    assert told == ["cat", "dog"]
    with pytest.raises(ConfigError, match="multiple of 2"):
        DiffusionGenerator(parts, CompositionSettings(size=15))


def test_an_image_encoder_is_used_with_an_adapter(tmp_path: Path) -> None:
    parts = tiny_parts(tmp_path / "words")
    _, transformers = import_diffusers()
    encoder = transformers.CLIPVisionModelWithProjection(
        transformers.CLIPVisionConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8,
            patch_size=4, projection_dim=12,
        )
    )  # fmt: skip
    parts.unet._load_ip_adapter_weights([adapter_weights(parts.unet)])
    full = DiffusionParts(**{**vars(parts), "image_encoder": encoder.eval()})
    first, second = parents()
    pictures = set()
    for share in (0.0, 1.0):
        made_by = DiffusionGenerator(full, CompositionSettings(lambda_image=share, steps=4, strength=0.5))
        assert made_by.uses_images
        pictures.add(made_by.compose(first, second, 1).tobytes())
    assert len(pictures) == 2


def adapter_weights(unet: Any) -> dict[str, Any]:
    """Random weights of an IP-Adapter: four tokens of an image embedding of 12."""
    projection = {"proj.weight": torch.randn(64, 12), "proj.bias": torch.zeros(64)}
    weights: dict[str, torch.Tensor] = {}
    cross = [name for name in unet.attn_processors if name.endswith("attn2.processor")]
    for number, name in enumerate(cross):
        width = unet.get_submodule(name.removesuffix(".processor")).to_k.weight.shape[0]
        for part in ("k", "v"):
            weights[f"{2 * number + 1}.to_{part}_ip.weight"] = 5.0 * torch.randn(width, 16)
    normal = {"norm.weight": torch.ones(16), "norm.bias": torch.zeros(16)}
    return {"image_proj": {**projection, **normal}, "ip_adapter": weights}


def test_a_model_folder_is_loaded_and_the_command_uses_it(tmp_path: Path, known_folder: Path) -> None:
    parts = tiny_parts(tmp_path / "words")
    folder = tmp_path / "model"
    for name, part in vars(parts).items():
        if part is not None:
            part.save_pretrained(folder / name)
    loaded = DiffusionGenerator(load_parts(str(folder)), FAST)
    first, second = parents()
    assert loaded.compose(first, second, 1).tobytes() == DiffusionGenerator(parts, FAST).compose(
        first, second, 1
    ).tobytes()  # fmt: skip
    settings = ["--steps", "2", "--number", "2", "-q"]
    result = talon("generate", str(known_folder), "-o", str(tmp_path / "made"), "--model", str(folder), *settings)
    assert result.code == 0, result.err
    row = json.loads((tmp_path / "made" / MANIFEST).read_text().splitlines()[0])
    assert row["generator"] == "diffusion" and row["steps"] == 2
    with pytest.raises(BackboneError, match="diffusers' layout"):
        load_parts(str(tmp_path / "words"))
