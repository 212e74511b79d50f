"""The evidence rule: join the category that explains the image best, if better than a new one would (layer: online).

An image joins category k when

    log p(x | k) - log p(x | new) >= α + log K + κ log θ / (θ + t) + [k is known] λ log π / (1 - π)

that is when it is likelier to be of category k than of a new one, if K categories are equally likely but for how common
known ones are, and the chance of a new one is to theirs together as θ / (θ + t) to 1: it falls with the number of
answers t, as in a Chinese restaurant, but known classes were there before the first image. π is the share of the stream
that is of no known class, as its newest answers say, told anew after every 64 of them; κ and λ let priors count. α is
what the rehearsal found missing.
Every answer changes its category at once, so that the rule is sequential; ``in_turn.py`` answers many images at once
all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import log
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from talon_ocd.config import EvidenceConfig
from talon_ocd.errors import DataError
from talon_ocd.memory import Beliefs, PrototypeMemory, Recent, TwoCovariance, merges
from talon_ocd.memory.recent import NOBODY
from talon_ocd.online.rules.assignment import Assignment, Floats, Ints
from talon_ocd.online.rules.in_turn import Batch
from talon_ocd.online.rules.lately import Lately

LONG = 8192
"""Answers after which the chance of a new category falls no further: a stream that runs for months goes on finding."""
ANSWERS_PER_CLASS = 5 / 6
"""θ for each class that there seems to be, if nothing is set: where classes are many, new ones keep coming longer."""
ANSWERS_PER_KNOWN = 3 * ANSWERS_PER_CLASS
"""θ for each known class if nobody learns how many others there are: as if two thirds of the stream were of those."""
TOGETHER = 64
"""Images that are answered by one product, and answers after which π is told anew. A share that follows every answer
runs away in a stream's first ones: those that go to known classes, or don't, make the next ones do so as well."""


@dataclass(frozen=True)
class Evidence:
    """All that the rule knows when a stream starts: found by ``offline/estimate.py``, saved with a model.

    Attributes:
        model: the two Gaussians.
        counts: labelled members of each known class ``(C,)``.
        sums: sums of their coordinates ``(C, d)``.
        offset: α, in nats.
        examples: coordinates of some labelled images ``(M, d)``, those of the first class first; models of earlier
            versions have none.
        shown: how many of these each known class has ``(C,)``.
    """

    model: TwoCovariance
    counts: Floats
    sums: Floats
    offset: float = 0.0
    examples: Floats | None = None
    shown: Ints | None = None

    @property
    def labelled(self) -> list[Floats]:
        """The examples of each known class ``(., d)``, as precise as they are saved; an empty list without any."""
        if self.examples is None or self.shown is None:
            return []
        return np.split(self.examples.astype(np.float32).astype(np.float64), self.shown.cumsum()[:-1])

    def beliefs(self, answer_weight: float = 1.0) -> Beliefs:
        """Return what is believed of the known classes, for one stream."""
        return Beliefs(self.model, self.counts, self.sums, answer_weight)

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything as tensors, ready for safetensors."""
        state = {
            **self.model.state_dict(),
            "counts": torch.from_numpy(np.ascontiguousarray(self.counts)),
            "sums": torch.from_numpy(np.ascontiguousarray(self.sums)),
            "offset": torch.tensor(self.offset, dtype=torch.float64),
        }
        if self.examples is not None and self.shown is not None:
            state["examples"] = torch.from_numpy(self.examples.astype(np.float32))
            state["shown"] = torch.from_numpy(np.ascontiguousarray(self.shown))
        return state

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor]) -> Evidence:
        """Take what ``state_dict`` gave."""
        model = TwoCovariance.from_state_dict(state)
        evidence = cls(model, state["counts"].numpy(), state["sums"].numpy(), float(state["offset"]))
        evidence.beliefs()  # refuses what doesn't fit
        if "examples" not in state:
            return evidence
        examples, shown = state["examples"].numpy().astype(np.float64), state["shown"].numpy()
        fits = examples.shape == (shown.sum(), model.size) and shown.shape == evidence.counts.shape
        if not fits or (shown < 0).any() or not np.isfinite(examples).all():
            raise DataError(
                f"saved evidence: examples {examples.shape} don't fit {len(evidence.counts)} classes in {model.size} "
                "coordinates, or are not finite; load another copy of the model."
            )
        return replace(evidence, examples=examples, shown=shown)

    def with_offset(self, offset: float) -> Evidence:
        """Return the same with another α."""
        return replace(self, offset=offset)


class EvidenceRule:
    """Attach when the best category is at least as likely as a new one, else create.

    Attributes:
        threshold: what the log-odds must reach: 0, the prior is part of them.
        beliefs: the categories of this stream.
        recent: images that may still move.
        newest: how many of them are thought of again at adaptations that don't think of all.
        held: slots whose images are not grouped anew, because people gave them a meaning ``(L,)``.
    """

    name: ClassVar[Literal["evidence"]] = "evidence"
    unit: ClassVar[Literal["log-odds"]] = "log-odds"
    threshold: ClassVar[float] = 0.0

    def __init__(self, evidence: Evidence, config: EvidenceConfig, learns: bool = True) -> None:
        self.beliefs = evidence.beliefs(config.answer_weight)
        self.recent = Recent(config.keep, evidence.model.size)
        self.config, self.offset, self.learns, self.newest = config, evidence.offset, learns, config.newest
        self._labelled = evidence.labelled
        self.answered = self.discovered = self.adaptations = 0
        self._lately = Lately(config.share_window, TOGETHER - 1)
        self.held: Ints = np.empty(0, np.int64)

    @property
    def regroups_next(self) -> bool:
        """Does the next adaptation group images anew? At thoughts about all number 1, 2, 4, 8, ...

        Most can be gained early, and later on ids should stay what they are.
        """
        thoughts, rest = divmod(self.adaptations + 1, self.config.every)
        wanted = self.learns and self.config.sweeps and self.config.regroup
        return bool(wanted) and rest == 0 and thoughts & (thoughts - 1) == 0

    def look(self, features: Tensor, memory: PrototypeMemory) -> Assignment:
        """Answer unit features ``(B, D)``, each as if it came next; changes nothing."""
        return self._batch(self.beliefs.model.coordinates(features)).look()

    def assign(self, features: Tensor, memory: PrototypeMemory) -> Assignment:
        """Answer unit features ``(B, D)`` one after another and learn from each."""
        coordinates = self.beliefs.model.coordinates(features)
        parts = []
        first = TOGETHER - self.answered % TOGETHER  # the rest of those that have the same share
        for start, end in pairwise((0, *range(first, len(coordinates), TOGETHER), len(coordinates))):
            part = self._batch(coordinates[start:end]).answer()
            discovered = part.ids >= self.beliefs.known
            self.answered += len(part)
            self.discovered += int(np.count_nonzero(discovered))
            self._lately.add(discovered)
            parts.append(part)
        answers = Assignment.joined(parts)
        if self.learns:
            self.recent.add(coordinates, answers.ids)
        return answers

    def adapt(self) -> Ints:
        """Think again: about all recent images, if it is time, else about the newest; now and then, group them anew.

        Returns the known classes ``(L,)`` that kinds of their own have left: each begins a category, in this order.
        """
        if self.regroups_next:
            self.regroup()
        self.adaptations += 1
        if self.adaptations % self.config.every == 0:
            self.think_again()
            return self.branch()
        if self.newest:
            self.think_again(self.newest)
        return NOBODY

    def branch(self) -> Ints:
        """Let kinds that known classes have taken in begin categories; returns the classes ``(L,)`` that they left."""
        if not (self.learns and self.config.sweeps and self.config.branch_below and self.recent and self._labelled):
            return NOBODY
        left = self.recent.branch(self.beliefs, self._labelled, self.config.branch_below)
        if len(left):
            self.think_again()
        return left

    def think_again(self, newest: int | None = None) -> int:
        """Offer recent images, or the ``newest`` of them, to all categories; returns how many moved to another one."""
        if not self.learns or not self.config.sweeps or not self.recent:
            return 0
        hurdle = self._hurdle(self._share(), np.array([self.beliefs.living]), np.zeros(1, np.int64))
        return self.recent.rethink(self.beliefs, float(hurdle[0]), self.config.sweeps, newest)

    def regroup(self) -> int:
        """Group recent images anew into as many categories; returns how many that moved to another one.

        If it is weighed, second thoughts follow about either grouping, and images stay as they were, but for these
        thoughts, unless they are likelier in the new one.
        """
        if self.beliefs.living >= self.config.regroup:  # no room for images beside categories
            return 0
        if not self.config.weigh_regrouping:
            return self._regroup()
        old = self.beliefs.copy(), self.recent.copy()
        moved = self._regroup()
        if not moved:
            return 0
        self.think_again()
        new = self.beliefs, self.recent
        self.beliefs, self.recent = old
        self.think_again()
        if new[0].log_evidence() <= self.beliefs.log_evidence():
            return 0
        self.beliefs, self.recent = new
        return moved

    def keep(self, slots: Tensor) -> None:
        """Keep only the categories of these slots ``(L,)``, which are numbered anew."""
        self.beliefs.keep(slots.numpy())
        self.recent.keep(slots.numpy())

    def correct(self, index: int, feature: Tensor, away: int | None, to: int | None) -> None:
        """Take a unit feature ``(D,)`` out of slot ``away`` and put it into slot ``to``, which may be the next one.

        Equal slots let it count once more. Second thoughts may have moved the image before: then it leaves where they
        put it, and from now on they leave it alone, because a person has spoken.
        """
        member = self.beliefs.model.coordinates(feature[None])[0]
        home = self.recent.settle(index)
        leaving = away if home is None else home
        if leaving == to and away != to:  # second thoughts had the same thought
            return
        if leaving is not None and leaving != to:
            self.beliefs.leave(leaving, member)
        if to is not None and to == self.beliefs.size:
            self.beliefs.found(member)
        elif to is not None:
            self.beliefs.join(to, member)

    def forget(self, answered: int) -> None:
        """Forget the images that might still move; so many were answered by now."""
        self.recent.forget(answered)

    def merges(self, most: int = 20) -> list[tuple[int, int, float]]:
        """Return pairs of categories, one of them discovered, that are rather one than two, surest first."""
        return merges(self.beliefs, most)

    def state_dict(self) -> dict[str, Tensor]:
        """Return beliefs, recent images and the number of answers, ready for safetensors."""
        return {
            **{f"beliefs.{name}": value for name, value in self.beliefs.state_dict().items()},
            **{f"recent.{name}": value for name, value in self.recent.state_dict().items()},
            "answered": torch.tensor(self.answered),
            "discovered": torch.tensor(self.discovered),
            "lately": torch.from_numpy(self._lately.discovered.astype(np.uint8)),
            "adaptations": torch.tensor(self.adaptations),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where the rule that gave ``state`` was."""
        parts: dict[str, dict[str, Tensor]] = {"beliefs": {}, "recent": {}}
        for name, value in state.items():
            part, _, rest = name.partition(".")
            parts.get(part, {})[rest] = value
        self.beliefs = Beliefs.from_state_dict(self.beliefs.model, parts["beliefs"], self.config.answer_weight)
        self.recent.load_state_dict(parts["recent"])
        self.answered, self.adaptations = int(state["answered"]), int(state["adaptations"])
        counted = self.config.learn_share or "discovered" in state  # not, before there was a share to learn
        self.discovered = int(state["discovered"]) if counted else 0
        self._lately = Lately(self.config.share_window, TOGETHER - 1)
        if "lately" in state:
            self._lately.add(state["lately"].numpy().astype(np.bool_))

    def _regroup(self) -> int:
        return self.recent.regroup(self.beliefs, self.config.regroup, self.held)

    def _batch(self, coordinates: Floats) -> Batch:
        share = self._share()
        favour = 0.0 if share is None else self.config.share_weight * log((1.0 - share) / share)
        return Batch(self.beliefs, coordinates, partial(self._hurdle, share), favour, self.learns)

    def _hurdle(self, share: float | None, living: Ints, answers: Ints) -> Floats:
        """Return what the evidence must reach ``(B,)`` with so many living categories, and answers more by then."""
        concentration = self._concentration(share)
        chance = concentration / (concentration + np.minimum(self.answered + answers, LONG))
        hurdle: Floats = self.offset + np.log(np.maximum(living, 1)) + self.config.prior_weight * np.log(chance)
        return hurdle

    def _concentration(self, share: float | None) -> float:
        """Return θ, by the number of classes that there seem to be: known ones are 1 - π of the stream."""
        wanted = self.config.concentration
        if not isinstance(wanted, str):
            return wanted
        known = max(self.beliefs.known, 1)
        if wanted == "known" or share is None:
            return ANSWERS_PER_KNOWN * known
        return ANSWERS_PER_CLASS * known / (1.0 - share)

    def _share(self) -> float | None:
        """Return π, learned from the stream's own answers up to the last 64th, if it is learned.

        A state of an earlier version, saved between two 64ths, holds fewer answers: it is right again a window later.
        """
        if not self.config.learn_share:
            return None
        waiting = self.answered % TOGETHER
        if self.config.share_window:
            answered, found = self._lately.counts(waiting)
        else:
            answered, found = self.answered - waiting, self.discovered - self._lately.found(waiting)
        before, least = self.config.share_prior, self.config.least_share
        return min(max((before / 2 + found) / (before + answered), least), 1.0 - least)
