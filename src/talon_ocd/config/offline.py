"""Settings of training and of its rehearsal (layer: config)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from talon_ocd.settings import check_types, require


@dataclass(frozen=True)
class OfflineConfig:
    """Training of the head on the labelled images (section 3.1.1 of the specification)."""

    epochs: int = 10
    """Passes over the labelled images; 0 trains nothing. Paper and code: 100."""
    keep_pretrained: bool = True
    """Decide on features of the pre-trained and the trained head side by side; the paper has the trained ones alone."""
    trained_weight: float | Literal["auto"] = "auto"
    """w, length of the trained head's part beside the pre-trained one's, above 0; ``auto`` is (C / 50)², at most 1:
    few known classes teach a head little about any other. The paper has the trained part alone."""
    texture: int = 32
    """Directions of the pre-trained head's local features whose covariance stands beside both; 0 leaves it out."""
    trained_texture: bool = True
    """Let the trained head's local features have such a part of their own, if it is trained and there is texture."""
    batch_size: int = 128
    """Images a step (B); each gives two views."""
    classifier: Literal["margin", "cosine", "linear"] = "cosine"
    """Cross-entropy on angular-margin logits, on plain cosine logits (m = 0), or on ``W z + b`` (#15)."""
    margin: float = 0.2
    """m, radians added to the angle of the true class."""
    scale: float = 30.0
    """s, factor of the cosine logits; the paper sweeps 10 to 50 and fixes none (#18)."""
    classifier_init: Literal["class-means", "random"] = "class-means"
    """Start of W (#16)."""
    classifier_views: Literal["first", "both"] = "first"
    """Views that take part in the cross-entropy (#17)."""
    classifier_weight: float = 1.0
    """λ of ``L_sup + λ L_cem``."""
    supcon_weight: float = 1.0
    """Weight of the supervised contrastive loss; 0 switches it off."""
    supcon_temperature: float = 0.08
    """T of the contrastive loss; the base temperature is always 0.07 (#18)."""
    reduction: Literal["mean", "sum"] = "mean"
    """Mean or sum over the batch (#19)."""
    lr_encoder: float = 1e-3
    """Peak learning rate of the head (#20)."""
    lr_classifier: float = 1e-3
    """Peak learning rate of W (#20)."""
    weight_decay: float = 1e-3
    """AdamW weight decay on every trained tensor (#21)."""
    warmup_epochs: int = 0
    """Linear warm-up; the cosine clock does not restart after it (#22)."""
    warmup_start: float = 1e-4
    """Learning rate of epoch 0 when there is a warm-up, for every parameter group."""
    lr_floor: float = 0.0
    """Learning rate that the cosine ends at (#22)."""
    trainable: Literal["head", "block"] = "head"
    """Train the whole head, or only its transformer block, without final norm and projection (#23)."""
    augmentation: Literal["talon", "gcd", "ltc", "none"] = "talon"
    """Random views: see ``images/augment.py`` (#34)."""
    views: int = 4
    """Augmented views an image whose trunk outputs are cached; 0 draws fresh views at every step, uncached."""
    cache_bytes: int = 2_000_000_000
    """Largest trunk cache held in memory; above it the cache goes to disk."""
    cache_disk_bytes: int = 10_000_000_000
    """Largest trunk cache on disk; above it fewer views are cached, with a note."""

    def __post_init__(self) -> None:
        check_types(self)
        require(self, "epochs", self.epochs >= 0, "0 or more")
        require(self, "batch_size", self.batch_size >= 1, "1 or more")
        require(self, "margin", 0 <= self.margin < 1.5, "an angle in radians, at least 0 and below 1.5")
        require(self, "scale", self.scale > 0, "above 0")
        require(self, "supcon_temperature", self.supcon_temperature > 0, "above 0")
        weight = self.trained_weight
        require(self, "trained_weight", isinstance(weight, str) or weight > 0, "above 0, or auto")
        require(self, "views", self.views == 0 or self.views >= 2, "0 (uncached) or at least 2 (a pair)")
        for name in (
            "lr_encoder",
            "lr_classifier",
            "weight_decay",
            "lr_floor",
            "warmup_start",
            "supcon_weight",
            "classifier_weight",
            "warmup_epochs",
            "texture",
            "cache_bytes",
            "cache_disk_bytes",
        ):
            require(self, name, getattr(self, name) >= 0, "0 or more")


@dataclass(frozen=True)
class CalibrationConfig:
    """Rehearsal: hold known classes out, stream them, score (``offline/rehearse.py``)."""

    rounds: int = 2
    """Rehearsals, each with other classes held out; by evidence at least as many as hold nearly each out once."""
    held_out: float = 0.5
    """Share of the known classes that plays the part of new ones; the evidence rule has ``evidence.rehearse_new``."""
    orders: int = 2
    """Stream orders a rehearsal, at least: the evidence rule has four, for short streams up to twelve."""
    try_untrained: bool = True
    """Rehearse with the pre-trained features as well, and train only if that went better with training."""
    grid: int = 40
    """Thresholds tried between the smallest and the largest useful similarity; offsets are none of them."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("rounds", "orders", "grid"):
            require(self, name, getattr(self, name) >= 1, "1 or more")
        require(self, "held_out", 0 < self.held_out < 1, "between 0 and 1")
