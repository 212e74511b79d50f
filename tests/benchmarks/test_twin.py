"""The released code's formulation and the stream must agree: same ids, same prototypes, same encoder."""

from collections.abc import Callable

import pytest
import torch

from talon_ocd.backbones import Backbone, EfficientNetLite0, TinyViT
from talon_ocd.benchmarks.decisions import filled, queries, same_ids
from talon_ocd.benchmarks.scenes import Scene, scene
from talon_ocd.benchmarks.stream import contenders, observe
from talon_ocd.benchmarks.twin import OneByOne, TwoForward, released_loss
from talon_ocd.config import OnlineConfig
from talon_ocd.memory import PrototypeMemory
from talon_ocd.online import DiscoveryStream, FeatureStream, adaptation_loss
from tests.memory.test_prototypes import unit_rows

BATCH = 24


def tiny() -> Backbone:
    return TinyViT(width=48, depth=2)


def painted(backbone: Backbone, batches: int) -> list[Scene]:
    """One scene for the settings, and pictures of other seeds to go on with."""
    return [scene(backbone, BATCH, seed) for seed in range(batches)]


@pytest.mark.parametrize("build", [tiny, lambda: EfficientNetLite0.pretrained(image_size=32)])
def test_the_stream_gives_the_ids_of_the_two_forward_twin(build: Callable[[], Backbone]) -> None:
    backbone = build()
    first, *later = painted(backbone, 4)
    assert first.config.adapt == ("prototypes", "encoder")
    stream = DiscoveryStream(backbone, PrototypeMemory(first.known), first.config)
    twin = TwoForward(backbone, first.known, first.config)
    founded = 0
    for view in (first, *later):
        ids = observe(stream, view)
        assert ids == twin.observe(view.pixels)
        founded = max(ids)
    assert len(first.known) < founded < len(first.known) + 4 * BATCH
    assert stream.adapter.steps == 4
    torch.testing.assert_close(stream.memory.prototypes, twin.decisions.prototypes, atol=1e-5, rtol=0)
    for ours, theirs in zip(stream.adapter.parameters, twin._parameters, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
        assert ours.requires_grad


def test_a_scene_founds_some_categories_and_attaches_most() -> None:
    view = scene(tiny(), 64)
    assert 4 <= view.founded <= 10
    answers = FeatureStream(PrototypeMemory(view.known), view.config)
    assert answers.config.adapt_every == 64


def test_every_contender_starts_anew() -> None:
    works = contenders(tiny(), scene(tiny(), 16))
    assert set(works) == {"forward", "stream", "two-forward"}
    assert works["stream"]()() == works["stream"]()() == works["two-forward"]()()


@pytest.mark.parametrize("seed", range(3))
def test_loss_of_the_twin_is_ours(seed: int) -> None:
    features, prototypes = unit_rows(12, 8, seed).double(), unit_rows(5, 8, seed + 50).double()
    ids = [int(value) for value in torch.randint(0, 5, (12,), generator=torch.Generator().manual_seed(seed))]
    config = OnlineConfig(threshold=0.7)
    ours = adaptation_loss(features, torch.tensor(ids), prototypes, config)
    assert float(released_loss(features, ids, prototypes, config)) == pytest.approx(float(ours), abs=1e-9)
    alone = released_loss(features, [2] * 12, prototypes, config)
    assert float(alone) == pytest.approx(float(adaptation_loss(features, torch.tensor([2] * 12), prototypes, config)))


def test_decisions_at_scale_are_those_of_the_one_by_one_twin() -> None:
    config = OnlineConfig(threshold=0.7, adapt=("prototypes",), adapt_every=64)
    memory = filled(3000, 64)
    before = memory.prototypes.clone()
    compared, equal, founded = same_ids(memory, config, batches=4)
    assert (compared, equal) == (256, 256)
    assert 4 <= founded < 64
    assert torch.equal(memory.prototypes, before)


def test_prototypes_of_the_one_by_one_twin_are_ours() -> None:
    config = OnlineConfig(threshold=0.7, adapt=("prototypes",), adapt_every=64)
    memory = filled(40, 32)
    twin, stream = OneByOne(memory.prototypes, config, memory.known), FeatureStream(memory, config)
    features = queries(memory, 64, 0)
    assert stream.place(features).ids.tolist() == twin.decide(features)
    stream.adapt()
    twin.update()
    torch.testing.assert_close(stream.memory.prototypes, twin.prototypes, atol=1e-6, rtol=0)
