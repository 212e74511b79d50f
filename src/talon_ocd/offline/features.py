"""From trunk outputs to unit features and class prototypes (layer: offline; section 3.1.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.errors import DataError
from talon_ocd.offline.trunk_cache import TrunkOutputs

SHORTEST_MEAN = 1e-6


def encode(
    head: nn.Module,
    outputs: TrunkOutputs,
    index: Tensor | None = None,
    view: int = 0,
    batch_size: int = 256,
) -> Tensor:
    """Return unit features ``(N, D)`` of the images ``index`` (``None``: all); view 0 is the test view."""
    index = torch.arange(len(outputs)) if index is None else index
    if len(index) == 0:
        raise DataError("no image to encode (0 given); give at least one that can be decoded.")
    features: Tensor | None = None
    with torch.no_grad():
        for start in range(0, len(index), batch_size):
            raw = head(outputs.take(index[start : start + batch_size], view))
            if features is None:
                features = torch.empty(len(index), raw.shape[1], device=raw.device)
            features[start : start + len(raw)] = F.normalize(raw.float(), dim=1)
    assert features is not None
    return features


def class_means(features: Tensor, labels: Tensor, classes: int, fallback: Tensor | None = None) -> Tensor:
    """Return unit prototypes ``(C, D)``: the normalised mean of each class's unit features ``(N, D)``.

    A class without samples (or whose samples cancel out) takes its normalised row of ``fallback`` ``(C, D)``.

    >>> class_means(torch.eye(2)[[0, 0, 1]], torch.tensor([0, 0, 1]), 2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        found = f"{int(labels.min())} to {int(labels.max())}"
        raise DataError(f"labels go from {found} but there are {classes} classes; use 0 to {classes - 1}.")
    labels = labels.to(features.device)
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    count = torch.bincount(labels, minlength=classes)
    means = sums / count.clamp(min=1)[:, None]
    absent = means.norm(dim=1) < SHORTEST_MEAN
    if absent.any():
        if fallback is None:
            first = int(absent.nonzero()[0, 0])
            raise DataError(
                f"{int(absent.sum())} of {classes} classes have no usable image, first class {first}; "
                "add images or remove the class."
            )
        means = torch.where(absent[:, None], fallback.to(means), means)
    return F.normalize(means, dim=1)
