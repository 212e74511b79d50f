"""Prototype update of the stream, TTA-P (layer: memory; section 3.1.4 of the specification).

``S_j`` are the features of the current batch that were answered with category j, n_j their number:

    c_j = clip(mean cosine of S_j to μ_j, 0, 1),  α_j = η_j c_j n_j / (n_j + κ_j),  μ_j <- norm((1 - α_j) μ_j + α_j z̄_j)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.config import OnlineConfig
from talon_ocd.memory.prototypes import PrototypeMemory


class Groups:
    """The groups S_j as sums and numbers; sums are float64, so that neither order nor batch size shows in them."""

    def __init__(self, config: OnlineConfig) -> None:
        self._config = config
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._kept: dict[int, tuple[Tensor, int]] = {}

    def add(self, ids: Tensor, features: Tensor, founders: Tensor) -> None:
        """Add unit features ``(B, D)`` answered with ``ids`` ``(B,)``; ``founders`` ``(B,)`` created theirs."""
        if not self._config.count_founder:
            ids, features = ids[~founders], features[~founders]
        if len(ids):
            self._pending.append((ids, features))

    def totals(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the ids ``(L,)`` with a group, the sums of their features ``(L, D)`` and the sizes ``(L,)``."""
        if not self._pending:
            return torch.empty(0, dtype=torch.int64), torch.empty(0, 0), torch.empty(0)
        ids = torch.cat([ids for ids, _ in self._pending])
        features = torch.cat([features for _, features in self._pending]).double()
        present, group = ids.unique(return_inverse=True)
        sums = torch.zeros(len(present), features.shape[1], dtype=torch.float64).index_add_(0, group, features)
        sizes = torch.bincount(group, minlength=len(present))
        if self._config.group_lifetime == "stream":
            sums, sizes = self._collect(present, sums, sizes)
        return present, sums, sizes

    def reset(self) -> None:
        """Start the groups of the next batch."""
        self._pending.clear()

    def _collect(self, ids: Tensor, sums: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        for row, category in enumerate(ids.tolist()):
            total, number = self._kept.get(category, (torch.zeros_like(sums[row]), 0))
            self._kept[category] = (total + sums[row], number + int(sizes[row]))
        kept = [self._kept[category] for category in ids.tolist()]
        return torch.stack([total for total, _ in kept]), torch.tensor([number for _, number in kept])


def refine(memory: PrototypeMemory, groups: Groups, config: OnlineConfig) -> None:
    """Move the prototypes of all groups that are large enough; cost grows with the batch, not with the memory."""
    ids, sums, sizes = groups.totals()
    enough = sizes >= config.min_group
    ids, sums, sizes = ids[enough], sums[enough], sizes[enough]
    if len(ids):
        known = ids < memory.known
        memory.replace(ids, moved(memory.prototypes[ids], sums, sizes, known, config).float())


def moved(prototypes: Tensor, sums: Tensor, sizes: Tensor, known: Tensor, config: OnlineConfig) -> Tensor:
    """Return where prototypes ``(L, D)`` go, given the sums ``(L, D)`` and sizes ``(L,)`` of their groups (float64)."""
    prototypes, sizes = prototypes.double(), sizes.double()
    means = sums / sizes[:, None]
    confidence = (means * prototypes).sum(dim=1)
    if config.clamp_confidence:
        confidence = confidence.clamp(0.0, 1.0)
    eta = torch.where(known, config.eta_known, config.eta_new)
    kappa = torch.where(known, config.kappa_known, config.kappa_new)
    alpha = (eta * confidence * sizes / (sizes + kappa))[:, None]
    if config.group_mean == "normalised":
        means = F.normalize(means, dim=1)
    return F.normalize((1.0 - alpha) * prototypes + alpha * means, dim=1)
