from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.config import EvidenceConfig
from talon_ocd.memory import PrototypeMemory
from talon_ocd.memory.two_covariance import Floats
from talon_ocd.offline.estimate import (
    HEAVIEST,
    LIGHTEST,
    can_estimate,
    estimate,
    held_out_residuals,
    rescaled,
    support,
    tail_weight,
    unseen_residuals,
)
from talon_ocd.online import Evidence, EvidenceRule

PSI = np.array([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
EXACT = EvidenceConfig(dimensions=len(PSI), shrinkage=0.0, smoothing_classes=0.0)
CONFIG = EvidenceConfig()


def drawn(classes: int, images: int, tail: float = np.inf, seed: int = 0) -> tuple[Tensor, Tensor, Floats]:
    """Unit features and labels by the model, and the six directions ``(6, D)`` in which classes differ.

    The other 300 directions are weak, but so many that unit length changes nothing in the six.
    """
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    means = random.normal(size=(classes, len(PSI))) * np.sqrt(PSI)
    scales = np.sqrt(tail / random.chisquare(tail, len(labels))) if np.isfinite(tail) else np.ones(len(labels))
    strong = means[labels] + scales[:, None] * random.normal(size=(len(labels), len(PSI)))
    rows = np.concatenate([strong, 0.6 * random.normal(size=(len(labels), 300))], axis=1)
    rotation = np.linalg.qr(random.normal(size=(rows.shape[1], rows.shape[1])))[0]
    return _unit(torch.from_numpy(rows @ rotation)), torch.from_numpy(labels), rotation[: len(PSI)]


@dataclass(frozen=True)
class Clusters:
    """Labelled features, and others: of (thirty of) the same classes, and of ten classes that are not labelled."""

    features: Tensor
    labels: Tensor
    fresh: Tensor
    truth: Tensor


def clusters(sizes: list[int], dims: int, noise: float = 0.5, seed: int = 0) -> Clusters:
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(len(sizes) + 10, dims, generator=random)

    def members(classes: Tensor) -> Tensor:
        return _unit(centres[classes] + noise * torch.randn(len(classes), dims, generator=random))

    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    truth = torch.arange(max(len(sizes) - 30, 0), len(sizes) + 10).repeat_interleave(5)
    return Clusters(members(labels), labels, members(truth), truth)


def _unit(rows: Tensor) -> Tensor:
    return F.normalize(rows.float(), dim=1)


def odds(evidence: Evidence, features: Tensor) -> Floats:
    """Log-odds ``(N, C)`` of all images with all known classes."""
    coordinates, beliefs = evidence.model.coordinates(features), evidence.beliefs()
    return np.stack([beliefs.log_odds(coordinates, np.full(len(features), c)) for c in range(beliefs.size)], axis=1)


def assert_same_evidence(one: Evidence, two: Evidence, features: Tensor, others: Tensor, tolerance: float) -> None:
    """Equal but for signs of coordinates, which mean nothing."""
    np.testing.assert_allclose(one.model.psi, two.model.psi, rtol=tolerance)
    np.testing.assert_allclose(one.model.tail, two.model.tail, rtol=tolerance)
    np.testing.assert_allclose(odds(one, features), odds(two, others), rtol=tolerance, atol=100 * tolerance)


# Data drawn from the model --------------------------------------------------------------------------------------------


def test_psi_and_spread_are_found_again() -> None:
    features, labels, directions = drawn(400, 12)
    evidence = estimate(features, labels, EXACT)
    np.testing.assert_allclose(evidence.model.psi, PSI, rtol=0.25)
    mixing = directions @ evidence.model.transform  # from the true coordinates, but for one factor
    mixing /= np.sqrt(np.mean(np.sum(mixing**2, axis=0)))
    np.testing.assert_allclose(mixing.T @ mixing, np.eye(6), atol=0.15)
    coordinates = evidence.model.coordinates(features)
    means = evidence.sums / evidence.counts[:, None]
    residuals = coordinates - means[labels.numpy()]
    np.testing.assert_allclose(residuals.T @ residuals / (len(labels) - 400), np.eye(6), atol=0.1)


def test_smoothing_mixes_psi_with_its_mean_and_no_more() -> None:
    features, labels, _ = drawn(100, 10)
    plain = estimate(features, labels, EXACT).model
    half = estimate(features, labels, EvidenceConfig(dimensions=6, shrinkage=0.0, smoothing_classes=100.0)).model
    np.testing.assert_allclose(half.psi, 0.5 * plain.psi + 0.5 * plain.psi.mean(), rtol=1e-9)
    np.testing.assert_array_equal(half.transform, plain.transform)
    fewer, few_labels = features[labels < 25], labels[labels < 25]
    plain = estimate(fewer, few_labels, EXACT).model
    mostly = estimate(fewer, few_labels, EvidenceConfig(dimensions=6, shrinkage=0.0, smoothing_classes=100.0)).model
    np.testing.assert_allclose(mostly.psi, 0.2 * plain.psi + 0.8 * plain.psi.mean(), rtol=1e-9)


@pytest.mark.parametrize("tail", [5.0, 10.0, 25.0])
def test_heavy_tails_are_found_within_a_factor_of_two(tail: float) -> None:
    features, labels, _ = drawn(200, 15, tail)
    assert tail / 2 < estimate(features, labels, EXACT).model.tail < tail * 2


def test_gaussian_data_get_light_tails_and_gaussians_if_asked_for() -> None:
    features, labels, _ = drawn(200, 15)
    assert estimate(features, labels, EXACT).model.tail > 100
    assert estimate(features, labels, EvidenceConfig(dimensions=6, heavy_tails=False)).model.tail == np.inf


@pytest.mark.parametrize("size", [1, 3, 40])
@pytest.mark.parametrize("tail", [6.0, 20.0])
def test_tail_weight_of_squared_distances(size: int, tail: float) -> None:
    random = np.random.default_rng(1)
    distances = random.chisquare(size, 100_000) * tail / random.chisquare(tail, 100_000)
    assert tail / 1.5 < tail_weight(distances, size) < tail * 1.5
    assert tail_weight(random.chisquare(size, 100_000), size) > 100
    assert tail_weight(distances * 50.0, size) == pytest.approx(tail_weight(distances, size))  # scale says nothing


def test_tail_weight_is_bounded() -> None:
    assert tail_weight(np.array([3.0]), 4) == tail_weight(np.full(9, 2.0), 4) == LIGHTEST
    assert tail_weight(np.array([1e-30, 1e30, 1.0, 0.0]), 4) == HEAVIEST


# What must not matter -------------------------------------------------------------------------------------------------


def test_the_same_images_give_the_same_model_to_the_bit() -> None:
    world = clusters([6] * 12, 40)
    first, second = (estimate(world.features, world.labels, CONFIG).state_dict() for _ in range(2))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize(("dims", "tolerance"), [(10, 1e-4), (24, 0.1)])
def test_rotations_of_the_feature_space_do_not_matter(dims: int, tolerance: float) -> None:
    """Where 12 classes don't differ any more, beyond 11 directions, coordinates are arbitrary: they matter little."""
    world = clusters([8] * 12, dims)
    random = torch.Generator().manual_seed(1)
    rotation = torch.linalg.qr(torch.randn(dims, dims, generator=random, dtype=torch.float64))[0]
    turned, fresh = (_unit(rows.double() @ rotation) for rows in (world.features, world.fresh))
    plain = estimate(world.features, world.labels, CONFIG)
    assert_same_evidence(plain, estimate(turned, world.labels, CONFIG), world.fresh, fresh, tolerance)


def test_how_classes_take_turns_does_not_matter() -> None:
    """Folds follow the order inside a class, so only that one is kept."""
    world = clusters([8] * 12, 10)
    turns = torch.from_numpy(np.argsort(np.tile(np.arange(8), 12), kind="stable"))
    mixed = estimate(world.features[turns], world.labels[turns], CONFIG)
    plain = estimate(world.features, world.labels, CONFIG)
    assert_same_evidence(plain, mixed, world.fresh, world.fresh, 1e-6)


def test_the_order_inside_a_class_matters_little() -> None:
    world = clusters([12] * 20, 24)
    order = torch.randperm(len(world.labels), generator=torch.Generator().manual_seed(2))
    plain, mixed = (
        estimate(world.features, world.labels, CONFIG),
        estimate(world.features[order], world.labels[order], CONFIG),
    )
    np.testing.assert_allclose(plain.model.psi.sum(), mixed.model.psi.sum(), rtol=0.1)
    one, two = odds(plain, world.fresh), odds(mixed, world.fresh)
    assert np.corrcoef(one.ravel(), two.ravel())[0, 1] > 0.99
    assert np.mean((one.max(axis=1) > 0) == (two.max(axis=1) > 0)) > 0.97


def test_estimation_leaves_features_alone() -> None:
    world = clusters([6] * 5, 20)
    before = world.features.clone()
    estimate(world.features, world.labels, CONFIG)
    assert torch.equal(world.features, before)


# What must not break it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "dims"),
    [
        ([5] * 5, 16),
        ([5] * 5, 64),
        ([5] * 5, 1000),
        ([20] * 2, 32),
        ([5] * 1000, 64),
        ([1] * 10 + [8] * 10, 64),
        ([1] * 19 + [2], 64),
        ([2] * 3, 12),
        ([10] * 20, 1000),
        ([300] + [4] * 10, 32),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else f"{len(value)}x{value[0]}-{value[-1]}",
)
def test_few_and_many_images_classes_and_dimensions(sizes: list[int], dims: int) -> None:
    """Images of known classes that were not labelled find their class, those of other classes find none."""
    world = clusters(sizes, dims)
    evidence = estimate(world.features, world.labels, CONFIG)
    assert np.isfinite(evidence.model.psi).all() and np.isfinite(evidence.model.transform).all()
    found, known = odds(evidence, world.fresh), (world.truth < len(sizes)).numpy()
    assert np.mean(found[known].argmax(axis=1) == world.truth[known].numpy()) > 0.9
    assert np.mean(found[known].max(axis=1) > 0) > 0.8
    assert np.mean(found[~known].max(axis=1) < 0) > 0.85
    np.testing.assert_array_equal(evidence.counts, sizes)
    coordinates = evidence.model.coordinates(world.features)
    np.testing.assert_allclose(evidence.sums[1], coordinates[world.labels == 1].sum(axis=0), atol=1e-9)


def alike(world: Clusters) -> Tensor:
    return world.features[:1].repeat(len(world.labels), 1)


def twice(world: Clusters) -> Tensor:
    return world.features[torch.arange(len(world.labels)) // 2 * 2]


def once_a_class(world: Clusters) -> Tensor:
    return world.features[world.labels * 6]


def two_points(world: Clusters) -> Tensor:
    return world.features[torch.arange(len(world.labels)) % 2]


def flat(world: Clusters) -> Tensor:
    return _unit(world.features * (torch.arange(20) < 3))


@pytest.mark.parametrize("spoil", [alike, twice, once_a_class, two_points, flat])
def test_features_that_say_little_break_nothing(spoil: object) -> None:
    assert callable(spoil)
    world = clusters([6] * 8, 20)
    spoilt = spoil(world)
    evidence = estimate(spoilt, world.labels, CONFIG)
    rule = EvidenceRule(evidence, CONFIG)
    ids = rule.assign(torch.cat([spoilt, world.fresh]), PrototypeMemory(world.features[:0])).ids
    assert np.isfinite(evidence.model.transform).all() and len(ids) == len(spoilt) + len(world.fresh)
    assert np.isfinite(rule.beliefs.sums).all()


def test_classes_of_equal_images_are_told_apart() -> None:
    world = clusters([6] * 8, 20)
    same = once_a_class(world)
    found = odds(estimate(same, world.labels, CONFIG), same)
    assert (found.argmax(axis=1) == world.labels.numpy()).all() and (found.max(axis=1) > 0).all()


@pytest.mark.parametrize("dims", [2, 3])
def test_two_dimensions_are_enough(dims: int) -> None:
    angles = torch.arange(6).repeat_interleave(10) + 0.05 * torch.randn(60, generator=torch.Generator().manual_seed(0))
    features = F.pad(torch.stack([angles.cos(), angles.sin()], dim=1), (0, dims - 2))
    labels = torch.arange(6).repeat_interleave(10)
    found = odds(estimate(features, labels, CONFIG), features)
    assert np.mean(found.argmax(axis=1) == labels.numpy()) > 0.95


def test_without_any_difference_between_classes_nothing_is_claimed() -> None:
    features = _unit(torch.randn(200, 30, generator=torch.Generator().manual_seed(0)))
    evidence = estimate(features, torch.arange(200) % 10, CONFIG)
    assert evidence.model.psi.mean() < 0.2
    assert np.abs(odds(evidence, _unit(torch.randn(50, 30, generator=torch.Generator().manual_seed(1))))).max() < 5.0


def test_spread_comes_from_images_that_the_coordinates_were_not_chosen_on() -> None:
    """In 1,000 dimensions 40 images can be told apart whatever they are; other images of their classes can't."""
    world = clusters([4] * 10, 1000, noise=1.5)
    evidence = estimate(world.features, world.labels, CONFIG)
    unseen = world.truth < 10
    residuals = unseen_residuals(evidence, world.fresh[unseen], world.truth[unseen])
    assert 0.5 < np.mean(residuals**2) < 2.0
    means = (evidence.sums / evidence.counts[:, None])[world.labels.numpy()]
    seen = (evidence.model.coordinates(world.features) - means) * np.sqrt(4 / 3)
    assert not 0.5 < np.mean(seen**2) < 2.0


def test_held_out_residuals_vary_as_members_do_around_the_true_mean() -> None:
    features, labels, _ = drawn(150, 8)
    residuals = held_out_residuals(features.numpy().astype(np.float64), labels.numpy(), EXACT)
    assert residuals.shape == (1200, 6)
    np.testing.assert_allclose((residuals**2).mean(axis=0), 1.0, atol=0.25)


def test_new_classes_lie_around_the_known_ones_and_not_around_the_largest() -> None:
    world = clusters([300] + [3] * 10, 32)
    evidence = estimate(world.features, world.labels, CONFIG)
    origin = evidence.model.coordinates(world.features)[world.labels == 0].mean(axis=0)
    others = evidence.sums[1:] / evidence.counts[1:, None]
    assert np.linalg.norm(origin) > 0.5 * np.linalg.norm(others, axis=1).mean()


# Features that are too compact ----------------------------------------------------------------------------------------


def compact_world() -> tuple[Evidence, Tensor, Tensor]:
    """Labelled images lie three times as close to their means as other images of their classes."""
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(12, 30, generator=random)
    labels, others = torch.arange(12).repeat_interleave(10), torch.arange(12).repeat_interleave(8)
    trained = _unit(centres[labels] + 0.1 * torch.randn(120, 30, generator=random))
    unseen = _unit(centres[others] + 0.3 * torch.randn(96, 30, generator=random))
    return estimate(trained, labels, CONFIG), unseen, others


def test_spread_is_taken_from_unseen_images() -> None:
    evidence, unseen, labels = compact_world()
    before = unseen_residuals(evidence, unseen, labels)
    assert np.mean(before**2) > 4.0
    wider = rescaled(evidence, before, heavy_tails=True)
    np.testing.assert_allclose(np.mean(unseen_residuals(wider, unseen, labels) ** 2), 1.0, atol=0.25)
    assert (wider.model.psi <= evidence.model.psi).all() and wider.offset == evidence.offset
    own, own_before = (odds(e, unseen)[np.arange(96), labels.numpy()] for e in (wider, evidence))
    assert (own > 0).all() and np.median(own) > np.median(own_before)


def test_the_sums_of_labelled_images_follow_the_spread() -> None:
    evidence, unseen, labels = compact_world()
    wider = rescaled(evidence, unseen_residuals(evidence, unseen, labels), heavy_tails=True)
    ratio = wider.model.transform / evidence.model.transform[:, : wider.model.size]
    np.testing.assert_allclose(wider.sums, evidence.sums[:, : wider.model.size] * ratio[0], rtol=1e-9)
    np.testing.assert_array_equal(wider.counts, evidence.counts)


def test_spread_never_falls_and_few_images_change_nothing() -> None:
    evidence, unseen, labels = compact_world()
    tight = rescaled(evidence, np.full((100, evidence.model.size), 0.01), heavy_tails=False)
    np.testing.assert_allclose(tight.model.transform, evidence.model.transform)
    assert tight.model.tail == np.inf
    assert rescaled(evidence, unseen_residuals(evidence, unseen, labels)[:10], heavy_tails=True) is evidence


def test_coordinates_that_unseen_images_say_nothing_of_are_kept_as_the_last_one_that_they_do() -> None:
    evidence, unseen, labels = compact_world()
    few = unseen_residuals(evidence, unseen, labels)[:, :5]
    wider = rescaled(evidence, few, heavy_tails=True)
    ratio = (wider.model.transform / evidence.model.transform)[0]
    assert wider.model.size == evidence.model.size > 5
    np.testing.assert_allclose(ratio[:5], rescaled(evidence, np.hstack([few, few]), True).model.transform[0, :5]
                               / evidence.model.transform[0, :5], rtol=0.2)  # fmt: skip
    np.testing.assert_allclose(ratio[5:], ratio[4])


# What is said about it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "possible"),
    [([0, 0, 1], True), ([0, 1, 2], False), ([0, 0, 0], False), ([0], False), ([0, 1, 1, 1], True)],
)
def test_can_estimate(labels: list[int], possible: bool) -> None:
    given = torch.tensor(labels)
    assert can_estimate(given) == possible
    if possible:
        features = _unit(torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(0)))
        evidence = estimate(features, given, CONFIG)
        assert np.isfinite(evidence.model.transform).all() and np.isfinite(evidence.sums).all()


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([5] * 6, []),
        ([20] * 5, ["5 known classes"]),
        ([4] * 6, ["6 of 6 known classes have fewer than 5"]),
        ([2, 3], ["2 known classes", "2 of 2 known classes"]),
        ([1] * 3 + [50] * 3, ["3 of 6 known classes"]),
        ([1] * 2 + [50] * 4, []),
    ],
)
def test_support_warns_of_what_the_labelled_set_can_not_say(sizes: list[int], said: list[str]) -> None:
    world = clusters(sizes, 12)
    report = support(estimate(world.features, world.labels, CONFIG), world.labels)
    assert len(report["warnings"]) == len(said)
    assert all(part in warning for part, warning in zip(said, report["warnings"], strict=True))


def test_support_warns_of_classes_without_any_spread() -> None:
    world = clusters([6] * 6, 12)
    copies = world.features[::6].repeat_interleave(6, dim=0)
    report = support(estimate(copies, world.labels, CONFIG), world.labels)
    assert len(report["warnings"]) == 1 and "copies?" in report["warnings"][0]


def test_support_reports_what_was_estimated() -> None:
    world = clusters([6] * 9, 12)
    evidence = estimate(world.features, world.labels, CONFIG).with_offset(-3.0)
    report = support(evidence, world.labels)
    assert report["coordinates"] == evidence.model.size and report["offset"] == -3.0
    assert report["psi_mean"] == evidence.model.psi.mean() and report["psi_largest"] == evidence.model.psi.max()
    assert report["tail"] == evidence.model.tail and report["psi_uncertainty"] == 0.5
    gaussian = estimate(world.features, world.labels, EvidenceConfig(heavy_tails=False))
    assert support(gaussian, world.labels)["tail"] is None


def test_an_offset_that_is_given_is_taken() -> None:
    world = clusters([6] * 5, 12)
    assert estimate(world.features, world.labels, EvidenceConfig(offset=-4.0)).offset == -4.0
    assert estimate(world.features, world.labels, CONFIG).offset == 0.0


@pytest.mark.parametrize(("dimensions", "size"), [(3, 3), (256, 20)])
def test_no_more_dimensions_than_asked_for_or_there(dimensions: int, size: int) -> None:
    world = clusters([10] * 10, 20)
    assert estimate(world.features, world.labels, EvidenceConfig(dimensions=dimensions)).model.size == size
