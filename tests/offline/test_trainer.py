"""Training: it learns, it is deterministic, it resumes bit by bit, and its switches do what they say."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from talon_ocd.backbones.tiny import TinyViT
from talon_ocd.config import OfflineConfig
from talon_ocd.errors import ConfigError, DataError, ImageError, TalonError
from talon_ocd.images.items import memory_item
from talon_ocd.offline.features import class_means, encode
from talon_ocd.offline.trainer import CachedViews, FreshViews, TrainingReport, Views, train_head
from talon_ocd.offline.trunk_cache import TrunkCache, TrunkOutputs
from tests.offline.standin import CLASSES, Listener, StandIn, some_digits

ITEMS, LABELS = some_digits(120)
FAST = OfflineConfig(epochs=4, batch_size=50)


def cached(backbone: StandIn | TinyViT, augmentation: str = "gcd", views: int = 3) -> TrunkOutputs:
    trunk = TrunkCache(backbone, memory_bytes=10**8, disk_bytes=0, augmentation=augmentation)
    return trunk.outputs(ITEMS, views)


@pytest.fixture(scope="module")
def outputs() -> TrunkOutputs:
    return cached(StandIn())


def run(
    views: Views,
    config: OfflineConfig = FAST,
    seed: int = 0,
    start: Tensor | None = None,
    checkpoint: Path | None = None,
) -> tuple[dict[str, Tensor], TrainingReport]:
    backbone = StandIn()
    start = torch.eye(CLASSES, 16) if start is None else start
    names = backbone.head_parameter_names("head")
    report = train_head(backbone.head, names, views, LABELS, start, config, seed, checkpoint=checkpoint)
    return copy.deepcopy(backbone.head.state_dict()), report


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_training_lowers_the_loss_and_raises_known_accuracy() -> None:
    backbone = TinyViT(image_size=8, patch=2, width=32, depth=2)
    hidden = cached(backbone, "none")

    def accuracy() -> float:
        features = encode(backbone.head, hidden)
        prototypes = class_means(features, LABELS, CLASSES)
        return float(((features @ prototypes.T).argmax(dim=1) == LABELS).float().mean())

    before = accuracy()
    start = class_means(encode(backbone.head, hidden), LABELS, CLASSES)
    config = OfflineConfig(epochs=25, batch_size=16, lr_encoder=3e-3, lr_classifier=3e-3)
    report = train_head(
        backbone.head, backbone.head_parameter_names("head"), CachedViews(hidden), LABELS, start, config, 0
    )
    assert report.losses[-1]["loss"] < 0.7 * report.losses[0]["loss"]
    assert accuracy() > max(0.9, before)
    assert (report.epochs, report.resumed_from, len(report.losses)) == (25, 0, 25)
    assert report.images_per_second > 0
    assert report.classifier_weights.shape == (CLASSES, 32)
    assert "classifier_weights" not in report.to_dict()


def test_the_seed_decides_everything(outputs: TrunkOutputs) -> None:
    torch.manual_seed(1)
    first, report = run(CachedViews(outputs))
    state = torch.random.get_rng_state()
    second, again = run(CachedViews(outputs))
    assert torch.equal(state, torch.random.get_rng_state())  # nobody touched the global generator
    assert same(first, second)
    assert report.losses == again.losses
    assert torch.equal(report.classifier_weights, again.classifier_weights)
    assert not same(first, run(CachedViews(outputs), seed=1)[0])


def test_cached_equals_uncached_without_augmentation() -> None:
    backbone = StandIn()
    views = CachedViews(cached(backbone, "none"))
    fresh = FreshViews(ITEMS, backbone, "none")
    a, b = run(views), run(fresh)
    for name, value in a[0].items():
        torch.testing.assert_close(value, b[0][name])


def test_fresh_views_differ_from_each_other_and_between_steps() -> None:
    fresh = FreshViews(ITEMS, StandIn(), "talon")
    generator = torch.Generator().manual_seed(0)
    index = torch.tensor([3, 5])
    (a, b), (c, _) = fresh.pair(index, generator), fresh.pair(index, generator)
    assert a.shape == (2, 8, 4, 4)
    assert not torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(a, fresh.pair(index, torch.Generator().manual_seed(0))[0])
    broken = FreshViews([memory_item(b"junk", "junk.png")], StandIn())
    with pytest.raises(ImageError, match=r"junk\.png"):
        broken.pair(torch.tensor([0]), generator)


def test_cached_pairs_are_distinct_views_of_the_same_image(outputs: TrunkOutputs) -> None:
    index = torch.randint(len(outputs), (300,))
    rows = torch.stack([outputs.take(index, view) for view in range(4)]).flatten(2)
    first, second = CachedViews(outputs).pair(index, torch.Generator().manual_seed(0))
    which = [(rows == hidden.flatten(1)).all(dim=2) for hidden in (first, second)]
    assert all(found[1:].any(dim=0).all() for found in which)
    both = which[0] & which[1]  # equal views only where two random crops happen to be equal
    assert both.any(dim=0).float().mean() < 0.2
    assert {int(view) for found in which for view in found.nonzero()[:, 0]} >= {1, 2, 3}


class InterruptedRunError(Exception):
    pass


class Fuse:
    """Views that fail at a certain step."""

    def __init__(self, views: Views, steps: int) -> None:
        self.views, self.left = views, steps

    def pair(self, index: Tensor, generator: torch.Generator) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise InterruptedRunError
        return self.views.pair(index, generator)


@pytest.mark.parametrize("kind", ["margin", "linear"])
def test_an_interrupted_run_ends_bit_equal(tmp_path: Path, outputs: TrunkOutputs, kind: str) -> None:
    config = OfflineConfig(epochs=5, batch_size=50, classifier=kind, warmup_epochs=2)  # type: ignore[arg-type]
    file = tmp_path / "sub" / "training.safetensors"
    views = CachedViews(outputs)
    whole, report = run(views, config)
    for steps in (4, 5):  # 3 steps an epoch: stops in epoch 2, then in epoch 3
        with pytest.raises(InterruptedRunError):
            run(Fuse(views, steps), config, checkpoint=file)
    resumed, again = run(views, config, checkpoint=file)
    assert again.resumed_from == 2
    assert same(whole, resumed)
    assert again.losses == report.losses
    assert torch.equal(report.classifier_weights, again.classifier_weights)
    finished, last = run(views, config, checkpoint=file)  # all done: nothing left to train
    assert last.resumed_from == 5
    assert same(whole, finished)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("damage", ["seed", "cut", "junk"])
def test_a_foreign_or_damaged_checkpoint_is_ignored(tmp_path: Path, outputs: TrunkOutputs, damage: str) -> None:
    file = tmp_path / "training.safetensors"
    views = CachedViews(outputs)
    run(views, seed=1 if damage == "seed" else 0, checkpoint=file)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-50])
    elif damage == "junk":
        file.write_bytes(b"junk")
    listener, backbone = Listener(), StandIn()
    start = torch.eye(CLASSES, 16)
    train_head(backbone.head, backbone.head_parameter_names("head"), views, LABELS, start, FAST, 0, listener, file)
    assert same(run(views)[0], backbone.head.state_dict())
    assert "starts anew" in listener.notes[0]


def test_a_checkpoint_that_cant_be_written_costs_only_a_note(tmp_path: Path, outputs: TrunkOutputs) -> None:
    (tmp_path / "file").write_text("")
    views = CachedViews(outputs)
    assert same(run(views)[0], run(views, checkpoint=tmp_path / "file" / "training.safetensors")[0])


@pytest.mark.parametrize(
    "change",
    [
        {"classifier_views": "both"}, {"classifier_init": "random"}, {"reduction": "sum"}, {"margin": 0.3},
        {"classifier": "cosine"}, {"classifier": "linear"}, {"supcon_weight": 0.0}, {"weight_decay": 0.5},
        {"lr_encoder": 1e-4}, {"lr_classifier": 1e-2}, {"warmup_epochs": 1}, {"batch_size": 30},
    ],
)  # fmt: skip
def test_switches_change_the_result(outputs: TrunkOutputs, change: dict[str, object]) -> None:
    plain = OfflineConfig(epochs=2, batch_size=50, classifier="margin")
    config = replace(plain, **change)  # type: ignore[arg-type]
    assert not same(run(CachedViews(outputs), plain)[0], run(CachedViews(outputs), config)[0])


def test_the_classifier_starts_where_it_is_told(outputs: TrunkOutputs) -> None:
    nothing = {"lr_classifier": 0.0, "epochs": 1}
    start = torch.randn(CLASSES, 16)
    kept = run(CachedViews(outputs), OfflineConfig(**nothing), start=start)[1]  # type: ignore[arg-type]
    assert torch.equal(kept.classifier_weights, start)
    drawn = run(CachedViews(outputs), OfflineConfig(**nothing, classifier_init="random"), start=start)[1]  # type: ignore[arg-type]
    assert drawn.classifier_weights.abs().max() <= 0.25
    head = StandIn().head
    unknown = train_head(head, ["4.bias"], CachedViews(outputs), LABELS, None, OfflineConfig(**nothing), 0)  # type: ignore[arg-type]
    assert torch.equal(unknown.classifier_weights, drawn.classifier_weights)


def test_only_named_parameters_move_and_flags_are_restored(outputs: TrunkOutputs) -> None:
    backbone = StandIn()
    before = copy.deepcopy(backbone.head.state_dict())
    names = backbone.head_parameter_names("norms")
    backbone.head.get_parameter("4.bias").requires_grad_(True)
    train_head(backbone.head, names, CachedViews(outputs), LABELS, torch.eye(CLASSES, 16), FAST, 0)
    moved = {name for name, value in backbone.head.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == set(names) == {"2.weight", "2.bias"}
    assert [name for name, p in backbone.head.named_parameters() if p.requires_grad] == ["4.bias"]
    assert backbone.head.get_parameter("2.bias").grad is None


def test_no_epochs_change_nothing(outputs: TrunkOutputs) -> None:
    head, report = run(CachedViews(outputs), OfflineConfig(epochs=0))
    assert same(head, StandIn().head.state_dict())
    assert (report.epochs, report.losses) == (0, [])


def test_progress_hears_the_loss(outputs: TrunkOutputs) -> None:
    listener, backbone = Listener(), StandIn()
    start = torch.eye(CLASSES, 16)
    train_head(backbone.head, ["4.bias"], CachedViews(outputs), LABELS, start, FAST, 0, listener)
    assert listener.done == 4 * len(LABELS)
    assert any("loss" in facts for facts in listener.facts)


def test_a_loss_that_is_no_number_stops_the_training(outputs: TrunkOutputs) -> None:
    with pytest.raises(TalonError, match=r"became nan in epoch 2, step 1; lower lr_encoder=1e\+30"):
        run(CachedViews(outputs), OfflineConfig(epochs=3, batch_size=120, lr_encoder=1e30))


def test_nonsense_is_refused(outputs: TrunkOutputs) -> None:
    head: nn.Module = StandIn().head
    views, start = CachedViews(outputs), torch.eye(CLASSES, 16)
    with pytest.raises(DataError, match=r"no parameter '4\.bia'.*Did you mean '4\.bias'"):
        train_head(head, ["4.bia"], views, LABELS, start, FAST, 0)
    with pytest.raises(DataError, match="0 names"):
        train_head(head, [], views, LABELS, start, FAST, 0)
    with pytest.raises(DataError, match="labels go from 0 to 3 but there are 2 classes"):
        train_head(head, ["4.bias"], views, LABELS, start[:2], FAST, 0)
    with pytest.raises(DataError, match=r"shape \(0,\)"):
        train_head(head, ["4.bias"], views, LABELS[:0], start, FAST, 0)
    with pytest.raises(ConfigError, match="1 cached views"):
        CachedViews(outputs, 1)
