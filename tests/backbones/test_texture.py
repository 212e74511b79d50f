from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from torch import Tensor
from torch.nn import functional as F

from talon_ocd import Talon
from talon_ocd.backbones import EfficientNetLite0, Paired, TinyViT, backbone_from_architecture, paired
from talon_ocd.backbones.efficientnet_lite import LiteHead
from talon_ocd.backbones.texture import Texture
from tests import tiny
from tests.backbones import contract
from tests.cli.running import talon as run

CHANNELS, RANK = 6, 4


def some_local(images: int = 5, places: int = 9, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    mixed = torch.randn(images, CHANNELS, CHANNELS, generator=random)
    return torch.randn(images, places, CHANNELS, generator=random) @ mixed


@pytest.fixture
def texture() -> Texture:
    learned = Texture(CHANNELS, RANK)
    learned.learn(some_local(images=30, seed=1))
    return learned


def slow_root(local: Tensor, directions: Tensor) -> np.ndarray:
    """Square root of one image's covariance, of length 1."""
    root = np.asarray(np.real(sqrtm(np.cov((local.double() @ directions.double()).numpy().T))), np.float64)
    unit: np.ndarray = root / np.linalg.norm(root)
    return unit


def test_products_of_rows_are_those_of_the_roots_of_covariances(texture: Texture) -> None:
    local = some_local()
    texture.mean.zero_()
    rows = texture(local)
    roots = np.stack([slow_root(own, texture.directions) for own in local])
    torch.testing.assert_close(rows @ rows.T, torch.from_numpy(np.einsum("aij,bij->ab", roots, roots)).float())
    assert rows.shape == (5, texture.size) and texture.size == RANK * (RANK + 1) // 2


def test_rows_are_centred_and_of_unit_length(texture: Texture) -> None:
    local = some_local(images=30, seed=1)  # those it learned from
    centred = texture(local)
    torch.testing.assert_close(centred.norm(dim=1), torch.ones(30))
    mean = texture.mean.clone()
    texture.mean.zero_()
    torch.testing.assert_close(texture(local).mean(dim=0), mean)
    torch.testing.assert_close(centred, F.normalize(texture(local) - mean, dim=1))


def test_where_things_are_how_bright_they_are_and_what_all_places_share_does_not_matter(texture: Texture) -> None:
    local = some_local()
    rows = texture(local)
    torch.testing.assert_close(texture(local.flip(1)), rows)
    torch.testing.assert_close(texture(3.0 * local), rows)
    torch.testing.assert_close(texture(local + torch.arange(CHANNELS)), rows, rtol=1e-4, atol=1e-5)


def test_it_looks_at_the_directions_in_which_local_features_vary_most() -> None:
    local = some_local(images=40) * torch.tensor([0.01, 9.0, 0.01, 5.0, 3.0, 7.0])
    texture = Texture(CHANNELS, RANK)
    texture.learn(local)
    torch.testing.assert_close(texture.directions.T @ texture.directions, torch.eye(RANK))
    assert texture.directions[[0, 2]].abs().max() < 0.01


@pytest.mark.parametrize("places", [1, 2, 3])
def test_fewer_places_than_directions_give_the_same_alone_and_together(places: int, texture: Texture) -> None:
    local = some_local(places=places)
    rows = texture(local)
    assert torch.isfinite(rows).all()
    for own, row in zip(local, rows, strict=True):
        torch.testing.assert_close(texture(own[None])[0], row)
    nudged = texture(local * (1 + 1e-7 * torch.randn(local.shape, generator=torch.Generator().manual_seed(0))))
    torch.testing.assert_close(nudged, rows, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("trained", "both"), [(True, True), (True, False), (False, True), (False, False)])
def test_contract_of_an_encoder_with_texture(trained: bool, both: bool) -> None:
    base = EfficientNetLite0(image_size=64)
    backbone = Paired(base, trained, RANK, both)
    hidden = base.trunk(contract.pixels_for(base, 6))
    backbone.head.learn_textures(hidden)
    textures = 1 + (trained and both)
    assert backbone.feature_size == (1 + trained) * base.feature_size + textures * RANK * (RANK + 1) // 2
    contract.check_shapes(backbone)
    contract.check_scopes(backbone)
    contract.check_round_trip(backbone)
    moves = backbone.head_parameter_names("norms")
    assert all(name.startswith("second." if trained else "first.") for name in moves)
    torch.testing.assert_close(backbone.head(hidden).norm(dim=1) ** 2, torch.full((6,), 1.0 + trained + textures))


def test_the_trained_head_has_a_texture_of_its_own_with_the_length_of_its_part() -> None:
    base = EfficientNetLite0(image_size=64)
    head = Paired(base, True, RANK, trained_texture=True).head
    hidden = base.trunk(contract.pixels_for(base, 6))
    with torch.no_grad():
        assert isinstance(head.second, LiteHead)
        head.second.block.project.weight.mul_(torch.linspace(0.5, 2.0, 320).view(-1, 1, 1, 1))  # as if it were trained
    head.learn_textures(hidden)
    head.weight.fill_(0.5)
    own = Texture(320, RANK)
    own.learn(head.second.describe(hidden)[1])
    size, rows = own.size, head(hidden)
    torch.testing.assert_close(rows[:, -size:], 0.5 * own(head.second.describe(hidden)[1]))
    assert not torch.allclose(rows[:, -size:], 0.5 * rows[:, -2 * size : -size], atol=0.01)
    wide = head.feature_size
    head.drop_second()
    assert head.feature_size == 1280 + size and head(hidden).shape == (6, 1280 + size)
    head.add_second()
    assert head.feature_size == wide and head.second_texture is not None


def test_parts_are_those_that_are_wanted_and_there() -> None:
    lite, tiny_vit = EfficientNetLite0(image_size=64), TinyViT(width=32, depth=1)
    assert paired(lite, trained=False) is lite and paired(tiny_vit, trained=False, texture=8) is tiny_vit
    with_texture = paired(lite, trained=False, texture=1000)
    assert with_texture.feature_size == 1280 + 320 * 321 // 2  # as many directions as there are
    before = {"kind": "paired", "name": "tiny-vit", "base": tiny_vit.architecture()}  # of models from before texture
    old = backbone_from_architecture(before, tiny_vit.preprocessing)
    assert isinstance(old, Paired) and old.head.texture is None and old.head.second is not None


def fitted_with_texture(**settings: Any) -> Talon:
    torch.manual_seed(0)  # the weights of the encoder
    config = tiny.tiny_talon(keep_pretrained=True, texture=RANK, **settings).config
    talon = Talon(EfficientNetLite0(image_size=64), config)
    talon.fit(tiny.labelled())
    return talon


def test_a_model_with_texture_is_saved_and_loaded(tmp_path: Path) -> None:
    talon = fitted_with_texture(epochs=0)
    assert isinstance(talon.backbone, Paired) and talon.backbone.head.texture is not None
    assert talon.backbone.head.texture.mean.abs().sum() > 0
    talon.save_pretrained(tmp_path / "model")
    loaded = Talon.from_pretrained(tmp_path / "model")
    pixels = contract.pixels_for(talon.backbone, 5)
    assert torch.equal(loaded.backbone(pixels), talon.backbone(pixels))
    incoming = tiny.incoming(20)
    assert loaded.stream().observe_many(incoming) == talon.stream().observe_many(incoming)


def test_a_guard_judges_an_encoder_with_texture_which_stays_as_it_is() -> None:
    talon = fitted_with_texture(epochs=1, adapt_every=16, trained_texture=False, **{"guard.images": 32})
    stream = talon.stream(adapt="prototypes,encoder")
    assert stream.guard is not None
    hidden = talon.backbone.trunk(contract.pixels_for(talon.backbone, 4))
    before = stream.adapter.encode(hidden)
    stream.observe_many(tiny.incoming(96))
    assert stream.guard.taken + stream.guard.refused > 0
    after, size = stream.adapter.encode(hidden), RANK * (RANK + 1) // 2
    torch.testing.assert_close(F.normalize(after[:, -size:], dim=1), F.normalize(before[:, -size:], dim=1))


def test_embeddings_of_a_model_with_texture_are_answered_like_its_images(incoming_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="embeddings need the extra parquet")
    model, features = tmp_path / "model", tmp_path / "features.parquet"
    fitted_with_texture(epochs=0).save_pretrained(model)
    done = run("embed", incoming_folder, "-m", model, "-o", features)
    assert done.code == 0 and f"embeddings of {1280 + RANK * (RANK + 1) // 2} numbers" in done.out
    for data, out in ((incoming_folder, "images"), (features, "features")):
        assert run("discover", data, "-m", model, "-o", tmp_path / out, "-q").code == 0
    images, vectors = ((tmp_path / out / "decisions.jsonl").read_text().splitlines() for out in ("images", "features"))
    assert [json.loads(line)["category"] for line in images] == [json.loads(line)["category"] for line in vectors]


@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs a device that knows no float64")
def test_a_device_without_float64_gives_the_same(texture: Texture) -> None:
    local = some_local()
    rows = texture(local)
    torch.testing.assert_close(texture.to("mps")(local.to("mps")).cpu(), rows, rtol=1e-4, atol=1e-5)
