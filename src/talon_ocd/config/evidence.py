"""Settings of the evidence rule, offline and online (layer: config)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from talon_ocd.settings import check_types, require


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
    """Learn from the answers, 64 at a time, which share of a stream is of known classes; else it is one half."""
    share_weight: float = 5.0
    """λ, how much that share counts, for the same reason."""
    share_prior: float = 20.0
    """Answers, half of them of known classes, as if a stream had given them before it began."""
    share_window: int = 512
    """Newest answers that tell this share, 64 to 65,536; 0: all of them, however long ago."""
    least_share: float = 0.07
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
    weigh_regrouping: bool = True
    """Leave images as they were unless the model finds them likelier in the new groups."""
    branch_below: float = 1e-4
    """Images that joined a known class begin a category of their own if its labelled images are so much less like them
    that chance would explain it with less than this probability, in any known class, at second thoughts about all; 0:
    never."""

    def __post_init__(self) -> None:
        check_types(self)
        dimensions = self.dimensions
        require(self, "dimensions", isinstance(dimensions, str) or dimensions >= 1, "1 or more, or auto")
        require(self, "every", self.every >= 1, "1 or more")
        require(self, "concentration", isinstance(self.concentration, str) or self.concentration > 0, "above 0")
        require(self, "share_prior", self.share_prior > 0, "above 0")
        require(self, "share_window", self.share_window == 0 or 64 <= self.share_window <= 2**16, "64 to 65,536, or 0")
        require(self, "least_share", 0 < self.least_share <= 0.5, "above 0, at most 0.5")
        require(self, "answer_weight", 0 < self.answer_weight <= 1, "above 0, at most 1")
        for name in ("prior_weight", "share_weight", "keep", "sweeps", "newest", "regroup", "smoothing_classes"):
            require(self, name, getattr(self, name) >= 0, "0 or more")
        require(self, "branch_below", 0 <= self.branch_below < 1, "between 0 and 1")
        require(self, "shrinkage", 0 <= self.shrinkage <= 1, "between 0 and 1")
        for name in ("rehearse_new", "rehearse_trained"):
            require(self, name, 0 < getattr(self, name) < 1, "between 0 and 1")
