"""Losses against reference values, slow twins, a second library, numerical gradients and symmetries."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.losses import ArcFaceLoss, SupConLoss
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.config import OfflineConfig
from talon_ocd.errors import ConfigError, DataError
from talon_ocd.offline.losses import Classifier, margin_logits, offline_loss, random_weights, supcon
from tests.twins import losses as twin

VIEW1 = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
VIEW2 = torch.tensor([[0.8, 0.6], [0.6, 0.8]])
QUAD = torch.cat([VIEW1, VIEW2])
QUAD_LABELS = torch.tensor([0, 1, 0, 1])

seeds = st.integers(0, 2**31 - 1)


def draw(seed: int, rows: int = 8, size: int = 5, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = F.normalize(torch.randn(rows, size, generator=generator, dtype=torch.float64), dim=1)
    return features, torch.randint(classes, (rows,), generator=generator)


def rotation(seed: int, size: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    orthogonal: Tensor = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]
    return orthogonal


@pytest.mark.parametrize(("temperature", "expected"), [(0.07, 1.2218560), (0.08, 1.2660554)])
def test_supcon_reference_values(temperature: float, expected: float) -> None:
    exact = (QUAD.double() * 10).round() / 10
    assert supcon(exact, QUAD_LABELS, temperature).item() == pytest.approx(expected, abs=5e-8)


@pytest.mark.parametrize(
    ("cosine", "phi", "logit"),
    [(0.5, 0.317981, 9.53942), (0.9, 0.795462, 23.86386), (-0.99, -1.029734, -30.89202)],
)
def test_margin_reference_values(cosine: float, phi: float, logit: float) -> None:
    value = torch.tensor([[cosine, 0.25]], dtype=torch.float64)
    true = torch.tensor([0])
    assert margin_logits(value, true, 1.0, 0.2)[0, 0].item() == pytest.approx(phi, abs=5e-7)
    assert margin_logits(value, true, 30.0, 0.2)[0, 0].item() == pytest.approx(logit, abs=2e-5)
    assert margin_logits(value, true, 30.0, 0.2)[0, 1].item() == 30.0 * 0.25


@given(seeds, st.floats(0.05, 1.0))
@settings(max_examples=25, deadline=None)
def test_supcon_equals_its_slow_twin(seed: int, temperature: float) -> None:
    features, labels = draw(seed)
    expected = twin.supcon(features.tolist(), labels.tolist(), temperature)
    assert supcon(features, labels, temperature).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(seeds, st.floats(0.0, 1.4), st.floats(1.0, 60.0))
@settings(max_examples=25, deadline=None)
def test_margin_logits_equal_their_slow_twin(seed: int, margin: float, scale: float) -> None:
    features, labels = draw(seed)
    weights, _ = draw(seed + 1, rows=3)
    cosine = features @ weights.T
    expected = twin.margin_logits(cosine.tolist(), labels.tolist(), scale, margin)
    torch.testing.assert_close(margin_logits(cosine, labels, scale, margin), torch.tensor(expected).double())


def test_margin_cross_entropy_equals_its_slow_twin() -> None:
    features, labels = draw(3)
    classifier = Classifier("margin", draw(4, rows=3)[0] * 7)
    cosine = features @ F.normalize(classifier.weight.detach(), dim=1).T
    expected = twin.cross_entropy(twin.margin_logits(cosine.tolist(), labels.tolist(), 30.0, 0.2), labels.tolist())
    assert classifier.loss(features, labels, OfflineConfig()).item() == pytest.approx(expected, rel=1e-9)


def test_supcon_equals_the_metric_learning_library() -> None:
    for seed in range(5):
        features, labels = draw(seed)
        both, twice = torch.cat([features, rotation(seed)[:1] * 0.1 + features]), torch.cat([labels, labels])
        both = F.normalize(both, dim=1)
        expected = SupConLoss(temperature=0.1)(both, twice) * (0.1 / 0.07)
        torch.testing.assert_close(supcon(both, twice, 0.1), expected.double())


def test_margin_loss_equals_the_metric_learning_library() -> None:
    features, labels = draw(5, rows=12)
    weight = draw(6, rows=3)[0]
    other = ArcFaceLoss(num_classes=3, embedding_size=5, margin=math.degrees(0.2), scale=30.0)
    with torch.no_grad():
        other.W.copy_(weight.T)
    ours = Classifier("margin", weight).loss(features, labels, OfflineConfig(margin=0.2, scale=30.0))
    assert ours.item() == pytest.approx(other(features.float(), labels).item(), rel=1e-5)


def test_gradients_are_those_of_finite_differences() -> None:
    features, labels = draw(7, rows=6)
    features.requires_grad_()
    weight = draw(8, rows=3)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: supcon(x, labels, 0.5), (features,))

    def margin_loss(x: Tensor, w: Tensor) -> Tensor:
        return F.cross_entropy(margin_logits(F.normalize(x) @ F.normalize(w).T, labels, 4.0, 0.2), labels)

    assert torch.autograd.gradcheck(margin_loss, (features, weight))


@given(seeds, seeds)
@settings(max_examples=25, deadline=None)
def test_losses_ignore_order_and_rotation(seed: int, other: int) -> None:
    view1, labels = draw(seed)
    view2 = F.normalize(view1 + 0.3 * draw(other)[0], dim=1)
    weight = draw(other + 1, rows=3)[0]
    config = OfflineConfig()
    expected = offline_loss(view1, view2, labels, Classifier("margin", weight), config)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(other))
    turn = rotation(other)
    shuffled = offline_loss(view1[order], view2[order], labels[order], Classifier("margin", weight), config)
    turned = offline_loss(view1 @ turn, view2 @ turn, labels, Classifier("margin", weight @ turn), config)
    for name, value in expected.items():
        torch.testing.assert_close(shuffled[name], value)
        torch.testing.assert_close(turned[name], value)


@given(st.floats(-1.0, 1.0), st.floats(-1.0, 1.0))
@settings(max_examples=50, deadline=None)
def test_margin_makes_the_true_logit_smaller_and_keeps_it_rising(a: float, b: float) -> None:
    low, high = sorted((a, b))
    cosine = torch.tensor([[low], [high]], dtype=torch.float64)
    logits = margin_logits(cosine, torch.tensor([0, 0]), 30.0, 0.2)
    assert (logits <= 30.0 * cosine + 1e-9).all()
    # The safeguard's straight line meets the curve with a small step, and 1e-6 under the root bends the end.
    assert logits[0] <= logits[1] + 0.02 * 30.0


def test_extreme_cosines_have_finite_gradients() -> None:
    cosine = torch.tensor([[1.0, -1.0], [-1.0, 1.0], [1.0 + 1e-6, 0.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(margin_logits(cosine, torch.tensor([0, 0, 0]), 30.0, 0.2).sum(), cosine)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("labels", [[0], [0, 1, 2], [0, 0, 1]])
def test_anchors_without_positives_add_zero(labels: list[int]) -> None:
    features = torch.eye(3)[: len(labels)].clone().requires_grad_()
    loss = supcon(features, torch.tensor(labels), 0.07)
    (gradient,) = torch.autograd.grad(loss, features)
    assert gradient.isfinite().all()
    assert loss.item() == pytest.approx(twin.supcon(features.tolist(), labels, 0.07), abs=1e-6)


def test_half_precision_is_upcast_and_double_stays() -> None:
    features, labels = draw(9)
    for dtype, expected in (
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64,) * 2,
    ):
        assert supcon(features.to(dtype), labels, 0.08).dtype == expected
        assert margin_logits(features.to(dtype), labels, 30.0, 0.2).dtype == expected


def test_large_logits_do_not_overflow() -> None:
    assert supcon(QUAD, QUAD_LABELS, 0.001).isfinite()


def test_sum_is_the_mean_times_the_count() -> None:
    mean, total = (
        offline_loss(
            VIEW1,
            VIEW2,
            torch.tensor([0, 1]),
            Classifier("margin", VIEW1),
            OfflineConfig(reduction=reduction),
        )
        for reduction in ("mean", "sum")
    )
    torch.testing.assert_close(total["supcon"], 4 * mean["supcon"])
    torch.testing.assert_close(total["classifier"], 2 * mean["classifier"])


def test_views_weights_and_kinds_change_what_they_should() -> None:
    labels = torch.tensor([0, 1])

    def parts(kind: str = "margin", **changes: object) -> dict[str, float]:
        config = OfflineConfig(classifier=kind, **changes)  # type: ignore[arg-type]
        classifier = Classifier(config.classifier, VIEW1)
        return {name: value.item() for name, value in offline_loss(VIEW1, VIEW2, labels, classifier, config).items()}

    plain = parts()
    assert plain["loss"] == pytest.approx(plain["supcon"] + plain["classifier"])
    assert parts(classifier_views="both")["classifier"] > plain["classifier"]  # view 2 is the harder one
    assert parts(classifier_views="both")["supcon"] == plain["supcon"]
    assert parts(classifier_weight=0.5)["loss"] == pytest.approx(plain["supcon"] + 0.5 * plain["classifier"])
    assert parts(supcon_weight=0.0)["loss"] == plain["classifier"]
    assert parts("cosine")["classifier"] == pytest.approx(parts(margin=0.0)["classifier"], abs=1e-6)
    assert parts("cosine", scale=5.0)["classifier"] < parts(scale=5.0)["classifier"]
    assert parts("linear")["classifier"] == pytest.approx(math.log(1 + math.exp(-1)))


def test_only_the_linear_classifier_has_a_bias() -> None:
    assert {name for name, _ in Classifier("linear", VIEW1).named_parameters()} == {"weight", "bias"}
    assert {name for name, _ in Classifier("margin", VIEW1).named_parameters()} == {"weight"}


def test_random_weights_come_from_the_generator() -> None:
    a, b = (random_weights(3, 16, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(a, b)
    assert a.abs().max() <= 0.25


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(DataError, match=r"\(4, 2\) and \(3,\)"):
        supcon(QUAD, QUAD_LABELS[:3], 0.07)
    with pytest.raises(DataError, match=r"give a matrix"):
        Classifier("margin", torch.zeros(3))
    with pytest.raises(ConfigError, match="0 classes"):
        random_weights(0, 4, torch.Generator())
