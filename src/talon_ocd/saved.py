"""A model on disk: a folder that stands alone (layer: below the facade).

``config.json`` (settings, class names, preprocessing, architecture, checksums; written last), ``encoder.safetensors``,
``memory.safetensors``, ``evidence.safetensors`` (if evidence decides), ``probe.safetensors`` (if streams are guarded)
and a ``README.md`` for people. No pickle, and no reference to another place.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from talon_ocd.backbones import Backbone, backbone_from_architecture
from talon_ocd.config import TalonConfig
from talon_ocd.errors import ModelError, StorageError, TalonError
from talon_ocd.images import Preprocessing
from talon_ocd.memory import PrototypeMemory
from talon_ocd.online import Evidence, Probe

FORMAT_VERSION = 1
CONFIG, CARD = "config.json", "README.md"
ENCODER, MEMORY, EVIDENCE = "encoder.safetensors", "memory.safetensors", "evidence.safetensors"
PROBE = "probe.safetensors"


@dataclass(frozen=True)
class SavedModel:
    """Everything that a model folder holds."""

    backbone: Backbone
    memory: PrototypeMemory
    names: tuple[str, ...]
    threshold: float
    config: TalonConfig
    report: dict[str, Any] = field(default_factory=dict)
    evidence: Evidence | None = None
    probe: Probe | None = None


BEFORE_IT_COULD_BE_SET: dict[str, Any] = {
    "prior_weight": 1.0, "learn_share": False, "share_prior": 50.0, "answer_weight": 1.0, "newest": 0,
    "regroup": 0, "least_share": 0.1, "share_window": 0, "weigh_regrouping": False, "branch_below": 0.0,
}  # fmt: skip
"""Settings of the evidence rule that came later, at what they were then: older models answer as they did."""


def write_model(model: SavedModel, folder: Path) -> None:
    """Write a model folder; an older model in it stays whole until the new one is complete."""
    encoder = {name: value.detach().cpu().contiguous().clone() for name, value in model.backbone.state_dict().items()}
    parts = {ENCODER: save(encoder), MEMORY: save(model.memory.state_dict())}
    if model.evidence is not None:
        parts[EVIDENCE] = save(model.evidence.state_dict())
    if model.probe is not None:
        parts[PROBE] = save(model.probe.state_dict())
    facts = {
        "format_version": FORMAT_VERSION,
        "backbone": {
            "name": model.backbone.name,
            "architecture": model.backbone.architecture(),
            "preprocessing": model.backbone.preprocessing.to_dict(),
        },
        "config": model.config.to_dict(),
        "names": model.names,
        "threshold": model.threshold,
        "report": model.report,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()},
    }
    texts = {CARD: card(model), CONFIG: json.dumps(facts, indent=2, ensure_ascii=False)}
    write_files(folder, {**parts, **{name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}})


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files of a folder: each is old or new but never half, and the last of the mapping appears last."""
    make_folder(folder)
    try:
        for name, data in files.items():
            (folder / f".{name}.part").write_bytes(data)
        for name in files:
            (folder / f".{name}.part").replace(folder / name)
    except OSError as error:
        for name in files:
            with suppress(OSError):
                (folder / f".{name}.part").unlink(missing_ok=True)
        raise StorageError(
            f"{folder}: can't be written ({reason(error)}); what was there before is untouched."
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder for output unless it is there; worth a call before long work, to fail early."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder}: can't be written ({reason(error)}).") from error


def reason(error: OSError) -> str:
    """Say why writing failed and what helps."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full: free some space or choose another place"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "no permission to write there: choose another place"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "there is a file where a folder is needed: choose another place"
    return str(error.strerror or error)


def read_model(folder: Path) -> SavedModel:
    """Read a model folder; whatever is wrong with it is said with the remedy."""
    facts = _facts(folder)
    try:
        preprocessing = Preprocessing.from_dict(facts["backbone"]["preprocessing"])
        backbone = backbone_from_architecture(facts["backbone"]["architecture"], preprocessing)
        backbone.name = facts["backbone"]["name"]
        backbone.load_state_dict(_tensors(folder, ENCODER, facts))
        memory = PrototypeMemory.from_state_dict(_tensors(folder, MEMORY, facts))
        config = TalonConfig.from_dict(_completed(facts["config"]))
        names = tuple(facts["names"])
        if memory.feature_size != backbone.feature_size:
            raise ModelError(
                f"{folder}: the prototypes have {memory.feature_size} dimensions, the encoder gives "
                f"{backbone.feature_size}; copy the model again or fit it anew."
            )
        if len(names) != memory.known:
            raise ModelError(f"{folder}: {CONFIG} has {len(names)} names for {memory.known} classes; fit it anew.")
        return SavedModel(
            backbone,
            memory,
            names,
            float(facts["threshold"]),
            config,
            facts.get("report", {}),
            _evidence(folder, facts, memory),
            _probe(folder, facts, memory, backbone),
        )
    except ModelError:
        raise
    except TalonError as error:
        raise ModelError(f"{folder}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"{folder}: the model is damaged ({error!r}); copy it again or fit it anew.") from error


def _completed(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings of a model, those that came later at what they were when nobody could set them."""
    later: dict[str, dict[str, Any]] = {
        "offline": {"texture": 0, "trained_texture": False, "trained_weight": 1.0},
        "evidence": BEFORE_IT_COULD_BE_SET,
    }
    completed = {part: {**values, **config.get(part, {})} for part, values in later.items()}
    if (
        "answer_weight" not in config.get("evidence", {})
        and completed["evidence"].get("concentration", "auto") == "auto"
    ):
        completed["evidence"]["concentration"] = "known"  # what it meant then
    completed["evidence"].setdefault("share_weight", completed["evidence"]["prior_weight"])  # there was one for both
    completed["evidence"].pop("smoothing", None)  # of ψ, which was estimated when the model was fitted
    return {**config, **completed}


def _evidence(folder: Path, facts: Mapping[str, Any], memory: PrototypeMemory) -> Evidence | None:
    if EVIDENCE not in facts["sha256"]:
        return None
    evidence = Evidence.from_state_dict(_tensors(folder, EVIDENCE, facts))
    if len(evidence.counts) != memory.known or len(evidence.model.centre) != memory.feature_size:
        raise ModelError(f"{folder}: {EVIDENCE} and {MEMORY} do not belong together; copy the model again.")
    return evidence


def _probe(folder: Path, facts: Mapping[str, Any], memory: PrototypeMemory, backbone: Backbone) -> Probe | None:
    if PROBE not in facts["sha256"]:
        return None
    probe = Probe.from_state_dict(_tensors(folder, PROBE, facts))
    if tuple(probe.hidden.shape[1:]) != tuple(backbone.hidden_shape) or int(probe.labels.max()) >= memory.known:
        raise ModelError(f"{folder}: {PROBE} and {ENCODER} do not belong together; copy the model again.")
    return probe


def _facts(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise ModelError(f"{folder}: no model here ({CONFIG} is missing); give the folder that `talon fit -o` wrote.")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: can't be read ({error}); copy the model again or fit it anew.") from error
    version = facts.get("format_version") if isinstance(facts, dict) else None
    if version is None:
        raise ModelError(f"{path}: this is not a talon model; give the folder that `talon fit -o` wrote.")
    if version != FORMAT_VERSION:
        raise ModelError(
            f"{folder}: the model has format version {version}, this program reads {FORMAT_VERSION}; "
            "install the talon-ocd that wrote it or fit it anew."
        )
    return dict(facts)


def _tensors(folder: Path, name: str, facts: Mapping[str, Any]) -> dict[str, Tensor]:
    path = folder / name
    try:
        if hashlib.sha256(path.read_bytes()).hexdigest() != facts["sha256"][name]:
            raise ModelError(f"{path}: the checksum differs from {CONFIG}; copy the model again or fit it anew.")
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: can't be read ({error}); copy the model again or fit it anew.") from error
    return tensors


def card(model: SavedModel) -> str:
    """Return the README of a model folder."""
    epochs = model.report.get("training", {}).get("epochs", model.config.offline.epochs)  # rehearsals may say 0
    shown = ", ".join(model.names[:20]) + (", ..." if len(model.names) > 20 else "")
    return (
        f"# A talon-ocd model\n\n{len(model.names)} known classes: {shown}\n\n"
        f"- encoder: `{model.backbone.name}`, {model.backbone.feature_size} dimensions\n"
        f"- preset: `{model.config.preset}`, seed {model.config.seed}, {epochs} epochs\n"
        f"- decides by {'evidence' if model.evidence else f'cosine, threshold {model.threshold:.4f}'}\n"
        f"- labelled images: {model.report.get('images', 'not recorded')}\n\n"
        "```\ntalon discover PHOTOS -m THIS_FOLDER -o OUT\n```\n"
    )
