"""Rows as a grid writes them, made up for tests of tables and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from talon_ocd.methods.registry import REGISTRY

SIZES: dict[str, tuple[int, int, int, int]] = {
    "pets": (37, 19, 2740, 942),
    "cub": (200, 100, 4496, 1499),
    "cifar10-6-4": (10, 6, 35_000, 15_000),
    "cifar10": (10, 5, 37_500, 12_500),
}
"""Classes, known classes, images of the stream, old ones among them."""


def row(
    dataset: str = "pets",
    method: str = "talon",
    seed: int = 0,
    order: int = 0,
    old: float = 0.6,
    new: float = 0.5,
    gap: float = 0.1,
    backbone: str = "efficientnet-lite0",
    family: str = "",
    **changes: Any,
) -> dict[str, Any]:
    """Return a row with given Strict Old and New; Greedy is ``gap`` above."""
    classes, known, stream, stream_old = SIZES[dataset]
    share = stream_old / stream
    registered = REGISTRY.get(method)

    def triple(more: float) -> dict[str, float]:
        return {"all": share * (old + more) + (1 - share) * (new + more), "old": old + more, "new": new + more}

    content: dict[str, Any] = {
        "format": 1, "dataset": dataset, "classes": classes, "known_classes": known, "sampling": "gcd",
        "order": {"kind": "shuffled", "number": order}, "seed": seed, "backbone": backbone,
        "family": family or backbone, "pipeline": {"aspect": "keep", "augmentation": "gcd"}, "method": method,
        "title": registered.title if registered else method.upper(),
        "group": registered.group if registered else "hash",
        "variant": {}, "settings": {"recipe": {"epochs": 10}}, "preset": "official", "epochs": 10,
        "strict": triple(0.0), "greedy": triple(gap),
        "categories": {"found": 60 + seed, "true": classes, "memory": 61 + seed},
        "sizes": {"labelled": 940, "stream": stream, "stream_old": stream_old, "old_share": share},
        "threshold": 0.52,
        "timings": {
            "fit_seconds": 80.0, "training_seconds": 60.0, "training_steps": 80, "prototype_seconds": 1.5,
            "encode_seconds": 27.4, "decide_seconds": 2.74, "adapt_seconds": 5.48, "stream_seconds": 36.0,
        },
        "along": along(stream, old, new, seed),
        "angles": {"before": angles(60.0, 50.0), "after": angles(35.0 if "baseline" not in method else 55.0, 74.0)},
        "command": "talon evaluate --dataset pets --method all -o out", "commit": "abc123def456",
        "machine": {"cpu_threads": 2},
    }  # fmt: skip
    content.update(changes)
    return content


def along(stream: int, old: float, new: float, seed: int) -> dict[str, list[float]]:
    """Return 20 points that climb to the final accuracies."""
    answered = [round(stream * part / 20) for part in range(1, 21)]
    climb = 1 - 0.3 * np.exp(-np.arange(20) / 4) + 0.01 * np.sin(np.arange(20) + seed)
    curves = {"strict_all": (old + 2 * new) / 3, "strict_old": old, "strict_new": new}
    return {
        "answered": answered,
        **{name: (climb * final).tolist() for name, final in curves.items()},
        "categories": [20 + 2 * part for part in range(20)],
    }


def angles(own: float, between: float) -> dict[str, Any]:
    """Return bell-shaped histograms in 90 bins of 2 degrees."""
    centres = np.arange(90) * 2 + 1
    bell = [np.round(900 * np.exp(-(((centres - mean) / 8) ** 2))).astype(int).tolist() for mean in (own, between)]
    return {
        "own_mean": own, "own_std": 8.0, "between_mean": between, "between_std": 8.0,
        "own_histogram": bell[0], "between_histogram": bell[1],
    }  # fmt: skip


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    """Write rows into an output folder as a grid does; returns it."""
    for content in rows:
        label = "@".join(
            [content["method"], *(f"{name}={value}" for name, value in content.get("variant", {}).items())]
        )
        order = content["order"]
        place = folder / "rows" / str(content["dataset"]) / label
        place.mkdir(parents=True, exist_ok=True)
        name = f"seed-{content['seed']}-{order['kind']}-{order['number']}.json"
        (place / name).write_text(json.dumps(content), encoding="utf-8")
    return folder
