"""``talon doctor``: what this machine gives, and the traps that it may hold."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image

from talon_ocd import __version__
from talon_ocd.backbones import get_backbone
from talon_ocd.cli import choices
from talon_ocd.errors import BackboneError
from talon_ocd.images import decode

PACKAGES = (
    "torch",
    "numpy",
    "scipy",
    "pillow",
    "safetensors",
    "transformers",
    "scikit-learn",
    "matplotlib",
    "torchvision",
)


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False) -> None:
    """Show versions, torch build, threads, decode and encode speed, and known traps."""
    facts = {"talon-ocd": __version__, **_versions(), **_machine(), **_speed()}
    traps = _traps()
    if as_json:
        typer.echo(json.dumps({**facts, "traps": traps}, indent=2))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        choices.out.print(f"{name:<{width}}  {value}", markup=False, highlight=False)
    for trap in traps or ["none found"]:
        choices.out.print(f"{'trap':<{width}}  {trap}", markup=False, highlight=False, soft_wrap=True)


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _machine() -> dict[str, Any]:
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch build": build,
        "cuda available": torch.cuda.is_available(),
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
    }


def _speed() -> dict[str, str]:
    random = np.random.default_rng(0)
    photo = Image.fromarray(random.integers(0, 255, (48, 64, 3), dtype=np.uint8)).resize((1600, 1200))
    buffer = io.BytesIO()
    photo.save(buffer, "JPEG", quality=85)
    decoded = _rate(lambda: decode(buffer.getvalue(), "photo", shorter_side=256))
    speeds = {"decode": f"{decoded:.0f} photos/s (1600 x 1200 JPEG)"}
    try:
        backbone = get_backbone("efficientnet-lite0")
    except BackboneError as error:
        return {**speeds, "encode": f"failed: {error}"}
    pixels = torch.zeros(16, 3, 224, 224)

    def forward() -> None:
        with torch.no_grad():
            backbone(pixels)

    return {
        **speeds,
        "encode": f"{16 * _rate(forward):.0f} images/s (efficientnet-lite0, 224 px, batches of 16)",
    }


def _rate(work: Callable[[], object], seconds: float = 1.0) -> float:
    work()
    started, done = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        work()
        done += 1
    return done / (time.perf_counter() - started)


def _traps() -> list[str]:
    traps = []
    if importlib.util.find_spec("torchvision") is not None:
        try:
            importlib.import_module("torchvision")
        except (ImportError, OSError, RuntimeError) as error:
            traps.append(
                f"torchvision is installed but can't be imported ({error}): it breaks transformers; "
                "pip uninstall torchvision, or install the build that belongs to your torch."
            )
    if importlib.util.find_spec("transformers") is None:
        traps.append("transformers is not installed: hub encoders need pip install 'talon-ocd[hub]'.")
    if not torch.backends.mkldnn.is_available():
        traps.append("this torch has no oneDNN: convolutions on the CPU will be slow; install an official build.")
    if (cores := os.cpu_count()) and torch.get_num_threads() > cores:
        traps.append(f"torch uses {torch.get_num_threads()} threads on {cores} cores; set OMP_NUM_THREADS={cores}.")
    if shutil.disk_usage(Path.cwd()).free < 2_000_000_000:
        traps.append(
            "less than 2 GB free on this disk: the trunk cache may not fit; use --cache elsewhere or free space."
        )
    return traps
