"""Checkpoint of a training run (layer: offline): one safetensors file, replaced as a whole every epoch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from talon_ocd.config import OfflineConfig
from talon_ocd.offline.distributed import Processes
from talon_ocd.offline.losses import Classifier
from talon_ocd.progress import Progress

FORMAT = 1
METADATA_KEY = "talon_training"
WHERE_ROWS_LIE = ("cache_bytes", "cache_disk_bytes")
"""Settings that change no result."""


@dataclasses.dataclass
class TrainingState:
    """Everything that changes while training: parameters, optimiser moments, epochs done and their losses.

    There is no generator among it: every epoch draws from its own ones, made from the seed and its number.
    """

    parameters: dict[str, nn.Parameter]
    optimizer: torch.optim.AdamW
    epoch: int = 0
    losses: list[dict[str, float]] = dataclasses.field(default_factory=list)

    def tensors(self) -> dict[str, Tensor]:
        """Return parameters and moments under unique names."""
        named = {f"parameter/{name}": parameter.detach() for name, parameter in self.parameters.items()}
        for name, parameter in self.parameters.items():
            for moment, value in self.optimizer.state[parameter].items():
                named[f"{moment}/{name}"] = value
        return {name: value.contiguous() for name, value in named.items()}

    def restore(self, tensors: Mapping[str, Tensor], epoch: int, losses: list[dict[str, float]]) -> None:
        """Take over what ``tensors`` returned."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(tensors[f"parameter/{name}"])
        states = {}
        for number, name in enumerate(self.parameters):
            found = [key for key in tensors if key.endswith(f"/{name}") and not key.startswith("parameter/")]
            states[number] = {key.removesuffix(f"/{name}"): tensors[key] for key in found if key.count("/") == 1}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": states})
        self.epoch, self.losses = epoch, losses


def fingerprint(
    config: OfflineConfig,
    labels: Tensor,
    seed: int,
    head: nn.Module,
    names: Sequence[str],
    classifier: Classifier,
) -> str:
    """Return a checksum of all that a run starts from: equal means that it would go the same way."""
    settings = {key: value for key, value in dataclasses.asdict(config).items() if key not in WHERE_ROWS_LIE}
    digest = hashlib.sha256(json.dumps([FORMAT, settings, seed, list(names)], sort_keys=True).encode())
    for value in (labels, *head.state_dict().values(), *classifier.state_dict().values()):
        array = value.detach().cpu().contiguous()
        digest.update(str(tuple(array.shape)).encode())
        digest.update(array.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save(state: TrainingState, path: Path, run: str, progress: Progress) -> None:
    """Replace the checkpoint at ``path``; a failure costs the checkpoint, not the training."""
    facts = {"run": run, "epoch": state.epoch, "losses": state.losses}
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(state.tensors(), partial, {METADATA_KEY: json.dumps(facts)})
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        progress.note(f"Training can't be resumed from {path}: writing failed ({error}). It goes on without.")


def resume(state: TrainingState, path: Path, run: str, progress: Progress) -> None:
    """Continue from the checkpoint at ``path`` if it belongs to this run; otherwise leave ``state`` alone."""
    if not path.exists():
        return
    try:
        with safe_open(path, "pt") as file:
            facts: dict[str, Any] = json.loads((file.metadata() or {})[METADATA_KEY])
            if facts["run"] != run:
                progress.note(f"{path} belongs to a run with other settings, labels or seed; training starts anew.")
                return
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        state.restore(tensors, facts["epoch"], facts["losses"])
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        progress.note(f"{path} can't be used ({error}); training starts anew.")
        return
    progress.note(f"Training continues after epoch {state.epoch}.")


def resume_together(state: TrainingState, path: Path, run: str, progress: Progress, processes: Processes) -> None:
    """Let the first process resume, and all others go on from its state: they need not see the file."""
    if processes.first:
        resume(state, path, run, progress)
    tensors, epoch, losses = processes.from_first((state.tensors(), state.epoch, state.losses))
    if epoch and not processes.first:
        state.restore(tensors, epoch, losses)
