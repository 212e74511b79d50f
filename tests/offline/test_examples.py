"""Labelled images that are kept with a model, to compare with them what joins known classes."""

import numpy as np
import torch

from talon_ocd.offline.estimate import estimate, examples, rescaled
from tests.offline.test_estimate import EXACT, drawn


def test_examples_are_the_coordinates_of_labelled_images_class_by_class() -> None:
    features, labels, _ = drawn(3, 8)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    evidence = estimate(features[order], labels[order], EXACT)
    assert evidence.examples is not None and evidence.shown is not None and evidence.shown.tolist() == [8, 8, 8]
    for number, own in enumerate(evidence.labelled):
        np.testing.assert_allclose(own.sum(axis=0), evidence.sums[number], atol=1e-3)
    wider = rescaled(evidence, np.full((40, evidence.model.size), 2.0), heavy_tails=False)
    assert wider.examples is not None
    np.testing.assert_allclose(
        wider.examples, wider.model.coordinates(features[order])[examples(labels[order].numpy())]
    )


def test_examples_of_many_images_are_evenly_spaced_and_bounded() -> None:
    chosen = examples(np.repeat([0, 1, 2], [500, 3, 250]))
    assert [int(((chosen >= low) & (chosen < high)).sum()) for low, high in ((0, 500), (500, 503), (503, 753))] == [
        100,
        3,
        100,
    ]
    assert chosen[:3].tolist() == [0, 5, 10] and (np.diff(chosen) > 0).all()
    assert len(examples(np.arange(20_000))) == 20_000  # one of each class at least
    assert len(examples(np.repeat(np.arange(1000), 50))) == 8000
