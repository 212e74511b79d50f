from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd import Talon
from talon_ocd.backbones import Backbone, Paired, PairedHead, TinyViT, paired
from talon_ocd.config import TalonConfig
from talon_ocd.offline import Fitting, Labelled, TrunkCache
from tests import tiny
from tests.backbones import contract
from tests.offline.standin import StandIn, some_digits


@pytest.fixture(scope="module")
def base() -> TinyViT:
    return TinyViT(width=32, depth=2)


def shaken(module: nn.Module, seed: int) -> None:
    """Move all parameters a little, so that they are not those of the module's own seed."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))


@pytest.fixture
def both(base: TinyViT) -> Paired:
    """Heads that differ, and centres that are not zero, as after a fit."""
    backbone = Paired(base)
    shaken(backbone.head.trained, 0)
    hidden = backbone.trunk(contract.pixels_for(backbone, 20))
    backbone.head.centre(*(F.normalize(head(hidden), dim=1) for head in (backbone.head.first, backbone.head.trained)))
    return backbone


def test_contract(both: Paired) -> None:
    contract.check_shapes(both)
    contract.check_frozen(both)
    contract.check_scopes(both)
    contract.check_adapting_a_copy(both)
    contract.check_round_trip(both)


def test_features_are_two_unit_halves(base: TinyViT, both: Paired) -> None:
    pixels = contract.pixels_for(base, 8)
    features = both(pixels)
    assert features.shape == (8, 2 * base.feature_size) and both.feature_size == 2 * base.feature_size
    for number, (half, head) in enumerate(
        zip(features.chunk(2, dim=1), (both.head.first, both.head.trained), strict=True)
    ):
        torch.testing.assert_close(half.norm(dim=1), torch.ones(8))
        alone = F.normalize(head(both.trunk(pixels)), dim=1)
        torch.testing.assert_close(half, F.normalize(alone - both.head.centres[number], dim=1))


def test_the_trained_part_is_as_long_as_its_weight(base: TinyViT, both: Paired) -> None:
    pixels, lighter = contract.pixels_for(base, 4), copy.deepcopy(both)
    lighter.head.weight.fill_(0.5)
    first, second = both(pixels).chunk(2, dim=1)
    torch.testing.assert_close(lighter(pixels), torch.cat([first, 0.5 * second], dim=1))
    again = Paired(base)
    again.load_state_dict(lighter.state_dict())
    assert torch.equal(again(pixels), lighter(pixels))
    before = both.state_dict()
    del before["head.weight"]  # as heads were saved that knew no weight
    again.load_state_dict(before)
    assert torch.equal(again(pixels), both(pixels))


def test_a_new_pair_sees_what_the_one_head_sees_twice(base: TinyViT) -> None:
    pixels = contract.pixels_for(base)
    first, second = Paired(base)(pixels).chunk(2, dim=1)
    torch.testing.assert_close(first, F.normalize(base(pixels), dim=1))
    assert torch.equal(first, second)


def test_centring_takes_away_what_all_images_share(both: Paired) -> None:
    pixels = contract.pixels_for(both, 20)
    centred = both(pixels).chunk(2, dim=1)
    plain = copy.deepcopy(both)
    plain.head.centres.zero_()
    for before, after in zip(plain(pixels).chunk(2, dim=1), centred, strict=True):
        assert after.mean(dim=0).norm() < 0.5 * before.mean(dim=0).norm()


def test_only_the_second_head_may_move(base: TinyViT, both: Paired) -> None:
    names = {name for name, _ in both.head.named_parameters()}
    for scope in contract.SCOPES:
        chosen = both.head_parameter_names(scope)
        assert set(chosen) <= names
        assert chosen == [f"second.{name}" for name in base.head_parameter_names(scope)]


def test_the_base_stays_as_it_is(base: TinyViT) -> None:
    before = {name: value.clone() for name, value in base.state_dict().items()}
    backbone = Paired(base)
    with torch.no_grad():
        for parameter in backbone.head.parameters():
            parameter.zero_()
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())
    assert backbone.trunk is base.trunk
    assert (backbone.name, backbone.family, backbone.hidden_shape) == (base.name, base.family, base.hidden_shape)


def test_trunk_outputs_are_shared_with_the_base(base: TinyViT, both: Paired) -> None:
    assert both.trunk_fingerprint() == base.trunk_fingerprint()
    assert TinyViT(width=32, depth=1).trunk_fingerprint() != both.trunk_fingerprint()


def test_a_pair_is_not_paired_again(base: TinyViT) -> None:
    once = paired(base)
    assert paired(once) is once and isinstance(once.base, TinyViT)


def fitted(backbone: Backbone, epochs: int = 2) -> Fitting:
    """Train on digits, without a rehearsal."""
    config = TalonConfig().override(epochs=epochs, views=2, offset=0.0)
    items, _ = some_digits(60)
    with TrunkCache(backbone, memory_bytes=10**9, disk_bytes=0, augmentation=config.offline.augmentation) as cache:
        fitting = Fitting(backbone, Labelled.from_items(items, backbone, config.offline, cache), config)
        fitting.run()
    return fitting


def halves(head: PairedHead, hidden: Tensor) -> tuple[Tensor, Tensor]:
    return head.first(hidden), head.trained(hidden)


def test_training_leaves_the_first_head_as_it_was_to_the_bit() -> None:
    base = StandIn()
    backbone = Paired(base)
    hidden = base.trunk(contract.pixels_for(base, 6))
    fitted(backbone)
    first, second = halves(backbone.head, hidden)
    assert torch.equal(first, StandIn().head(hidden)) and not torch.allclose(first, second, atol=1e-4)
    for name, value in StandIn().head.state_dict().items():
        assert torch.equal(backbone.head.first.state_dict()[name], value)
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    assert all(torch.equal(value, base.state_dict()[name]) for name, value in StandIn().state_dict().items())


def test_the_second_head_is_trained_as_if_it_were_alone() -> None:
    together, alone = Paired(StandIn()), StandIn()
    fitted(together)
    fitted(alone)
    for name, value in alone.head.state_dict().items():
        assert torch.equal(together.head.trained.state_dict()[name], value)


def test_labelled_images_are_centred_after_training() -> None:
    backbone = Paired(StandIn())
    fitting = fitted(backbone)
    heads, centres = (backbone.head.first, backbone.head.trained), backbone.head.centres
    hidden = torch.cat([fitting.outputs.take(torch.tensor([i]), 0) for i in range(len(fitting.labels))])
    for head, centre in zip(heads, centres, strict=True):
        torch.testing.assert_close(F.normalize(head(hidden), dim=1).mean(dim=0), centre, rtol=1e-4, atol=1e-5)


def pretrained() -> TinyViT:
    backbone = TinyViT(width=32, depth=2)
    shaken(backbone, 1)
    return backbone


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Talon, Path]:
    talon = Talon(pretrained(), tiny.tiny_talon(epochs=2, offset=0.0).config)
    talon.fit(tiny.labelled())
    folder = tmp_path_factory.mktemp("paired") / "model"
    talon.save_pretrained(folder)
    return talon, folder


def test_a_loaded_model_gives_the_same_features_and_answers(saved: tuple[Talon, Path]) -> None:
    talon, folder = saved
    loaded = Talon.from_pretrained(folder)
    assert isinstance(talon.backbone, Paired) and isinstance(loaded.backbone, Paired)
    pixels = contract.pixels_for(talon.backbone, 5)
    assert torch.equal(loaded.backbone(pixels), talon.backbone(pixels))
    assert loaded.backbone.trunk_fingerprint() == talon.backbone.trunk_fingerprint()
    incoming = tiny.incoming(30)
    assert loaded.stream().observe_many(incoming) == talon.stream().observe_many(incoming)


def test_a_loaded_model_still_has_the_encoder_from_before_training(saved: tuple[Talon, Path]) -> None:
    talon, folder = saved
    loaded = Talon.from_pretrained(folder)
    assert isinstance(loaded.backbone, Paired)
    pixels = contract.pixels_for(talon.backbone, 5)
    untrained = pretrained()
    assert torch.equal(loaded.backbone.base(pixels), untrained(pixels))
    assert loaded.backbone.base.head_parameter_names("norms") == untrained.head_parameter_names("norms")


def test_a_head_that_was_saved_without_a_second_one_goes_on_without_it(base: TinyViT, both: Paired) -> None:
    alone, hidden = Paired(base, trained=False), base.trunk(contract.pixels_for(base, 3))
    alone.head.centre(alone.base.head(hidden))
    loaded = Paired(base)
    loaded.head.load_state_dict(alone.head.state_dict())
    assert loaded.head.second is None and loaded.feature_size == base.feature_size
    assert torch.equal(loaded.head(hidden), alone.head(hidden))
    loaded = Paired(base)
    loaded.head.load_state_dict(both.head.state_dict())
    assert loaded.feature_size == 2 * base.feature_size and torch.equal(loaded.head(hidden), both.head(hidden))


def test_the_registry_builds_pairs() -> None:
    with pytest.raises(NotImplementedError, match="backbone_from_architecture"):
        Paired.from_architecture({}, TinyViT().preprocessing)
