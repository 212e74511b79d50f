"""How much is measured (room: benchmarks): the sizes of the requirement, or small ones for a smoke test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sizes:
    """Sizes of every group. ``Sizes()`` is the requirement's; ``Sizes.quick()`` runs the same code in seconds."""

    repeats: int = 15
    """Most repeats of a comparison; slow ones stop earlier, by ``seconds``."""
    seconds: float = 30.0
    """After this time a comparison starts no new turn (but makes three)."""
    batch: int = 64
    """Images an adaptation."""
    lite_size: int = 224
    """Pixels a side of EfficientNet-Lite0."""
    vit: dict[str, Any] = field(default_factory=dict)
    """Changes to transformers' ViTConfig, whose defaults are ViT-B/16."""
    prototypes: tuple[int, ...] = (10_000, 100_000)
    """K of the decision benchmark."""
    feature_size: int = 768
    """D of decisions and of the memory benchmark."""
    rules: tuple[tuple[int, int, int], ...] = (
        (200, 1280, 256), (400, 1280, 256), (2_000, 1280, 256), (10_000, 1280, 256), (200, 3616, 374), (40, 1808, 235),
    )  # fmt: skip
    """K, D and d at which the two rules are compared; the last two are what the default has on CUB and on Pets."""
    train_batch: int = 128
    """Images a training step, two views each."""
    train_steps: int = 6
    """Steps of one repeat; the first is not counted."""
    fresh_batch: int = 32
    """Images a step where cached training is compared with uncached."""
    stored: int = 100_000
    """Prototypes of the memory benchmark."""
    streamed: int = 1_000_000
    """Features of the endless stream."""
    streamed_size: int = 128
    """D of the endless stream."""
    streamed_classes: int = 1_000
    """Categories of the endless stream."""

    @classmethod
    def quick(cls) -> Sizes:
        """Sizes for a smoke test: the numbers mean nothing."""
        vit = {
            "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
            "image_size": 32, "patch_size": 8,
        }  # fmt: skip
        return cls(
            repeats=2, seconds=1.0, batch=16, lite_size=32, vit=vit, prototypes=(1_000, 2_000), feature_size=32,
            rules=((20, 32, 8),), train_batch=8, train_steps=3, fresh_batch=4, stored=2_000, streamed=5_000,
            streamed_size=16, streamed_classes=20,
        )  # fmt: skip
