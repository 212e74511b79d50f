"""The offline stage from labelled images to a memory: rehearse, train the head, build prototypes, estimate."""

from __future__ import annotations

import copy
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from talon_ocd.backbones import Backbone, Paired, PairedHead
from talon_ocd.config import TalonConfig
from talon_ocd.images import Skipped
from talon_ocd.memory import PrototypeMemory
from talon_ocd.offline.calibrate import calibrate
from talon_ocd.offline.distributed import ALONE
from talon_ocd.offline.estimate import can_estimate, estimate, rescaled, support
from talon_ocd.offline.features import class_means, encode
from talon_ocd.offline.geometry import angles
from talon_ocd.offline.labelled import Labelled
from talon_ocd.offline.trainer import train_head
from talon_ocd.offline.views import Subset
from talon_ocd.online import Evidence
from talon_ocd.progress import SILENT, Progress

Floats = npt.NDArray[np.float64]
FALLBACK_THRESHOLD = 0.75
"""The released code's constant: used when one known class leaves nothing to rehearse with."""
NOTHING_TO_REHEARSE = f"threshold: one known class leaves nothing to rehearse with; {FALLBACK_THRESHOLD} is used."
FULLY_TRUSTED = 50
"""Known classes from which on the trained part has its full length. Below it falls as the number of pairs does that
training tells apart: few classes teach a head little about any other."""
TEXTURE_IMAGES = 256
"""Images, evenly spaced, that show which local features vary most."""


@dataclass(frozen=True)
class Fitted:
    """What the offline stage leaves behind besides the trained head."""

    memory: PrototypeMemory
    names: tuple[str, ...]
    threshold: float
    evidence: Evidence | None
    report: dict[str, Any]
    skipped: tuple[Skipped, ...]


class Fitting:
    """One run of the offline stage on labelled images; trains the backbone's head in place."""

    def __init__(
        self, backbone: Backbone, labelled: Labelled, config: TalonConfig, progress: Progress = SILENT
    ) -> None:
        self.backbone, self.config, self.progress = backbone, config, progress
        self.outputs, self.views = labelled.outputs, labelled.views
        self.labels, self.names = labelled.labels, labelled.names
        self.share, self.skipped = labelled.share, labelled.skipped
        self.processes = ALONE if labelled.share is None else labelled.share.processes
        head, weight = backbone.head, config.offline.trained_weight
        if isinstance(head, PairedHead):
            head.weight.fill_(min((len(self.names) / FULLY_TRUSTED) ** 2, 1.0) if isinstance(weight, str) else weight)
            if config.offline.epochs:
                head.add_second()  # an earlier fit may have left it out
        self.trained: nn.Module = head.trained if isinstance(head, PairedHead) else head
        """The head that training moves, or the part of it that may."""
        single = backbone.base if isinstance(backbone, Paired) else backbone
        self.parameters = single.head_parameter_names(config.offline.trainable)

    def run(self, checkpoint: Path | None = None) -> Fitted:
        """Rehearse, train, and build the prototypes from the clean views."""
        started = time.perf_counter()
        before = self._encode(self.trained)
        initial = class_means(before, self.labels, len(self.names))
        report: dict[str, Any] = {"images": len(self.labels), "classes": len(self.names)}
        report["class_sizes"] = dict(zip(self.names, torch.bincount(self.labels).tolist(), strict=True))
        report["angles_before"] = self._angles(before, initial)
        by_evidence, threshold, epochs, residuals = self._rehearse(report)
        if not epochs:
            self.trained = _untrained(self.backbone.head)
        training = train_head(
            self.trained, self.parameters, self.views, self.labels, initial,
            replace(self.config.offline, epochs=epochs), self.config.seed, self.progress, checkpoint,
            share=self.share,
        )  # fmt: skip
        trained = time.perf_counter()
        self._learn_parts(self.backbone.head, torch.arange(len(self.labels)))
        after = self._encode(self.backbone.head)
        prototypes = class_means(after, self.labels, len(self.names))
        report["prototype_seconds"] = time.perf_counter() - trained
        if self.trained is self.backbone.head:
            report["angles_after"] = self._angles(after, prototypes)
        else:  # of the part that was trained, as before: parts side by side have other angles
            part = self._encode(self.trained)
            report["angles_after"] = self._angles(part, class_means(part, self.labels, len(self.names)))
        report["training"] = training.to_dict()
        evidence = self._evidence(after, threshold, residuals, report) if by_evidence else None
        report["seconds"] = time.perf_counter() - started
        memory = PrototypeMemory(prototypes)
        join_at = 0.0 if evidence is not None else threshold  # log-odds or a cosine
        return Fitted(memory, self.names, join_at, evidence, report, self.skipped)

    def _encode(self, head: nn.Module, index: Tensor | None = None) -> Tensor:
        """Return unit features ``(N, D)`` of images ``index`` ``(N,)`` (``None``: all), whoever holds them."""
        if self.share is None:
            return encode(head, self.outputs, index).cpu()
        return self.share.encode(head, self.outputs, torch.arange(len(self.labels)) if index is None else index).cpu()

    def _angles(self, features: Tensor, prototypes: Tensor) -> dict[str, Any]:
        """Plain data for JSON, which has no NaN: there is no angle between prototypes when there is only one."""
        found = asdict(angles(features, self.labels, prototypes))
        return {name: None if value != value else value for name, value in found.items()}

    def _rehearse(self, report: dict[str, Any]) -> tuple[bool, float, int, Floats]:
        """Return whether evidence decides, threshold or offset, how long to train, and the spread of unseen images.

        Training is as long as configured, or left out if rehearsals say that it hurts.
        """
        nothing = np.empty((0, 0))
        wanted, epochs = self.config.online.threshold, self.config.offline.epochs
        if not isinstance(wanted, str):
            return False, float(wanted), epochs, nothing
        offset = self.config.evidence.offset
        if self.config.online.by_evidence and not isinstance(offset, str) and can_estimate(self.labels):
            return True, offset, epochs, nothing
        if len(self.names) < 2:
            self.progress.note(NOTHING_TO_REHEARSE)
            return False, FALLBACK_THRESHOLD, epochs, nothing
        started = time.perf_counter()
        trainings = sorted({0, epochs}) if self.config.calibration.try_untrained else [epochs]
        result = calibrate(
            self.labels,
            {length: partial(self._encode_fold, length) for length in trainings},
            self.config,
            self.config.seed,
            self.progress,
            self.processes,
        )
        report["calibration"] = {**result.to_dict(), "seconds": time.perf_counter() - started}
        for warning in result.warnings(self.config.online.by_evidence):
            self.progress.note(warning)
        return result.rule == "evidence", result.threshold, result.epochs, result.residuals

    def _encode_fold(self, epochs: int, train: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> Tensor:
        """Encode images with a head that was trained on others: ``train`` only."""
        index = torch.from_numpy(train)
        head: nn.Module = copy.deepcopy(self.backbone.head)
        trained = (head.trained if isinstance(head, PairedHead) else head) if epochs else _untrained(head)
        if epochs:
            _, labels = self.labels[index].unique(return_inverse=True)
            initial = class_means(self._encode(trained, index), labels, int(labels.max()) + 1)
            train_head(
                trained, self.parameters, Subset(self.views, index), labels, initial,
                replace(self.config.offline, epochs=epochs), self.config.seed, self.progress,
                task_name="Training for the rehearsal", share=self.share and self.share.of(index),
            )  # fmt: skip
        self._learn_parts(head, index)
        return self._encode(head, torch.from_numpy(wanted))

    def _learn_parts(self, head: nn.Module, index: Tensor) -> None:
        """Learn from labelled images ``index`` ``(N,)`` what the parts of a paired head need besides training."""
        if isinstance(head, PairedHead):
            if head.textures:
                some = index[torch.arange(0, len(index), -(-len(index) // TEXTURE_IMAGES))]
                outputs = self.outputs
                hidden = outputs.take(some) if self.share is None else self.share.take(outputs, some)
                self.processes.learn_once(nn.ModuleList(head.textures), partial(head.learn_textures, hidden))
            head.centre(*(self._encode(part, index) for part in head.heads))

    def _evidence(self, features: Tensor, offset: float, residuals: Floats, report: dict[str, Any]) -> Evidence:
        """Estimate what the evidence rule needs of the final features, and say how sure it is."""
        settings = self.config.evidence
        evidence = estimate(features, self.labels, settings).with_offset(offset)
        evidence = rescaled(evidence, residuals, settings.heavy_tails)
        report["evidence"] = support(evidence, self.labels)
        for warning in report["evidence"]["warnings"]:
            self.progress.note(warning)
        return evidence


def _untrained(head: nn.Module) -> nn.Module:
    """Leave the second of two heads out, which nobody will train; returns the one that is left."""
    if not isinstance(head, PairedHead):
        return head
    head.drop_second()
    return head.trained
