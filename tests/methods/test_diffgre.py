"""DiffGRE: virtual images, refinement and leaders against slow twins; the whole of it on the stand-in backbone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.config import CalibrationConfig, TalonConfig
from talon_ocd.images import stream as images_of
from talon_ocd.methods.diffgre import DiffGreMethod, DiffGreRecipe
from talon_ocd.methods.diffgre.leader import Leaders, Tap, assign_labels, leader_loss
from talon_ocd.methods.diffgre.refine import refine
from talon_ocd.methods.diffgre.virtual import JoinedViews, MixedImages, StoredImages, unlike_pairs
from talon_ocd.methods.hashing import SmileRecipe
from talon_ocd.methods.phe import PheNetwork, PheRecipe
from talon_ocd.methods.registry import get_method
from talon_ocd.offline import Classifier, Labelled, TrunkCache
from talon_ocd.talon import cache_for
from tests import tiny
from tests.offline.standin import CLASSES, StandIn, some_digits

CONFIG = TalonConfig().override(views=3)
SHORT = CalibrationConfig(rounds=1, orders=1, grid=6, try_untrained=False)
SMILE = DiffGreRecipe(SmileRecipe(epochs=2, batch_size=40, bits=8, mlp_width=64), calibration=SHORT)
PHE = DiffGreRecipe(PheRecipe(epochs=2, batch_size=40, bits=8, mlp_width=64, prototypes=2), calibration=SHORT)
HOSTS = pytest.mark.parametrize("recipe", [SMILE, PHE], ids=["smile", "phe"])


@pytest.fixture(scope="module")
def cache() -> Iterator[TrunkCache]:
    with cache_for(StandIn(), CONFIG) as opened:
        yield opened


@pytest.fixture(scope="module")
def digits(cache: TrunkCache) -> Labelled:
    return Labelled.from_items(some_digits()[0], StandIn(), CONFIG.offline, cache)


def units(*shape: int, seed: int = 0) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, dtype=torch.float64, generator=draws), dim=1)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 20), st.integers(0, 99))
def test_partners_are_of_different_classes(labels: list[int], count: int, seed: int) -> None:
    _, compact = torch.tensor(labels).unique(return_inverse=True)
    first, second = unlike_pairs(compact, count, torch.Generator().manual_seed(seed))
    assert len(first) == len(second) == (count if len(set(labels)) > 1 else 0)
    assert (compact[first] != compact[second]).all()


def test_all_unlike_pairs_are_as_likely() -> None:
    labels = torch.tensor([0, 0, 0, 1, 2])
    first, second = unlike_pairs(labels, 28_000, torch.Generator().manual_seed(0))
    counts = Counter(zip(first.tolist(), second.tolist(), strict=True))
    assert len(counts) == 14 and all(abs(count - 2000) < 250 for count in counts.values())


def test_a_mixed_image_is_a_blend_of_its_parents(digits: Labelled) -> None:
    members = torch.tensor([7, 3, 5])
    mixed = MixedImages(digits.outputs, digits.views, members, torch.tensor([0, 2]), torch.tensor([1, 0]), share=0.25)
    parents = digits.outputs.take(torch.tensor([7, 3, 5]))
    torch.testing.assert_close(mixed.take(torch.tensor([1])), 0.25 * parents[2:] + 0.75 * parents[:1])
    draws, again = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    pair = mixed.pair(torch.tensor([0, 1]), draws)
    first = digits.views.pair(torch.tensor([0, 2]), again).clone()
    second = digits.views.pair(torch.tensor([1, 0]), again)
    torch.testing.assert_close(pair, 0.25 * first + 0.75 * second)


def test_joined_views_put_virtual_images_after_the_labelled_ones(digits: Labelled, cache: TrunkCache) -> None:
    stored = StoredImages(cache.outputs(some_digits()[0][:6]))
    joined = JoinedViews(digits.views, len(digits), stored, torch.tensor([4, 2]))
    count = len(digits)
    pair = joined.pair(torch.tensor([count, 1, count + 1]), torch.Generator().manual_seed(0))
    alone = digits.views.pair(torch.tensor([1]), torch.Generator().manual_seed(0))
    torch.testing.assert_close(pair[:, 1:2], alone)
    for view in pair:
        torch.testing.assert_close(view[[0, 2]], digits.outputs.take(torch.tensor([4, 2])))
    for index in ([0, 1], [count, count]):
        assert joined.pair(torch.tensor(index), torch.Generator()).shape == (2, 2, 8, 4, 4)


def test_refinement_keeps_what_is_far_from_all_known_classes() -> None:
    virtual, centres = units(9, 4), units(3, 4, seed=1)
    means = [sum(float(row @ centre) for centre in centres) / 3 for row in virtual]
    chosen, gamma = refine(virtual, centres, wanted=4)
    assert chosen.tolist() == sorted(sorted(range(9), key=lambda at: means[at])[:4])
    assert gamma == pytest.approx(sorted(means)[3])
    chosen, gamma = refine(virtual, centres, wanted=4, gamma=0.1)
    assert chosen.tolist() == [at for at in range(9) if means[at] <= 0.1] and gamma == 0.1
    assert len(refine(virtual, centres, wanted=50).chosen) == 9
    assert len(refine(virtual[:0], centres, wanted=5).chosen) == 0


def test_virtual_images_in_a_known_cluster_take_its_label_and_others_a_new_one() -> None:
    corners = torch.eye(5)
    labels = torch.tensor([1, 1, 1, 0, 0, 2, 2])
    real = corners[[3, 3, 3, 0, 0, 1, 1]]
    virtual = corners[[3, 2, 4, 2, 0]]
    given, total = assign_labels(real, labels, virtual, clusters=5, seed=0)
    assert total == 5 and given[[0, 4]].tolist() == [1, 0]
    assert given[1] == given[3] and {int(given[1]), int(given[2])} == {3, 4}
    assert assign_labels(real, labels, virtual[:0], 5, 0)[1] == 3
    # Fewer distinct pictures than clusters: the empty ones leave no gap.
    assert assign_labels(real, labels, virtual[:1], 9, 0)[1] == 3


@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_the_leader_loss_is_its_formula(temperature: float) -> None:
    features, leaders, labels = units(5, 6), units(4, 6, seed=1), torch.tensor([0, 3, 1, 1, 2])
    slow = 0.0
    for feature, own in zip(features, labels.tolist(), strict=True):
        others = sum(math.exp(float(feature @ leaders[m]) / temperature) for m in range(4) if m != own)
        slow -= math.log(math.exp(float(feature @ leaders[own]) / temperature) / others) / 5
    assert leader_loss(features, labels, leaders, temperature).item() == pytest.approx(slow)
    features.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda f: leader_loss(f, labels, leaders, temperature), (features,))


def test_one_leader_alone_teaches_nothing() -> None:
    features = units(3, 4).requires_grad_(True)
    loss = leader_loss(features, torch.zeros(3, dtype=torch.long), units(1, 4), 0.07)
    loss.backward()
    assert loss.item() == 0.0 and features.grad is not None and not features.grad.any()


def test_leaders_are_the_means_of_the_last_epoch() -> None:
    leaders, seen = Leaders(units(3, 4, seed=2)), units(5, 4)
    before, labels = leaders.current, torch.tensor([0, 1, 0, 0, 1])
    leaders.add(seen[:2], labels[:2])
    leaders.add(seen[2:], labels[2:])
    torch.testing.assert_close(leaders.current, before)
    leaders.turn()
    for own in (0, 1):
        torch.testing.assert_close(leaders.current[own], F.normalize(seen[labels == own].mean(dim=0), dim=0))
    torch.testing.assert_close(leaders.current[2], before[2])
    leaders.turn()
    assert not torch.equal(leaders.current[0], before[0])


def test_a_tap_is_gone_after_use() -> None:
    layer = nn.Linear(2, 3)
    with Tap(layer) as tap:
        out = layer(torch.ones(1, 2))
        torch.testing.assert_close(tap.unit(), F.normalize(out, dim=1))
    assert not layer._forward_hooks


@HOSTS
def test_a_fit_learns_from_mixed_images(recipe: DiffGreRecipe, digits: Labelled) -> None:
    trained, again = recipe.fit(StandIn(), digits, 1), recipe.fit(StandIn(), digits, 1)
    virtual = trained.report["virtual"]
    assert virtual["source"] == "mixed" and virtual["made"] == 2 * len(digits) and virtual["kept"] == len(digits)
    assert 0 < virtual["classes"] <= CLASSES
    assert {"loss", "leader", "class"} <= set(trained.report["losses"][0])
    assert trained.facts["leaders"].shape == (CLASSES, 16) and trained.names == digits.names
    for name, fact in trained.facts.items():
        torch.testing.assert_close(fact, again.facts[name], rtol=0, atol=0)
    # A stored fit is read into the network that the recipe builds for the known classes.
    recipe.network(StandIn(), CLASSES).load_state_dict(trained.network.state_dict())
    hidden = digits.outputs.take(torch.arange(len(digits)))
    for inference in ("hash", "leaders"):
        stream = DiffGreMethod(recipe, inference).stream(trained)
        answers = stream.observe(hidden)
        assert stream.known == CLASSES and answers.ids.max() < stream.size


def test_virtual_classes_of_phe_are_forgotten_after_training(digits: Labelled) -> None:
    trained = PHE.fit(StandIn(), digits, 0)
    assert isinstance(trained.network, PheNetwork) and len(trained.network.prototypes) == CLASSES
    assert len(trained.facts["centres"]) == len(trained.facts["last_centres"]) == CLASSES


def test_the_loss_is_the_hosts_and_two_more(digits: Labelled) -> None:
    recipe = replace(SMILE, leader_weight=0.5, class_weight=2.0)
    enriched = recipe.enrich(StandIn(), digits, torch.arange(len(digits)), seed=0)
    network = recipe.host.network(StandIn(), enriched.images.classes)
    network.eval()
    classifier_weights = units(enriched.images.classes, 16).float()
    index = torch.arange(0, 2 * len(digits), 7)
    views = enriched.images.views.pair(index, torch.Generator().manual_seed(0)).clone()
    labels = enriched.images.labels[index]
    with Tap(network.head) as tap:
        loss = recipe.loss(network, tap, Leaders(enriched.leaders), Classifier("cosine", classifier_weights))
        parts = loss(views, labels)
    assert isinstance(recipe.host, SmileRecipe)
    alone = recipe.host.loss(network)(views, labels)["loss"]
    features, own = F.normalize(network.head(views.flatten(0, 1)), dim=1), labels.repeat(2)
    encoding = leader_loss(features, own, enriched.leaders, 0.07)
    cross = F.cross_entropy(features @ classifier_weights.T / 0.07, own)
    torch.testing.assert_close(parts["leader"], encoding)
    torch.testing.assert_close(parts["class"], cross, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(parts["loss"], alone + 0.5 * encoding + 2.0 * cross, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("views", [0, 2])
def test_generated_images_of_a_folder_come_before_mixing(
    digits: Labelled, cache: TrunkCache, tmp_path: Path, views: int
) -> None:
    folder = tiny.write_folder(tmp_path, list(tiny.part(0, 10, ("7", "8"))))
    enlarged = replace(digits, virtual=cache.outputs(images_of(folder).items, views))
    trained = SMILE.fit(StandIn(), enlarged, 0)
    assert trained.report["virtual"]["source"] == "generated" and trained.report["virtual"]["kept"] == 20


def test_one_known_class_has_nothing_to_mix(digits: Labelled) -> None:
    index = (digits.labels == 0).nonzero().flatten()
    items = [some_digits()[0][at] for at in index.tolist()]
    with cache_for(StandIn(), CONFIG) as own:
        alone = Labelled.from_items(items, StandIn(), CONFIG.offline, own)
        trained = SMILE.fit(StandIn(), alone, 0)
    assert trained.report["virtual"]["made"] == 0 and float(trained.facts["threshold"]) == 0.75


def test_rows_of_the_table_share_a_fit_and_its_length_is_the_hosts() -> None:
    for host in ("smile", "phe"):
        assert get_method(f"diffgre-{host}").recipe == get_method(f"diffgre-{host}-leaders").recipe
    recipe = get_method("diffgre-phe").recipe
    assert recipe.trains and not recipe.with_epochs(0).trains
    assert recipe.key != get_method("diffgre-smile").recipe.key
