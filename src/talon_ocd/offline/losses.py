"""Training losses (layer: offline): supervised contrast, angular margin, and their sum ``L_sup + λ L_cem``.

Pure functions of tensors, in float32 at least: half precision is upcast, float64 stays. ``V`` counts views.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.config import OfflineConfig
from talon_ocd.errors import ConfigError, DataError

Reduction = Literal["mean", "sum"]
ClassifierKind = Literal["margin", "cosine", "linear"]
BASE_TEMPERATURE = 0.07
SMALLEST_SINE_SQUARED = 1e-6


def supcon(
    features: Tensor,
    labels: Tensor,
    temperature: float,
    base_temperature: float = BASE_TEMPERATURE,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the supervised contrastive loss of unit features ``(V*B, D)`` with labels ``(V*B,)``.

    Every row is an anchor, its positives are the other rows of its label. An anchor without positives adds 0
    and still counts in the mean.

    >>> views = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [0.6, 0.8]])
    >>> round(supcon(views, torch.tensor([0, 1, 0, 1]), temperature=0.07).item(), 5)
    1.22186
    """
    _check_rows(features, labels)
    features = _at_least_float32(features)
    logits = features @ features.T / temperature
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    positive = (labels[:, None] == labels[None, :]) & ~itself
    # The smallest finite number, not -inf: a lone anchor would otherwise turn the gradient into NaN.
    # logsumexp subtracts the row maximum before it exponentiates.
    others = logits.masked_fill(itself, torch.finfo(logits.dtype).min).logsumexp(dim=1)
    count = positive.sum(dim=1)
    attraction = (logits * positive).sum(dim=1) / count.clamp(min=1)
    anchors = torch.where(count > 0, others - attraction, torch.zeros_like(others))
    total = anchors.mean() if reduction == "mean" else anchors.sum()
    return total * (temperature / base_temperature)


def margin_logits(cosine: Tensor, labels: Tensor, scale: float, margin: float) -> Tensor:
    """Return ``s cos(θ + m)`` for the true class and ``s cos θ`` for the others; ``cosine`` is ``(B, C)``.

    Where ``θ_y + m`` would pass π, the usual safeguard ``cos θ_y - m sin m`` keeps the logit falling.

    >>> margin_logits(torch.tensor([[0.5, 0.9]]), torch.tensor([0]), scale=30.0, margin=0.2)
    tensor([[ 9.5394, 27.0000]])
    """
    cosine = _at_least_float32(cosine).clamp(-1.0, 1.0)
    true = cosine.gather(1, labels[:, None])
    sine = (1.0 - true.square()).clamp(min=SMALLEST_SINE_SQUARED).sqrt()
    shifted = true * math.cos(margin) - sine * math.sin(margin)
    safe = torch.where(true > math.cos(math.pi - margin), shifted, true - margin * math.sin(margin))
    return scale * cosine.scatter(1, labels[:, None], safe)


class Classifier(nn.Module):
    """The class weights W ``(C, D)`` that training needs and the stream does not (section 3.1.2).

    ``margin`` and ``cosine`` compare directions; ``linear`` is the paper's ``W z + b``, alone with a bias.
    """

    def __init__(self, kind: ClassifierKind, weight: Tensor) -> None:
        super().__init__()
        if weight.ndim != 2:
            raise DataError(f"classifier weights have shape {tuple(weight.shape)}; give a matrix (C, D).")
        self.kind = kind
        self.weight = nn.Parameter(weight.detach().clone())
        self.bias = nn.Parameter(weight.new_zeros(len(weight))) if kind == "linear" else None

    def logits(self, features: Tensor, labels: Tensor, scale: float, margin: float) -> Tensor:
        """Return the training logits ``(B, C)`` of unit features ``(B, D)``."""
        if self.kind == "linear":
            return F.linear(features, self.weight, self.bias)
        cosine = F.linear(features, F.normalize(self.weight, dim=1))
        if self.kind == "cosine":
            return scale * cosine
        return margin_logits(cosine, labels, scale, margin)

    def loss(self, features: Tensor, labels: Tensor, config: OfflineConfig) -> Tensor:
        """Return the cross-entropy of unit features ``(B, D)`` with labels ``(B,)``."""
        features = _at_least_float32(features)
        logits = self.logits(features, labels, config.scale, config.margin)
        return F.cross_entropy(logits, labels, reduction=config.reduction)


def random_weights(classes: int, size: int, generator: torch.Generator) -> Tensor:
    """Return ``(C, D)`` weights drawn as a linear layer draws them: uniform within ``1 / sqrt(D)``."""
    if classes < 1 or size < 1:
        raise ConfigError(f"a classifier of {classes} classes and {size} features can't be; both must be 1 or more.")
    bound = size**-0.5
    return torch.empty(classes, size).uniform_(-bound, bound, generator=generator)


def offline_loss(
    view1: Tensor, view2: Tensor, labels: Tensor, classifier: Classifier, config: OfflineConfig
) -> dict[str, Tensor]:
    """Return ``loss``, ``supcon`` and ``classifier`` of two views ``(B, D)`` (unit) of the same images.

    ``loss`` is the weighted sum; the parts are unweighted. A part whose weight is 0 is not computed.
    """
    both, twice = torch.cat([view1, view2]), torch.cat([labels, labels])
    nothing = torch.zeros((), device=view1.device)
    contrast, cross = nothing, nothing
    if config.supcon_weight > 0:
        contrast = supcon(both, twice, config.supcon_temperature, reduction=config.reduction)
    if config.classifier_weight > 0:
        first = config.classifier_views == "first"
        cross = classifier.loss(view1 if first else both, labels if first else twice, config)
    total = config.supcon_weight * contrast + config.classifier_weight * cross
    return {"loss": total, "supcon": contrast, "classifier": cross}


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _check_rows(features: Tensor, labels: Tensor) -> None:
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        shapes = f"{tuple(features.shape)} and {tuple(labels.shape)}"
        raise DataError(f"features and labels have shapes {shapes}; give (B, D) and (B,).")
