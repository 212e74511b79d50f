"""Trains the head on pairs of views (layer: offline; section 3.1.1): AdamW, a learning rate for each epoch.

The same seed gives the same weights, bit by bit, whether or not the run was interrupted in between; on several
processes the same to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.config import OfflineConfig
from talon_ocd.errors import DataError, nearest
from talon_ocd.offline.distributed import Share
from talon_ocd.offline.loop import Loop, generator
from talon_ocd.offline.losses import Classifier, offline_loss, random_weights
from talon_ocd.offline.schedule import learning_rate
from talon_ocd.offline.training_state import TrainingState, fingerprint, resume, resume_together, save
from talon_ocd.offline.views import CachedViews, FreshViews, Views
from talon_ocd.progress import SILENT, Progress, Task

__all__ = ["CachedViews", "FreshViews", "TrainingReport", "Views", "train_head"]

BETAS = (0.9, 0.999)
PARTS = ("loss", "supcon", "classifier")


@dataclass(frozen=True)
class TrainingReport:
    """What a training did; ``losses`` has one entry an epoch, resumed ones included."""

    epochs: int
    resumed_from: int
    losses: list[dict[str, float]]
    seconds: float
    images_per_second: float
    classifier_weights: Tensor

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without the weights."""
        return {name: value for name, value in vars(self).items() if name != "classifier_weights"}


def train_head(
    head: nn.Module,
    parameter_names: Sequence[str],
    views: Views,
    labels: Tensor,
    initial_weights: Tensor | None,
    config: OfflineConfig,
    seed: int,
    progress: Progress = SILENT,
    checkpoint: Path | None = None,
    task_name: str = "Training",
    share: Share | None = None,
) -> TrainingReport:
    """Train ``head`` in place on images with labels ``(N,)`` and return how it went.

    Args:
        head: hidden -> raw features ``(B, D)``; a network in evaluation mode.
        parameter_names: which of its parameters move.
        views: gives pairs of views by image number, 0 to N - 1.
        labels: classes from 0 to C - 1.
        initial_weights: start of the classifier ``(C, D)``; drawn if ``None`` or if the config says so.
        config: settings of the training.
        seed: decides order, views and random weights.
        progress: told the losses.
        checkpoint: file that makes the run resumable; it is left behind for the caller to delete.
        task_name: what the progress calls it.
        share: which process holds which image, if there are several; the first one alone writes the checkpoint.
    """
    started = time.perf_counter()
    weights = _starting_weights(head, views, labels, initial_weights, config, seed)
    parameters = _named(head, parameter_names)
    device = next(iter(parameters.values())).device
    classifier = Classifier(config.classifier, weights).to(device)
    labels = labels.to(device)
    run = _Run(head, parameters, classifier, views, labels, config, seed)
    state, mark = run.state, ""
    if checkpoint and config.epochs:
        mark = fingerprint(config, labels, seed, head, parameter_names, classifier)
        if share is None:
            resume(state, checkpoint, mark, progress)
        else:
            resume_together(state, checkpoint, mark, progress, share.processes)
            checkpoint = checkpoint if share.processes.first else None
    done = state.epoch
    if done < config.epochs:
        with _requiring_grad(parameters), progress.task(task_name, config.epochs * len(labels)) as task:
            if share is not None:
                run.share_out(share)
            task.advance(done * len(labels))
            while state.epoch < config.epochs:
                run.epoch(task)
                if checkpoint:
                    save(state, checkpoint, mark, progress)
    seconds = time.perf_counter() - started
    speed = (config.epochs - done) * len(labels) / seconds
    return TrainingReport(config.epochs, done, state.losses, seconds, speed, classifier.weight.detach())


class _Objective(nn.Module):
    """From two views of a batch to its losses; ``share`` tells which images other processes encode."""

    def __init__(self, head: nn.Module, classifier: Classifier, config: OfflineConfig, share: Share | None) -> None:
        super().__init__()
        self._head, self._classifier, self._config, self._share = head, classifier, config, share

    def forward(self, pairs: Tensor, index: Tensor, labels: Tensor) -> list[Tensor]:
        """Return the losses of images ``index`` ``(B,)`` from hidden ``(2, b, ...)`` of those that are held here."""
        share = self._share
        features = self._encode(pairs) if share is None else self._gathered(pairs, index, share)
        view1, view2 = features[: len(index)], features[len(index) :]
        parts = offline_loss(view1, view2, labels, self._classifier, self._config)
        return [parts[name] for name in PARTS]

    def _encode(self, pairs: Tensor) -> Tensor:
        # One forward for both views: no layer mixes images, so this equals two.
        return F.normalize(self._head(pairs.flatten(0, 1)).float(), dim=1)

    def _gathered(self, pairs: Tensor, index: Tensor, share: Share) -> Tensor:
        """Return features of the whole batch; their gradient reaches the head through the own images."""
        held = pairs.shape[1]
        some = pairs if held else pairs.new_zeros(2, 1, *pairs.shape[2:])  # the head takes part in every step
        own = self._encode(some).unflatten(0, (2, -1)).transpose(0, 1)[:held]
        if own.requires_grad:
            # Each process has its images' part of the gradient, and DDP takes the mean: this makes it their sum.
            own.register_hook(lambda gradient: gradient * share.processes.size)
        return share.gather(own, index).transpose(0, 1).flatten(0, 1)


class _Run:
    """The loop itself."""

    def __init__(
        self,
        head: nn.Module,
        parameters: dict[str, nn.Parameter],
        classifier: Classifier,
        views: Views,
        labels: Tensor,
        config: OfflineConfig,
        seed: int,
    ) -> None:
        self._head, self._classifier, self._views = head, classifier, views
        self._labels, self._config = labels, config
        self._objective: nn.Module = _Objective(head, classifier, config, None)
        remedy = f"lower lr_encoder={config.lr_encoder:g} or lr_classifier={config.lr_classifier:g}"
        self._loop = Loop(len(labels), config.batch_size, seed, PARTS, remedy)
        groups = [{"params": list(parameters.values())}, {"params": list(classifier.parameters())}]
        fused = labels.device.type in ("cpu", "cuda")
        optimizer = torch.optim.AdamW(groups, betas=BETAS, weight_decay=config.weight_decay, fused=fused)
        named = {f"head.{name}": parameter for name, parameter in parameters.items()}
        named.update((f"classifier.{name}", parameter) for name, parameter in classifier.named_parameters())
        self.state = TrainingState(named, optimizer)

    def share_out(self, share: Share) -> None:
        """Train with other processes from now on; parameters that train must require gradients by now."""
        self._classifier.requires_grad_(self._config.classifier_weight > 0)  # else no step would use it
        objective = _Objective(self._head, self._classifier, self._config, share)
        self._objective = share.processes.data_parallel(objective, self._labels.device)

    def epoch(self, task: Task) -> None:
        """Go through all images once."""
        self._set_rates(self.state.epoch)
        self.state.losses.append(self._loop.epoch(self.state.epoch, self._step, task, self._labels.device))
        self.state.epoch += 1

    def _step(self, index: Tensor, draws: torch.Generator) -> list[Tensor]:
        labels = self._labels[index.to(self._labels.device)]
        parts: list[Tensor] = self._objective(self._views.pair(index, draws), index, labels)
        self.state.optimizer.zero_grad()
        parts[0].backward()
        self.state.optimizer.step()
        return parts

    def _set_rates(self, epoch: int) -> None:
        config = self._config
        bases = (config.lr_encoder, config.lr_classifier)
        for group, base in zip(self.state.optimizer.param_groups, bases, strict=True):
            group["lr"] = learning_rate(
                epoch, base, config.epochs, config.warmup_epochs, config.warmup_start, config.lr_floor
            )


def _starting_weights(
    head: nn.Module,
    views: Views,
    labels: Tensor,
    initial: Tensor | None,
    config: OfflineConfig,
    seed: int,
) -> Tensor:
    """Return the classifier's first weights ``(C, D)``, after a look at the labels."""
    if labels.ndim != 1 or len(labels) == 0:
        raise DataError(f"labels have shape {tuple(labels.shape)}; give one class an image (N,), N of 1 or more.")
    classes = int(labels.max()) + 1 if initial is None else len(initial)
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        found = f"{int(labels.min())} to {int(labels.max())}"
        raise DataError(f"labels go from {found} but there are {classes} classes; use 0 to {classes - 1}.")
    if initial is not None and config.classifier_init == "class-means":
        return initial.float()
    if initial is None:
        with torch.no_grad():
            hidden, _ = views.pair(torch.zeros(1, dtype=torch.int64), generator(seed, "probe", 0))
            size = head(hidden).shape[1]
    else:
        size = initial.shape[1]
    return random_weights(classes, size, generator(seed, "weights", 0))


def _named(head: nn.Module, names: Sequence[str]) -> dict[str, nn.Parameter]:
    known = dict(head.named_parameters())
    for name in names:
        if name not in known:
            raise DataError(f"the head has no parameter {name!r}.{nearest(name, known)}")
    if not names:
        raise DataError("no parameter of the head is to be trained (0 names given); name at least one.")
    return {name: known[name] for name in names}


@contextmanager
def _requiring_grad(parameters: dict[str, nn.Parameter]) -> Iterator[None]:
    before = {name: parameter.requires_grad for name, parameter in parameters.items()}
    try:
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.requires_grad_(before[name])
            parameter.grad = None
