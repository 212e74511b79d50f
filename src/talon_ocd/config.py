"""Every setting of the method, as frozen dataclasses: one object feeds the API, the flags, TOML files and checkpoints.

Each field's docstring gives its symbol, the paper's value and where paper and released code disagree (``#n`` is row n
of the table in ``docs/deviations.md``). Presets are data: they differ only in field values.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from talon_ocd.errors import ConfigError, nearest
from talon_ocd.settings import build, check_types, merge, require, toml

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - Python 3.10
    import tomli as tomllib

Adaptation = Literal["prototypes", "encoder"]
ADAPTATIONS: tuple[Adaptation, ...] = ("prototypes", "encoder")
PRESETS = ("default", "official", "paper")


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
class EvidenceConfig:
    """The evidence rule: what is estimated from the labelled set, and how a stream learns (``docs/evidence.md``)."""

    dimensions: int | Literal["auto"] = "auto"
    """d, principal directions of the labelled features that are looked at; fewer if there are fewer images. ``auto`` is
    one for four labelled images, 32 to 384."""
    shrinkage: float = 0.3
    """Weight of a multiple of the identity in the covariance inside a class."""
    smoothing_classes: float = 100.0
    """ψ is mixed with its mean as if that came from so many classes more: few classes say little of one direction."""
    heavy_tails: bool = True
    """Student's distributions with ν estimated from the labelled set; else Gaussians."""
    concentration: float | Literal["auto", "known"] = "auto"
    """θ: the prior chance of a new category is θ / (θ + t) after t answers; ``known`` is 2.5 for each known class,
    ``auto`` a third of that for each class that there seems to be, by the share that is learned (if it is)."""
    prior_weight: float = 3.5
    """κ, how much that chance counts: coordinates are not independent, so that evidence is too sure of itself."""
    learn_share: bool = True
    """Learn from the answers which share of a stream is of known classes; else known or not is equally likely."""
    share_weight: float = 4.5
    """λ, how much that share counts, for the same reason."""
    share_prior: float = 20.0
    """Answers, half of them of known classes, as if a stream had given them before it began."""
    least_share: float = 0.05
    """Of known classes, and of all others, in what a stream is taken to be made of: either may come at any time."""
    answer_weight: float = 0.25
    """What an answer, corrected or not, counts in the mean of a known class, where a labelled image counts 1: it may be
    wrong. Only whole members make the class more certain."""
    offset: float | Literal["auto"] = "auto"
    """α, nats that the evidence must reach besides the prior; ``auto`` is rehearsed. A number leaves all rehearsal out:
    the head is trained in any case, and how compact that makes its own training images is not corrected."""
    rehearse_new: float = 1 / 3
    """Share of the known classes that plays the part of new ones in a rehearsal."""
    rehearse_trained: float = 2 / 3
    """Share of the other classes' images that a rehearsal learns from; the rest is streamed."""
    keep: int = 8192
    """Recent images that may move to another category; 0 keeps none."""
    sweeps: int = 2
    """Times that recent images are offered to all categories when a stream thinks again; 0 never does."""
    every: int = 4
    """Adaptations (``online.adapt_every`` answers each) between two second thoughts about all recent images."""
    newest: int = 1024
    """Newest images that are thought of again at the adaptations in between, unless the encoder learns too; 0: none."""
    regroup: int = 2304
    """Images and categories that are grouped anew at second thoughts number 1, 2, 4, 8, ... about all; 0: never."""

    def __post_init__(self) -> None:
        check_types(self)
        dimensions = self.dimensions
        require(self, "dimensions", isinstance(dimensions, str) or dimensions >= 1, "1 or more, or auto")
        require(self, "every", self.every >= 1, "1 or more")
        require(self, "concentration", isinstance(self.concentration, str) or self.concentration > 0, "above 0")
        require(self, "share_prior", self.share_prior > 0, "above 0")
        require(self, "least_share", 0 < self.least_share <= 0.5, "above 0, at most 0.5")
        require(self, "answer_weight", 0 < self.answer_weight <= 1, "above 0, at most 1")
        for name in ("prior_weight", "share_weight", "keep", "sweeps", "newest", "regroup", "smoothing_classes"):
            require(self, name, getattr(self, name) >= 0, "0 or more")
        require(self, "shrinkage", 0 <= self.shrinkage <= 1, "between 0 and 1")
        for name in ("rehearse_new", "rehearse_trained"):
            require(self, name, 0 < getattr(self, name) < 1, "between 0 and 1")


@dataclass(frozen=True)
class CalibrationConfig:
    """Rehearsal: hold known classes out, stream them, score (``offline/calibrate.py``)."""

    rounds: int = 2
    """Rehearsals, each with other classes held out; for the evidence rule at least as many as hold each out once."""
    held_out: float = 0.5
    """Share of the known classes that plays the part of new ones; the evidence rule has ``evidence.rehearse_new``."""
    orders: int = 2
    """Stream orders a rehearsal; the evidence rule has at least four."""
    try_untrained: bool = True
    """Rehearse with the pre-trained features as well, and train only if that went better with training."""
    grid: int = 40
    """Thresholds tried between the smallest and the largest useful similarity; offsets are always the same."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("rounds", "orders", "grid"):
            require(self, name, getattr(self, name) >= 1, "1 or more")
        require(self, "held_out", 0 < self.held_out < 1, "between 0 and 1")


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


@dataclass(frozen=True)
class TalonConfig:
    """All settings of a model. ``TalonConfig()`` is the default preset."""

    preset: str = "default"
    """The preset that this config started from; fields may have been changed since."""
    seed: int = 0
    """Seed of everything random in training and rehearsal. Code and paper: 1028."""
    offline: OfflineConfig = field(default_factory=OfflineConfig)
    online: OnlineConfig = field(default_factory=OnlineConfig)
    evidence: EvidenceConfig = field(default_factory=EvidenceConfig)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)

    def __post_init__(self) -> None:
        check_types(self)
        require(self, "seed", 0 <= self.seed < 2**32, "between 0 and 2^32 - 1")

    @classmethod
    def from_preset(cls, name: str, family: str = "") -> TalonConfig:
        """Return a preset; ``family`` (``clip``, ``dino``, ...) picks the values that depend on the backbone.

        >>> TalonConfig.from_preset("official", "clip").online.threshold
        0.75
        """
        makers = {
            "default": lambda: cls.default(family),
            "official": lambda: cls.official(family),
            "paper": lambda: cls.paper(family),
        }
        if name not in makers:
            raise ConfigError(f"preset {name!r} is not known; use one of {', '.join(PRESETS)}.{nearest(name, PRESETS)}")
        made = makers[name]()
        if (
            family == "vectors"
        ):  # embeddings have no random views, and are good as they are unless somebody knows better
            made = replace(made, offline=replace(made.offline, augmentation="none", epochs=0))
        return made

    @classmethod
    def default(cls, family: str = "") -> TalonConfig:
        """The evidence rule on pre-trained and briefly trained features; an encoder without any is only trained."""
        if family == "tiny-vit":
            offline = OfflineConfig(epochs=30, batch_size=32, classifier_init="random", keep_pretrained=False)
            return cls(offline=offline)
        return cls()

    @classmethod
    def official(cls, family: str = "") -> TalonConfig:
        """The choices of the released code; the threshold of DINO is the paper's, the code has no other (#25)."""
        offline = OfflineConfig(
            epochs=100, keep_pretrained=False, classifier="margin", warmup_epochs=50, warmup_start=1e-4, lr_floor=0.0
        )
        online = OnlineConfig(
            rule="cosine",
            threshold=0.70 if family == "dino" else 0.75,
            adapt=ADAPTATIONS,
            encoder_lr=1e-1 if family == "clip" else 1e-2,
        )
        return cls(preset="official", seed=1028, offline=offline, online=online, guard=GuardConfig(enabled=False))

    @classmethod
    def paper(cls, family: str = "") -> TalonConfig:
        """The paper as printed, misprints included (each is one field away from its intent)."""
        offline = OfflineConfig(
            epochs=100,
            keep_pretrained=False,
            classifier="margin",
            reduction="sum",
            lr_encoder=1e-4 if family == "clip" else 1e-3,
            weight_decay=0.05,
            warmup_epochs=0,
            lr_floor=1e-5,
            trainable="block",
        )
        online = OnlineConfig(
            rule="cosine",
            threshold=0.70 if family == "dino" else 0.75,
            adapt=ADAPTATIONS,
            encoder_first=False,
            count_founder=False,
            min_group=1,
            group_mean="normalised",
            repel_sign="together",
            repel_reduction="sum",
            align_over="all",
            encoder_scope="block",
            encoder_lr=1e-4,
            encoder_clip=None,
        )
        return cls(preset="paper", seed=1028, offline=offline, online=online, guard=GuardConfig(enabled=False))

    def override(self, **changes: Any) -> TalonConfig:
        """Return a copy with fields changed by dotted or plain name; ``None`` values are left alone.

        >>> TalonConfig().override(epochs=3, threshold=0.6).offline.epochs
        3
        """
        data = self.to_dict()
        for name, value in changes.items():
            if value is not None:
                _place(data, name, value)
        return TalonConfig.from_dict(data)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain data, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TalonConfig:
        """Build from plain data; an unknown key is refused with the nearest known one."""
        config: TalonConfig = build(cls, data, "")
        return config

    @classmethod
    def from_toml(cls, path: str | Path, family: str = "", preset: str = "default") -> TalonConfig:
        """Read a TOML file over ``preset``; a line ``preset = "..."`` in it goes before."""
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{path}: can't be read as a TOML config ({error}).") from error
        base = cls.from_preset(str(data.get("preset", preset)), family).to_dict()
        merge(base, data, "")
        return cls.from_dict(base)

    def to_toml(self) -> str:
        """Return the settings as TOML that ``from_toml`` reads back."""
        return toml(self.to_dict())


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


def _place(data: dict[str, Any], name: str, value: Any) -> None:
    section, _, key = name.rpartition(".")
    if name == "preset":
        raise ConfigError("preset can't be changed afterwards, it says where a config started from; use --preset.")
    tables = [data.get(section, {})] if section else [data, *(data[part] for part in _SECTIONS)]
    for table in tables:
        if key not in _SECTIONS and isinstance(table, dict) and key in table:
            table[key] = value
            return
    known = [item for table in (data, *(data[s] for s in _SECTIONS)) for item in table if item not in _SECTIONS]
    raise ConfigError(f"config key {name!r} is not known.{nearest(key, known)}")


_SECTIONS = ("offline", "online", "evidence", "calibration", "guard")
