"""Features, prototypes and angles."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from talon_ocd.errors import DataError
from talon_ocd.offline.features import class_means, encode
from talon_ocd.offline.geometry import BINS, angles
from talon_ocd.offline.trunk_cache import TrunkCache
from tests.offline.standin import StandIn, some_digits


def on_circle(*degrees: float) -> Tensor:
    turns = torch.deg2rad(torch.tensor(degrees))
    return torch.stack([turns.cos(), turns.sin()], dim=1)


def test_encode_gives_unit_features_of_the_clean_view() -> None:
    backbone = StandIn()
    items, _ = some_digits(30)
    outputs = TrunkCache(backbone, memory_bytes=10**8, disk_bytes=0).outputs(items, 2)
    features = encode(backbone.head, outputs, batch_size=7)
    canvases = [backbone.preprocessing.canvas(item.load()) for item in items]
    raw = backbone(backbone.preprocessing.pixels(canvases))
    torch.testing.assert_close(features, torch.nn.functional.normalize(raw, dim=1))
    torch.testing.assert_close(encode(backbone.head, outputs, torch.tensor([4, 2])), features[[4, 2]])
    assert not torch.equal(encode(backbone.head, outputs, view=1), features)
    with pytest.raises(DataError, match="no image to encode"):
        encode(backbone.head, outputs, torch.tensor([], dtype=torch.int64))


def test_class_means_are_normalised_means() -> None:
    features = on_circle(10, 30, 90)
    means = class_means(features, torch.tensor([0, 0, 1]), 2)
    torch.testing.assert_close(means, on_circle(20, 90))


def test_a_class_without_samples_falls_back_or_is_refused() -> None:
    features, labels = on_circle(0, 90, 180), torch.tensor([0, 2, 2])
    fallback = 5 * on_circle(1, 45, 3)
    torch.testing.assert_close(class_means(features, labels, 3, fallback), on_circle(0, 45, 135))
    with pytest.raises(DataError, match="1 of 3 classes have no usable image, first class 1"):
        class_means(features, labels, 3)
    with pytest.raises(DataError, match="labels go from 0 to 2 but there are 2 classes"):
        class_means(features, labels, 2)
    opposite = class_means(on_circle(0, 180), torch.tensor([0, 0]), 1, on_circle(45))
    torch.testing.assert_close(opposite, on_circle(45))


def test_angles_on_a_circle() -> None:
    found = angles(on_circle(0, 20, 100), torch.tensor([0, 0, 1]), on_circle(10, 90, 180))
    assert found.own_mean == pytest.approx(10.0, abs=1e-4)
    assert found.own_std == pytest.approx(0.0, abs=1e-4)
    assert found.between_mean == pytest.approx((80 + 170 + 90) / 3, abs=1e-4)
    assert found.between_std == pytest.approx(torch.tensor([80.0, 170, 90]).std(correction=0).item(), abs=1e-4)
    assert (sum(found.own_histogram), sum(found.between_histogram)) == (3, 3)
    assert len(found.edges) == BINS + 1 == len(found.own_histogram) + 1
    assert found.edges[-1] == 180.0


def test_equal_and_opposite_vectors_have_finite_angles() -> None:
    found = angles(on_circle(0, 180), torch.tensor([0, 0]), 1.0000001 * on_circle(0))
    assert found.own_mean == pytest.approx(90.0, abs=1e-3)
    assert math.isnan(found.between_mean)
    assert sum(found.between_histogram) == 0


def test_wrong_labels_are_refused() -> None:
    with pytest.raises(DataError, match="1 prototypes"):
        angles(on_circle(0, 1), torch.tensor([0, 1]), on_circle(0))
    with pytest.raises(DataError, match=r"\(2, 2\) and \(1,\)"):
        angles(on_circle(0, 1), torch.tensor([0]), on_circle(0))
