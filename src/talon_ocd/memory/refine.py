"""Prototype update of the stream, TTA-P (layer: memory; section 3.1.4 of the specification).

``S_j`` are the features of the current batch that were answered with category j, n_j their number:

    c_j = clip(mean cosine of S_j to μ_j, 0, 1),  α_j = η_j c_j n_j / (n_j + κ_j),  μ_j <- norm((1 - α_j) μ_j + α_j z̄_j)

It is numpy's work: the arrays are small, and torch would share each out to threads that wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from talon_ocd.config import OnlineConfig
from talon_ocd.memory.prototypes import PrototypeMemory

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Groups:
    """The groups S_j as sums and numbers; sums are float64, so that neither order nor batch size shows in them."""

    def __init__(self, config: OnlineConfig) -> None:
        self._config = config
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._kept: dict[int, tuple[Floats, int]] = {}

    def add(self, ids: Tensor, features: Tensor, founders: Tensor) -> None:
        """Add unit features ``(B, D)`` answered with ``ids`` ``(B,)``; ``founders`` ``(B,)`` created theirs."""
        if not self._config.count_founder:
            ids, features = ids[~founders], features[~founders]
        if len(ids):
            self._pending.append((ids, features))

    def totals(self) -> tuple[Ints, Floats, Ints]:
        """Return the ids ``(L,)`` with a group, the sums of their features ``(L, D)`` and the sizes ``(L,)``.

        Groups of this batch that are too small to move anything are left out.
        """
        if not self._pending:
            return np.empty(0, np.int64), np.empty((0, 0)), np.empty(0, np.int64)
        ids = np.concatenate([ids.numpy() for ids, _ in self._pending])
        parts = [features.numpy() for _, features in self._pending]
        features = np.concatenate(parts) if len(parts) > 1 else parts[0]
        present, group, sizes = np.unique(ids, return_inverse=True, return_counts=True)
        lasting = self._config.group_lifetime == "stream"
        enough = sizes >= (1 if lasting else self._config.min_group)
        order = group.argsort(kind="stable")
        order = order[enough[group[order]]]
        present, sizes = present[enough], sizes[enough]
        starts = sizes.cumsum() - sizes
        sums: Floats = np.add.reduceat(features[order].astype(np.float64), starts, axis=0)
        if lasting:
            sums, sizes = self._collect(present, sums, sizes)
        return present, sums, sizes

    def reset(self) -> None:
        """Start the groups of the next batch."""
        self._pending.clear()

    def keep(self, slots: Tensor) -> None:
        """Keep only the groups of these slots ``(L,)``, which are numbered anew."""
        number = {slot: position for position, slot in enumerate(slots.tolist())}
        self._kept = {number[slot]: group for slot, group in self._kept.items() if slot in number}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the groups as tensors: what came since the last adaptation, and what is kept for the stream."""
        state: dict[str, Tensor] = {}
        if self._pending:
            state["pending_ids"] = torch.cat([ids for ids, _ in self._pending])
            state["pending_features"] = torch.cat([features for _, features in self._pending])
        if self._kept:
            state["kept_ids"] = torch.tensor(list(self._kept))
            state["kept_sums"] = torch.from_numpy(np.stack([total for total, _ in self._kept.values()]))
            state["kept_sizes"] = torch.tensor([number for _, number in self._kept.values()])
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take the groups of ``state_dict`` over."""
        self._pending, self._kept = [], {}
        if "pending_ids" in state:
            self._pending = [(state["pending_ids"], state["pending_features"])]
        if "kept_ids" in state:
            sums, sizes = state["kept_sums"].numpy(), state["kept_sizes"].tolist()
            ids = state["kept_ids"].tolist()
            self._kept = {category: (sums[row], sizes[row]) for row, category in enumerate(ids)}

    def _collect(self, ids: Ints, sums: Floats, sizes: Ints) -> tuple[Floats, Ints]:
        for category, total, number in zip(ids.tolist(), sums, sizes.tolist(), strict=True):
            before, count = self._kept.get(category, (np.zeros_like(total), 0))
            self._kept[category] = (before + total, count + number)
        kept = [self._kept[category] for category in ids.tolist()]
        return np.stack([total for total, _ in kept]), np.array([number for _, number in kept])


def refine(memory: PrototypeMemory, groups: Groups, config: OnlineConfig) -> None:
    """Move the prototypes of all groups that are large enough; cost grows with the batch, not with the memory."""
    ids, sums, sizes = groups.totals()
    enough = sizes >= config.min_group
    ids, sums, sizes = ids[enough], sums[enough], sizes[enough]
    if len(ids):
        before = memory.rows(torch.from_numpy(ids)).numpy().astype(np.float64)
        after = moved(before, sums, sizes, ids < memory.known, config)
        memory.replace(torch.from_numpy(ids), torch.from_numpy(after.astype(np.float32)))


def moved(prototypes: Floats, sums: Floats, sizes: Ints, known: npt.NDArray[np.bool_], config: OnlineConfig) -> Floats:
    """Return where prototypes ``(L, D)`` go, given the sums ``(L, D)`` and sizes ``(L,)`` of their groups."""
    means = sums / sizes[:, None]
    confidence = np.einsum("ld,ld->l", means, prototypes)
    if config.clamp_confidence:
        confidence = confidence.clip(0.0, 1.0)
    eta = np.where(known, config.eta_known, config.eta_new)
    kappa = np.where(known, config.kappa_known, config.kappa_new)
    alpha = (eta * confidence * sizes / (sizes + kappa))[:, None]
    if config.group_mean == "normalised":
        means = _unit(means)
    return _unit((1.0 - alpha) * prototypes + alpha * means)


def nudge(memory: PrototypeMemory, slot: int, feature: Tensor, sign: float, config: OnlineConfig) -> None:
    """Let a unit feature ``(D,)`` count once more (``sign`` = 1) or once less (-1) in the prototype of a slot.

    The prototype is taken for the mean of what was answered with it, and that of a known class for the mean of κ more
    images, which were labelled. One that would be left with nothing stays as it is.
    """
    weight = int(memory.counts[slot]) + (config.kappa_known if slot < memory.known else 0.0)
    if weight + sign <= 0.0:
        return
    raw = weight * memory.rows(torch.tensor(slot)).numpy().astype(np.float64) + sign * feature.numpy().astype(
        np.float64
    )
    if float(np.sqrt(raw @ raw)) > 1e-6:
        memory.replace(torch.tensor([slot]), torch.from_numpy(_unit(raw[None]).astype(np.float32)))


def _unit(rows: Floats) -> Floats:
    lengths = np.sqrt(np.einsum("ld,ld->l", rows, rows))
    scaled: Floats = rows / lengths.clip(min=1e-12)[:, None]
    return scaled
