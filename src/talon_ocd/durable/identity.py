"""Which model and which settings a stream folder belongs to (layer: durable)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from talon_ocd.durable.journal import Journal
from talon_ocd.durable.journal_file import JOURNAL
from talon_ocd.errors import StreamError
from talon_ocd.online import Bounds


@dataclass(frozen=True)
class Identity:
    """What must not change while a stream lives: its answers follow from it.

    Attributes:
        fingerprint: digest of the model's weights, prototypes and evidence.
        model: where the model was read from, for people.
        names: the known classes.
        settings: how the stream decides and learns, as plain data.
    """

    fingerprint: str
    model: str
    names: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


def fingerprint(facts: Mapping[str, Any], *states: Mapping[str, Tensor]) -> str:
    """Return a digest of plain data and of tensors with their names."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for state in states:
        for name in sorted(state):
            value = state[name].detach().cpu().contiguous()
            digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
            digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()


def settings_of(threshold: float, rule: str, finer: float, adapt: tuple[str, ...], bounds: Bounds) -> dict[str, Any]:
    """Return the settings of a stream as plain data."""
    return {"rule": rule, "threshold": threshold, "finer": finer, "adapt": list(adapt), "bounds": asdict(bounds)}


def settings_at(folder: Path) -> Mapping[str, Any]:
    """Return the settings that a stream folder was begun with; nothing if there is none yet."""
    if not (folder / JOURNAL).is_file():
        return {}
    try:
        journal = Journal(folder)
    except StreamError:  # begun by a process that died at once; if it is worse, who opens it to write is told
        return {}
    try:
        return dict(journal.meta("settings", {}))
    finally:
        journal.close()


def claim(journal: Journal, identity: Identity, rule: Mapping[str, Any]) -> None:
    """Write a new folder's identity down, or refuse one that belongs to something else."""
    written = journal.meta("fingerprint")
    if written is None:
        with journal.transaction() as connection:
            journal.set_meta(
                fingerprint=identity.fingerprint,
                model=identity.model,
                names=list(identity.names),
                settings=dict(identity.settings),
                rule=dict(rule),
            )
            rows = [(category,) for category in range(len(identity.names))]
            connection.executemany("INSERT INTO categories (id, known) VALUES (?, 1)", rows)
        return
    if written != identity.fingerprint:
        raise StreamError(
            f"{journal.folder}: this stream belongs to another model ({journal.meta('model')}); use that one, or "
            "answer its images anew with `talon stream replay`, which keeps the names that people gave."
        )
    begun = _one_by_one(journal.meta("settings", {}))
    for name, value in _one_by_one(identity.settings).items():
        if (before := begun.get(name)) != value:
            raise StreamError(
                f"{journal.folder}: this stream was begun with {name}={before!r}, not {value!r}; leave the option out, "
                "begin another folder, or answer its images anew into one with `talon stream replay`."
            )


def _one_by_one(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with each bound by its own name, as options have them."""
    others = {name: value for name, value in settings.items() if name != "bounds"}
    return {**others, **settings.get("bounds", {})}
