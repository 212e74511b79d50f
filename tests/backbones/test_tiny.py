from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from talon_ocd.backbones import Scope, TinyViT
from talon_ocd.backbones.tiny import waves
from talon_ocd.errors import ConfigError
from tests.backbones import contract


@pytest.fixture(scope="module")
def backbone() -> TinyViT:
    return TinyViT(width=32, depth=2)


def test_contract(backbone: TinyViT) -> None:
    contract.check_shapes(backbone)
    contract.check_frozen(backbone)
    contract.check_scopes(backbone)
    contract.check_adapting_a_copy(backbone)
    contract.check_round_trip(backbone)


@pytest.mark.parametrize("scope", contract.SCOPES)
def test_gradients_are_right(backbone: TinyViT, scope: Scope) -> None:
    contract.check_gradient(backbone, scope)


def test_preprocessing_suits_the_digits() -> None:
    preprocessing = TinyViT().preprocessing
    assert (preprocessing.resize, preprocessing.crop) == (36, 32)
    assert preprocessing.mean == preprocessing.std == (0.5, 0.5, 0.5)


def test_trunk_hands_the_pixels_on(backbone: TinyViT) -> None:
    pixels = contract.pixels_for(backbone)
    assert backbone.trunk(pixels) is pixels


def test_scopes_speak_of_the_last_block(backbone: TinyViT) -> None:
    expected = [f"blocks.1.norm{index}.{kind}" for index in (1, 2) for kind in ("weight", "bias")]
    assert backbone.head_parameter_names("norms") == expected
    assert all(name.startswith("blocks.1.") for name in backbone.head_parameter_names("block"))
    assert set(backbone.head_parameter_names("head")) == {name for name, _ in backbone.head.named_parameters()}


def test_seed_decides_the_weights_and_nothing_else_does() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = TinyViT(seed=5)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    pixels = contract.pixels_for(first)
    torch.testing.assert_close(TinyViT(seed=5)(pixels), first(pixels), rtol=0, atol=0)
    assert not torch.allclose(TinyViT(seed=6)(pixels), first(pixels))


def test_positions_start_as_waves_that_tell_all_places_apart() -> None:
    places = waves(4, 32)
    assert places.shape == (16, 32)
    distances = torch.cdist(places, places) + 10 * torch.eye(16)
    assert distances.min() > 0.5
    torch.testing.assert_close(places[0], torch.tensor(([0.0] * 8 + [1.0] * 8) * 2))  # angle 0 on both axes


def test_it_learns_two_kinds_of_stripes() -> None:
    backbone = TinyViT(width=32, depth=2)
    pixels = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(64) % 2
    pixels[labels == 0, :, ::4] += 2
    pixels[labels == 1, :, :, ::4] += 2
    head = backbone.head.requires_grad_(True)
    optimiser = torch.optim.AdamW(head.parameters(), lr=1e-3)
    for _ in range(30):
        optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(head(pixels)[:, :2], labels))
        optimiser.step()
    assert (head(pixels)[:, :2].argmax(dim=1) == labels).float().mean() > 0.95


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 30}, "image_size=30.*divisible by 8"),
        ({"width": 50}, "width=50.*divisible by 4"),
        ({"depth": 0}, "depth=0"),
        ({"heads": True}, "heads=True"),
    ],
)
def test_bad_options_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TinyViT(**options)
