"""Settings of a stream, and of what guards its encoder steps (layer: config)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from talon_ocd.errors import ConfigError, nearest
from talon_ocd.settings import check_types, require

Adaptation = Literal["prototypes", "encoder"]
ADAPTATIONS: tuple[Adaptation, ...] = ("prototypes", "encoder")


@dataclass(frozen=True)
class OnlineConfig:
    """Decision, prototype update and encoder update of the stream (sections 3.1.3 to 3.1.6)."""

    rule: Literal["evidence", "cosine"] = "evidence"
    """How to decide with ``threshold="auto"``: by evidence, or as TALON does, with a threshold that is rehearsed."""
    threshold: float | Literal["auto"] = "auto"
    """τ: a query joins its best category when the cosine is at least τ. Paper: CLIP 0.75, DINO 0.70 (#25).
    A number always means TALON's rule; ``auto`` leaves it to ``rule``."""
    adapt: tuple[Adaptation, ...] = ("prototypes",)
    """What keeps learning: prototypes (TTA-P; the categories, if evidence decides), encoder (TTA-M), both, none."""
    adapt_every: int = 64
    """Images between two adaptations (#8)."""
    encoder_first: bool = True
    """Order inside a batch: the code moves the encoder first, Algorithm 1 the prototypes (#9)."""
    eta_known: float = 0.06
    """η of known prototypes."""
    eta_new: float = 0.3
    """η of discovered prototypes."""
    kappa_known: float = 32.0
    """κ of known prototypes."""
    kappa_new: float = 8.0
    """κ of discovered prototypes."""
    count_founder: bool = True
    """Does the query that created a prototype belong to its group S_j? (#10)"""
    min_group: int = 2
    """Smallest group that moves a prototype; the paper moves with 1 (#11)."""
    group_mean: Literal["plain", "normalised"] = "plain"
    """Mean of the group in the update (#12)."""
    clamp_confidence: bool = True
    """Clip the mean cosine of the group to [0, 1] (#13)."""
    group_lifetime: Literal["batch", "stream"] = "batch"
    """Groups start anew at every adaptation, or collect over the stream (#14)."""
    temperature: float = 1.0 / 30.0
    """T of the softmax over prototypes in the entropy (#7)."""
    entropy_weight: float = 1.0
    """Weight of L_ent."""
    align_weight: float = 1.0
    """β1, weight of the alignment A."""
    repel_weight: float = 1.0
    """β2, weight of the repulsion R."""
    repel_sign: Literal["apart", "together"] = "apart"
    """The paper's printed sign pulls class means together, against its own aim (#1)."""
    repel_reduction: Literal["mean", "sum"] = "mean"
    """Mean or sum over ordered pairs of classes in the batch (#2)."""
    align_over: Literal["present", "all"] = "present"
    """Normaliser of the alignment: classes in the batch, or all prototypes (#3)."""
    encoder_scope: Literal["norms", "block", "head"] = "norms"
    """Parameters that the encoder update moves: norms of the last block (code), its block, or all of the head (#4)."""
    encoder_lr: float = 1e-2
    """Learning rate of plain SGD; code: CLIP 1e-1, DINO 1e-2; paper: 1e-4 (#5)."""
    encoder_clip: float | None = 1.0
    """Largest gradient norm of a step; the paper names none (#6)."""
    autocast: bool = False
    """Run the stream's head in bfloat16 where torch allows it; losses stay float32. The code has float16 (#41)."""
    encoder_steps: int = 1
    """Gradient steps an adaptation (#8)."""
    index_above: int = 100_000
    """Categories from which on TALON's rule finds candidates with an index; 0 is never. An index may miss some:
    ``docs/large-memories.md`` has how many. The paper has a few hundred categories."""
    half_precision: bool = False
    """Hold prototypes in float16: half the memory, and cosines that are off by about 1e-5."""

    @property
    def by_evidence(self) -> bool:
        """Does the evidence rule decide?"""
        return self.rule == "evidence" and self.threshold == "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "adapt", parse_adapt(self.adapt))
        if str(self.encoder_clip) == "none":  # TOML has no null
            object.__setattr__(self, "encoder_clip", None)
        check_types(self)
        require(self, "adapt_every", self.adapt_every >= 1, "1 or more")
        require(self, "min_group", self.min_group >= 1, "1 or more")
        require(self, "temperature", self.temperature > 0, "above 0")
        require(self, "encoder_steps", self.encoder_steps >= 1, "1 or more")
        require(self, "encoder_clip", self.encoder_clip is None or self.encoder_clip > 0, "above 0 or null")
        for name in ("eta_known", "eta_new"):
            require(self, name, 0 <= getattr(self, name) <= 1, "between 0 and 1")
        for name in (
            "kappa_known",
            "kappa_new",
            "index_above",
            "encoder_lr",
            "entropy_weight",
            "align_weight",
            "repel_weight",
        ):
            require(self, name, getattr(self, name) >= 0, "0 or more")


@dataclass(frozen=True)
class GuardConfig:
    """What keeps encoder steps of a long stream from doing harm (``docs/guard.md``)."""

    enabled: bool = True
    """Judge encoder steps on a probe of labelled images. Off in ``official`` and ``paper``, which have no guard."""
    images: int = 128
    """Most labelled images in the probe; fewer if their trunk outputs are larger than 32 MB."""
    tolerance: float = 0.01
    """Share of the probe that may be lost against the frozen head, besides a standard error of that share."""
    drift: float = 0.1
    """How far probe images may move away from their prototypes against the frozen head: standard deviations of their
    cosines. It tells harm before an answer changes, on images that training has seen."""
    patience: int = 3
    """Refused steps in a row after which the head goes back to the frozen one."""
    pause: int = 8
    """Adaptations that are left out after going back; every time twice as many as the last time."""
    longest_pause: int = 512
    """Most adaptations that are left out at once."""
    most_of_one: float = 0.8
    """Largest share of recent answers that one category may have: a burst of one class drives no step."""
    most_new: float = 0.5
    """Largest share of recent answers that may have founded a category: what is mostly unheard of drives no step."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("images", "patience", "pause", "longest_pause"):
            require(self, name, getattr(self, name) >= 1, "1 or more")
        require(self, "drift", self.drift >= 0, "0 or more")
        for name in ("tolerance", "most_of_one", "most_new"):
            require(self, name, 0 <= getattr(self, name) <= 1, "between 0 and 1")


def parse_adapt(words: str | Sequence[str]) -> tuple[Adaptation, ...]:
    """Turn ``"prototypes,encoder"``, ``"none"`` or a list into the tuple of the config.

    >>> parse_adapt("none"), parse_adapt("encoder,prototypes")
    ((), ('prototypes', 'encoder'))
    """
    parts = [part.strip() for part in (words.split(",") if isinstance(words, str) else words)]
    if parts in (["none"], [""], []):
        return ()
    for part in parts:
        if part not in ADAPTATIONS:
            raise ConfigError(
                f"adapt={part!r} is not known; use prototypes, encoder, prototypes,encoder or none."
                f"{nearest(part, ADAPTATIONS)}"
            )
    return tuple(word for word in ADAPTATIONS if word in parts)
