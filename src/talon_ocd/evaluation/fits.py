"""Fits on disk (layer: evaluation): a grid that is stopped goes on without training again what was trained."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from talon_ocd.backbones import Backbone
from talon_ocd.errors import TalonError
from talon_ocd.methods import Recipe, Trained
from talon_ocd.methods.base import finish
from talon_ocd.progress import Progress
from talon_ocd.saved import write_files

METADATA_KEY = "talon_fit"


def save_fit(trained: Trained, path: Path) -> None:
    """Write what a recipe made."""
    network = {f"network.{name}": value.detach().cpu() for name, value in trained.network.state_dict().items()}
    facts = {f"facts.{name}": value.detach().cpu() for name, value in trained.facts.items()}
    tensors = {name: value.contiguous().clone() for name, value in {**network, **facts}.items()}
    about = json.dumps({"names": trained.names, "report": trained.report})
    write_files(path.parent, {path.name: save(tensors, {METADATA_KEY: about})})


def load_fit(path: Path, recipe: Recipe, backbone: Backbone, progress: Progress) -> Trained | None:
    """Read what ``save_fit`` wrote; what can't be used is trained again, with a note."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})[METADATA_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        network = recipe.network(backbone, len(about["names"]))
        prefix = "network."
        network.load_state_dict({key.removeprefix(prefix): tensors[key] for key in tensors if key.startswith(prefix)})
    except (OSError, SafetensorError, TalonError, KeyError, ValueError, RuntimeError) as error:
        progress.note(f"{path} can't be used ({error}); training starts anew.")
        return None
    finish(network)
    facts = {key.removeprefix("facts."): value for key, value in tensors.items() if key.startswith("facts.")}
    return Trained(backbone, network.to(backbone.device), facts, tuple(about["names"]), about["report"])
