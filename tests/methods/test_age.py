"""AGE against scipy's Gaussians, scikit-learn's projection and a slow loop over the stream."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn.covariance import ledoit_wolf
from sklearn.decomposition import PCA
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.errors import DataError
from talon_ocd.methods.age import (
    AgeMethod,
    AgeRecipe,
    AgeStream,
    class_centres,
    gate_thresholds,
    held_out,
    principal_axes,
)
from talon_ocd.methods.age_gaussians import Gaussians, pooled_covariance, soft_covariance
from talon_ocd.methods.base import Trained
from tests.methods.learning import BACKBONE, clean, labelled_digits

Floats = npt.NDArray[np.float64]
seeds = st.integers(0, 2**31 - 1)
FLOOR = 1e-5


def spread(seed: int, size: int = 3) -> Floats:
    rows = np.random.default_rng(seed).normal(size=(size + 2, size))
    covariance: Floats = rows.T @ rows / size + 0.1 * np.eye(size)
    return covariance


@given(seeds)
@settings(max_examples=25)
def test_log_densities_are_those_of_scipy_also_after_a_change(seed: int) -> None:
    random = np.random.default_rng(seed)
    gaussians, expected = Gaussians(3), []
    for number in range(20):
        mean, covariance = random.normal(size=3), spread(seed + number)
        gaussians.append(mean, covariance)
        expected.append(multivariate_normal(mean, covariance))
    changed = random.normal(size=3), spread(seed + 99)
    gaussians.replace(4, *changed)
    expected[4] = multivariate_normal(*changed)
    point = random.normal(size=3)
    assert len(gaussians) == 20
    assert gaussians.log_densities(point) == pytest.approx([normal.logpdf(point) for normal in expected])


def test_log_densities_stay_exact_at_the_smallest_covariance() -> None:
    random = np.random.default_rng(0)
    point = random.normal(size=42)
    point /= np.linalg.norm(point)
    near = point + 1e-3 * random.normal(size=42)
    gaussians = Gaussians(42)
    gaussians.append(point, FLOOR * np.eye(42))
    exact = multivariate_normal(point, FLOOR * np.eye(42)).logpdf(near)
    assert gaussians.log_densities(near)[0] == pytest.approx(exact, abs=1e-6)


def test_soft_covariances_follow_the_formula() -> None:
    members, shared = np.random.default_rng(0).normal(size=(8, 3)), spread(1)
    expected = (1 - 0.2) * ledoit_wolf(members)[0] + 0.2 * shared + FLOOR * np.eye(3)
    assert soft_covariance(members, shared, FLOOR) == pytest.approx(expected)
    assert soft_covariance(members[:1], shared, FLOOR) == pytest.approx(shared + FLOOR * np.eye(3))
    same = soft_covariance(np.ones((5, 3)), shared, FLOOR)
    assert same == pytest.approx(2 / 7 * shared + FLOOR * np.eye(3))


def test_the_shared_covariance_is_that_around_the_classes() -> None:
    random = np.random.default_rng(0)
    labels = torch.arange(4).repeat_interleave(2000)
    noise = random.normal(size=(8000, 2)) * [0.5, 2.0]
    points = torch.from_numpy(noise) + 10.0 * labels[:, None]
    residuals = points - class_centres(points, labels, 4)[labels]
    assert pooled_covariance(residuals.numpy()) == pytest.approx(np.diag([0.25, 4.0]), abs=0.15)


def test_axes_are_principal_components() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 6)) * [3, 2, 1, 0.5, 0.2, 0.1])
    centred = rows - rows.mean(dim=0)
    axes = principal_axes(centred, 3)
    theirs = torch.from_numpy(PCA(3).fit(rows.numpy()).components_.T)
    assert torch.allclose((axes * theirs).sum(dim=0).abs(), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(axes.T @ axes, torch.eye(3, dtype=torch.float64), atol=1e-10)
    assert principal_axes(centred[:3], 42).shape == (6, 2) and principal_axes(centred, 42).shape == (6, 6)


def test_gate_thresholds_equal_a_loop() -> None:
    random = np.random.default_rng(0)
    confidences, labels = torch.from_numpy(random.random(30)), torch.arange(30) % 3
    low = []
    for label in range(3):
        own = confidences[labels == label].numpy()
        low.append(own.mean() - 0.8 * own.std())
    expected = [0.5 * value + 0.5 * np.mean(low) for value in low]
    assert gate_thresholds(confidences, labels, 3, 0.8).tolist() == pytest.approx(expected)


@given(st.lists(st.integers(0, 4), min_size=12, max_size=60))
def test_a_fifth_of_each_class_is_held_out_and_no_class_is_emptied(drawn: list[int]) -> None:
    labels = torch.tensor([*drawn, *range(5), 0, 1])
    held = held_out(labels, 0.2)
    for label in range(5):
        count, out = int((labels == label).sum()), int(held[labels.numpy() == label].sum())
        assert out == min(max(round(0.2 * count), 1), count - 1)


def test_too_few_images_are_refused_kindly() -> None:
    with pytest.raises(DataError, match="needs 2 or more"):
        held_out(torch.arange(5), 0.2)


def stream_of(known: int = 2, window: int = 4, least: float = 0.0, size: int = 3) -> AgeStream:
    """A stream whose hidden is features, then logits; the projection changes nothing."""
    facts = {
        "gate": torch.full((known,), 0.9, dtype=torch.float64),
        "centre": torch.zeros(size, dtype=torch.float64),
        "axes": torch.eye(size, dtype=torch.float64),
        "shared": 0.02 * torch.eye(size, dtype=torch.float64),
    }
    names = tuple(str(number) for number in range(known))
    return AgeStream(Trained(BACKBONE, nn.Identity(), facts, names), least, window, FLOOR)


def drawn_stream(seed: int, images: int, known: int = 2, size: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(images, size, generator=generator, dtype=torch.float64)
    return torch.cat([features, 4 * torch.randn(images, known, generator=generator, dtype=torch.float64)], dim=1)


def slow_answers(hidden: Tensor, known: int, window: int, least: float) -> list[int]:
    """The rule of section 3.15 with scipy's densities, all of them anew for every image."""
    clusters: list[list[Floats]] = []
    ids = []
    shared = 0.02 * np.eye(3)
    for row in hidden:
        confidence, label = row[-known:].softmax(dim=0).max(dim=0)
        point = F.normalize(row[:-known], dim=0).numpy()
        if confidence >= 0.9:
            ids.append(int(label))
            continue
        densities = []
        for members in clusters:
            rows = np.array(members[-window:])
            densities.append(multivariate_normal(rows.mean(axis=0), soft_covariance(rows, shared, FLOOR)).logpdf(point))
        if densities and max(densities) >= least:
            number = int(np.argmax(densities))
            clusters[number].append(point)
        else:
            number = len(clusters)
            clusters.append([point])
        ids.append(known + number)
    return ids


@given(seeds, st.floats(-3.0, 3.0))
@settings(max_examples=15)
def test_answers_equal_the_slow_loop(seed: int, least: float) -> None:
    hidden = drawn_stream(seed, 60)
    stream = stream_of(least=least)
    ids = np.concatenate([stream.observe(part).ids for part in hidden.split(13)]).tolist()
    assert ids == slow_answers(hidden, 2, 4, least)


def test_a_saved_stream_goes_on() -> None:
    hidden = drawn_stream(1, 120)
    stream, other = stream_of(), stream_of()
    assert stream.state_dict()["members"].shape == (0, 3)
    stream.observe(hidden[:60])
    other.load_state_dict(stream.state_dict())
    assert other.size == stream.size > 2
    assert np.array_equal(stream.observe(hidden[60:]).ids, other.observe(hidden[60:]).ids)


def test_what_passes_the_gate_is_known_and_moves_nothing() -> None:
    stream = stream_of()
    answers = stream.observe(torch.tensor([[1.0, 0, 0, 9, 0], [0, 1, 0, 0, 9], [1, 0, 0, 0, 0]]).double())
    assert answers.ids.tolist() == [0, 1, 2] and answers.founded.tolist() == [False, False, True]
    assert answers.similarities[2] == pytest.approx(0.5 - 0.9) and stream.size == 3


def test_training_leaves_the_held_out_images_alone_and_depends_on_the_seed_only() -> None:
    with labelled_digits() as labelled:
        recipe = AgeRecipe(epochs=12, batch_size=32, lr=0.05)
        trained, again = (recipe.fit(BACKBONE, labelled, seed=4) for _ in range(2))
        losses = [epoch["loss"] for epoch in trained.report["losses"]]
        assert losses[-1] < 0.9 * losses[0]
        assert all(torch.equal(trained.facts[name], again.facts[name]) for name in trained.facts)
        assert trained.facts["log_densities"].shape == (held_out(labelled.labels, 0.2).sum(),)
        stream = AgeMethod(recipe).stream(trained)
        ids = stream.observe(clean(labelled)).ids
        named = ids < 4
        assert (ids[named] == labelled.labels.numpy()[named]).mean() > 0.7


def test_a_thousand_clusters_are_decided_like_any_others() -> None:
    hidden = drawn_stream(0, 1000, known=2, size=42)
    hidden[:, -2:] = 0.0  # nothing passes the gate
    stream = stream_of(size=42, window=20, least=-1e9)
    stream.load_state_dict({"members": F.normalize(hidden[:, :42], dim=1), "sizes": torch.ones(1000).long()})
    answers = stream.observe(hidden[:200])
    assert not answers.founded.any() and stream.size == 1002
