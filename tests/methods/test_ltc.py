"""LTC against slow loops, reference values of the specification and numerical gradients."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.methods.base import Trained
from talon_ocd.methods.ltc import LtcLoss, LtcMethod, LtcNetwork, LtcRecipe, margin_loss, threshold_target
from talon_ocd.methods.ltc_generator import PIXEL_LENGTH, Mkee, ascend, density, entropy, median_distance, mix
from talon_ocd.offline import supcon
from tests.methods.learning import BACKBONE, clean, labelled_digits

seeds = st.integers(0, 2**31 - 1)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit_rows(seed: int, rows: int, size: int = 5) -> Tensor:
    return F.normalize(drawn(seed, rows, size), dim=1)


def loss_of(recipe: LtcRecipe, classes: int = 4) -> LtcLoss:
    torch.manual_seed(0)
    return LtcLoss(LtcNetwork(BACKBONE, classes, recipe.scale), recipe, np.random.default_rng(0))


def hidden_of(seed: int, images: int = 8) -> Tensor:
    return drawn(seed, 2, images, *BACKBONE.hidden_shape).float()


LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


def test_threshold_reference_values() -> None:
    known, unknown = torch.full((5,), 0.90, dtype=torch.float64), torch.full((5,), 0.60, dtype=torch.float64)
    target = threshold_target(known, unknown, 0.05)
    assert target.item() == pytest.approx(0.75, abs=1e-12)
    assert torch.tensor(0.70, dtype=torch.float64).lerp(target, 0.01).item() == pytest.approx(0.7005, abs=1e-12)


def test_the_target_looks_at_the_low_end_of_known_and_the_high_end_of_unknown_scores() -> None:
    known, unknown = torch.linspace(0.5, 1.0, 11), torch.linspace(0.0, 0.5, 11)
    assert threshold_target(known, unknown, 0.05).item() == pytest.approx(((0.6 - 0.05) + (0.4 + 0.05)) / 2)
    assert threshold_target(torch.full((2,), 9.0), torch.full((2,), 9.0), 0.05).item() == 1.0


@given(seeds)
@settings(max_examples=20)
def test_the_margin_loss_equals_a_loop_and_its_gradient_is_right(seed: int) -> None:
    known, unknown = drawn(seed, 6), drawn(seed + 1, 4)
    threshold = torch.tensor(0.3, dtype=torch.float64)
    slow = sum(max(0.35 - float(s), 0.0) for s in known) / 6 + sum(max(float(s) - 0.25, 0.0) for s in unknown) / 4
    assert margin_loss(known, unknown, threshold, 0.05).item() == pytest.approx(slow)
    torch.autograd.gradcheck(
        lambda a, b: margin_loss(a, b, threshold, 0.05), (known.requires_grad_(), unknown.requires_grad_())
    )


@given(seeds, st.floats(0.2, 2.0))
@settings(max_examples=20)
def test_the_density_equals_a_loop(seed: int, width: float) -> None:
    features, references = unit_rows(seed, 4), unit_rows(seed + 1, 6)
    kernels = [math.exp(-float((a - b).square().sum()) / (2 * width**2)) for a in features for b in references]
    found = density(features, references, torch.tensor(width, dtype=torch.float64))
    assert found.item() == pytest.approx(sum(kernels) / 24)


def test_median_distance_is_that_of_distinct_pairs() -> None:
    rows = unit_rows(3, 6)
    distances = [float((rows[i] - rows[j]).norm()) for i in range(6) for j in range(i)]
    assert median_distance(rows).item() == pytest.approx(sorted(distances)[7])  # the middle of 15
    assert median_distance(rows[:1]) == 1.0 and median_distance(rows[:1].repeat(3, 1)) == 1.0


def test_entropy_is_that_of_the_softmax() -> None:
    logits = drawn(0, 3, 4)
    shares = logits.softmax(dim=1)
    slow = -sum(float(p) * math.log(float(p)) for row in shares for p in row) / 3
    assert entropy(logits).item() == pytest.approx(slow)


def test_mixing_keeps_the_shape_and_lies_between() -> None:
    images, order = drawn(0, 4, 3, 2, 2), torch.tensor([1, 2, 3, 0])
    mixed = mix(images, order, 0.3)
    assert mixed.shape == images.shape and torch.allclose(mixed, 0.3 * images + 0.7 * images[order])


@given(seeds)
@settings(max_examples=20)
def test_the_ascent_raises_the_objective_by_a_step_of_the_promised_length(seed: int) -> None:
    images, weights, references = drawn(seed, 5, 3, 2), drawn(seed + 1, 6, 4), unit_rows(seed + 2, 7, 4)

    def objective(rows: Tensor) -> Tensor:
        features = F.normalize(rows.flatten(1) @ weights, dim=1)
        width = torch.tensor(1.0, dtype=torch.float64)
        return entropy(20 * features) - 0.1 * density(features, references, width)

    moved = ascend(images, objective, 1e-4)
    assert objective(moved) > objective(images)
    steps, lengths = (moved - images).flatten(1).norm(dim=1), images.flatten(1).norm(dim=1)
    assert torch.allclose(steps, 1e-4 * lengths) and not moved.requires_grad


def test_an_image_without_gradient_stays() -> None:
    images = drawn(0, 2, 3)
    assert torch.equal(ascend(images, lambda rows: (rows * 0).sum(), 0.5), images)


def test_pseudo_unknowns_are_near_the_mixture_and_leave_no_gradient_behind() -> None:
    loss = loss_of(LtcRecipe())
    network = loss.network.requires_grad_(True)
    real = hidden_of(1)[0]
    random = np.random.default_rng(3)
    order, share = torch.from_numpy(random.permutation(8)), random.beta(0.4, 0.4)

    def encode(images: Tensor) -> tuple[Tensor, Tensor]:
        features = network.unit(images)
        return features, network.logits(features)

    made = Mkee().generate(real, network.unit(real), encode, np.random.default_rng(3))
    distance = (made - mix(real, order, share)).flatten(1).norm(dim=1)
    expected = 0.05 / PIXEL_LENGTH * mix(real, order, share).flatten(1).norm(dim=1)
    assert torch.allclose(distance, expected, rtol=0.05)
    assert not made.requires_grad and all(parameter.grad is None for parameter in network.parameters())


def test_the_loss_is_the_weighted_sum_of_its_parts() -> None:
    recipe = LtcRecipe(generate_share=0.0)
    loss, hidden = loss_of(recipe), hidden_of(0)
    parts = loss(hidden, LABELS)
    network = loss.network
    first, second = (F.normalize(network(view), dim=1) for view in hidden)
    directions = F.normalize(network.weight, dim=1)
    cross = -torch.stack(
        [(20 * z @ directions.T).log_softmax(dim=0)[y] for z, y in zip(first, LABELS, strict=True)]
    ).mean()
    contrast = supcon(torch.cat([first, second]), LABELS.repeat(2), 0.07)
    margin = F.relu(0.75 - (first @ directions.T).amax(dim=1)).mean()  # no image seen yet: class vectors
    assert torch.allclose(parts["loss"], cross + 0.3 * contrast + 0.05 * margin)


def test_class_means_run_through_the_epoch_and_start_anew() -> None:
    loss, hidden = loss_of(LtcRecipe(generate_share=0.0)), hidden_of(0)
    directions = F.normalize(loss.network.weight.detach(), dim=1)
    assert torch.allclose(loss.means, directions)
    loss(hidden, LABELS)
    features = F.normalize(loss.network(hidden[0]).detach(), dim=1)
    expected = torch.stack([F.normalize(features[c == LABELS].mean(dim=0), dim=0) for c in range(3)])
    assert torch.allclose(loss.means[:3], expected, atol=1e-6) and torch.allclose(loss.means[3], directions[3])
    loss.start_epoch(1)
    assert torch.allclose(loss.means, directions)


def test_the_threshold_moves_only_with_pseudo_unknowns_and_not_in_the_first_epoch() -> None:
    loss = loss_of(LtcRecipe(generate_share=1.0))
    loss(hidden_of(0), LABELS)
    assert loss.network.threshold == torch.tensor(0.7)
    loss.start_epoch(1)
    parts = loss(hidden_of(0), LABELS)
    assert loss.network.threshold != torch.tensor(0.7) and abs(loss.network.threshold - 0.7) <= 0.01 * 1.7
    assert not loss.network.threshold.requires_grad
    parts["loss"].backward()
    still = loss_of(LtcRecipe(generate_share=0.0))
    still.start_epoch(1)
    still(hidden_of(0), LABELS)
    assert still.network.threshold == torch.tensor(0.7)


def test_the_rate_is_one_epoch_late() -> None:
    recipe = LtcRecipe(lr=1e-2)
    rates = [recipe.rate(epoch, 1e-2) for epoch in range(100)]
    assert rates[0] == rates[1] == 1e-4 and rates[2] == pytest.approx(1e-4 + (1e-2 - 1e-4) / 5)
    assert rates[6] == pytest.approx(1e-5 + (1e-2 - 1e-5) * (1 + math.cos(math.pi * 5 / 100)) / 2)


def test_training_lowers_the_loss_and_depends_on_the_seed_only() -> None:
    with labelled_digits() as labelled:
        recipe = LtcRecipe(epochs=10, batch_size=32)
        trained, again = (recipe.fit(BACKBONE, labelled, seed=4) for _ in range(2))
        losses = [epoch["loss"] for epoch in trained.report["losses"]]
        assert losses[-1] < 0.7 * losses[0]
        assert all(torch.equal(trained.facts[name], again.facts[name]) for name in trained.facts)
        stream = LtcMethod(recipe).stream(trained)
        right = stream.observe(clean(labelled)).ids == labelled.labels.numpy()
        assert stream.threshold == trained.facts["threshold"] and right.mean() > 0.5


@given(seeds, st.floats(0.0, 0.995))
@settings(max_examples=20)
def test_new_prototypes_are_never_close_enough_to_be_merged(seed: int, threshold: float) -> None:
    known, features = unit_rows(seed, 2).float(), unit_rows(seed + 1, 60).float()
    facts = {"prototypes": known, "threshold": torch.tensor(threshold).double()}
    stream = LtcMethod().stream(Trained(BACKBONE, nn.Identity(), facts, ("a", "b")))
    stream.observe(features)
    new = stream.discovery.memory.prototypes[2:].double()
    cosines = (new @ new.T).fill_diagonal_(-1.0)
    assert (cosines < threshold + 1e-6).all()


def test_settings_of_the_generator_belong_to_the_recipe() -> None:
    assert replace(LtcRecipe(), generator=Mkee(step=0.1)).key != LtcRecipe().key
