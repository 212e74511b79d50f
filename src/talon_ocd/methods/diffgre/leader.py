"""Leader encoding (layer: methods; section 3.10, step 3): labels for virtual images, leaders, and their losses."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F


def assign_labels(real: Tensor, labels: Tensor, virtual: Tensor, clusters: int, seed: int) -> tuple[Tensor, int]:
    """Return labels of virtual images with unit features ``(V, D)``, and the number M of classes, known and virtual.

    Real features ``(N, D)`` and virtual ones are clustered together. A Hungarian matching gives every known class
    (``labels`` ``(N,)``) the cluster that holds most of it: virtual images of such a cluster get its label. All other
    clusters that hold virtual images are virtual classes, with labels from C on.
    """
    known = int(labels.max()) + 1
    if not len(virtual):
        return labels[:0], known
    everything = torch.cat([real, virtual]).numpy()
    groups = _cluster(everything, min(max(clusters, known), len(everything)), seed)
    table = np.zeros((groups.max() + 1, known), np.int64)
    np.add.at(table, (groups[: len(real)], labels.numpy()), 1)
    names = np.full(len(table), -1, np.int64)
    rows, columns = linear_sum_assignment(table, maximize=True)
    names[rows] = columns
    unmatched = [group for group in np.unique(groups[len(real) :]) if names[group] < 0]
    names[unmatched] = known + np.arange(len(unmatched))
    return torch.from_numpy(names[groups[len(real) :]]), known + len(unmatched)


def _cluster(features: npt.NDArray[np.float32], clusters: int, seed: int) -> npt.NDArray[np.intp]:
    """Return the cluster of every row, counted without gaps."""
    from sklearn.cluster import KMeans  # here: only this method needs it, and every command would wait for it
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters leave some empty
        found = KMeans(clusters, n_init=1, random_state=seed).fit_predict(features)
    _, groups = np.unique(found, return_inverse=True)
    return groups


def leader_loss(features: Tensor, labels: Tensor, leaders: Tensor, temperature: float) -> Tensor:
    """Return L_sle of unit features ``(B, D)`` with labels ``(B,)`` and leaders ``(M, D)``.

    ``-log( exp(f·l_y / τ) / Σ_{m≠y} exp(f·l_m / τ) )``, the mean over the batch. The own leader is not in the
    denominator, so the loss falls below 0. One leader alone has nothing to be told apart from: 0.
    """
    logits = features @ leaders.T / temperature
    own = logits.gather(1, labels[:, None])
    if logits.shape[1] == 1:
        return (own * 0.0).sum()
    others = logits.scatter(1, labels[:, None], -torch.inf).logsumexp(dim=1)
    return (others - own[:, 0]).mean()


class Leaders:
    """The mean feature of each class over the last epoch; they stand still within one.

    Attributes:
        current: ``(M, D)``, unit length.
    """

    def __init__(self, first: Tensor) -> None:
        self.current = first
        self._sums = torch.zeros_like(first)

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Count features ``(B, D)`` with labels ``(B,)`` towards the next leaders."""
        self._sums.index_add_(0, labels, features.detach())

    def turn(self) -> None:
        """Start an epoch: leaders become the means of the last one; classes that were not seen keep theirs."""
        seen = self._sums.norm(dim=1, keepdim=True) > 0
        self.current = torch.where(seen, F.normalize(self._sums, dim=1), self.current)
        self._sums = torch.zeros_like(self._sums)


class Tap:
    """Keeps what a module returned last, so that a host's loss need not hand its features over."""

    def __init__(self, module: nn.Module) -> None:
        self._output: Tensor | None = None
        self._handle = module.register_forward_hook(self._keep)

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *error: object) -> None:
        self._handle.remove()
        self._output = None

    def _keep(self, module: nn.Module, inputs: object, output: Tensor) -> None:
        self._output = output

    def unit(self) -> Tensor:
        """Return the last output ``(B, D)`` with unit length."""
        assert self._output is not None
        return F.normalize(self._output.float(), dim=1)
