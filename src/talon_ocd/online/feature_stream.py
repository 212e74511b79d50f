"""Discovery on features: decide, remember, learn (layer: online).

``FeatureStream`` is the whole online stage but for the encoder: people with their own embeddings use it as it is, and
``DiscoveryStream`` (images) drives one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.config import OnlineConfig
from talon_ocd.errors import ConfigError, DataError
from talon_ocd.memory import Groups, PrototypeMemory, nudge, refine
from talon_ocd.online.bounds import Bounds
from talon_ocd.online.decision import Decision, category_name, decisions
from talon_ocd.online.rules import Assignment, CosineRule, EvidenceRule
from talon_ocd.online.second_thoughts import Merge, Move, SecondThoughts
from talon_ocd.online.silent import heard_of, name_anew, told_alone, told_in_turn

FeatureArray = Tensor | npt.NDArray[np.floating]
CHUNK = 256
"""Most features that are answered by one product when nothing adapts (the answers don't depend on it)."""


class FeatureStream:
    """A stream of feature vectors, answered one by one; prototypes learn every ``adapt_every`` answers.

    The evidence rule has means of its own, which learn from each answer: then answers move no prototype, unless the
    encoder learns, which follows them.

    >>> stream = FeatureStream(PrototypeMemory(torch.eye(3)), OnlineConfig(threshold=0.7, adapt=("prototypes",)))
    >>> [stream.observe(vector).verdict for vector in ([1.0, 0.1, 0.0], [1.0, -1.0, 1.0], [1.0, -1.0, 0.9])]
    ['known', 'new', 'discovered']
    """

    def __init__(
        self,
        memory: PrototypeMemory,
        config: OnlineConfig,
        names: Sequence[str] = (),
        rule: EvidenceRule | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        if rule is None and isinstance(config.threshold, str):
            raise ConfigError("threshold='auto' must be chosen before a stream starts: fit a model, or give a number.")
        self.memory = memory
        self.config = config
        self.rule: CosineRule | EvidenceRule = (
            CosineRule(float(config.threshold), config.index_above) if rule is None else rule
        )
        if isinstance(self.rule, EvidenceRule) and "encoder" in config.adapt:
            self.rule.newest = 0  # a step of the encoder and second thoughts would hold answers up for too long
        if config.half_precision:
            memory.halve()
        self.bounds = bounds or Bounds()
        self.answered = 0
        self._names = list(names) or [str(category) for category in range(memory.known)]
        self._groups = Groups(config)
        followed = isinstance(self.rule, CosineRule) or "encoder" in config.adapt
        self._moves_prototypes = followed and "prototypes" in config.adapt
        self._since_adaptation = 0
        self._silent = not heard_of(memory).all()  # is there a category that nobody has heard of? Hardly ever
        if len(self._names) != memory.known:
            raise DataError(f"{len(self._names)} names were given for {memory.known} known categories.")

    @property
    def room(self) -> int:
        """Answers left before the next adaptation."""
        return self.config.adapt_every - self._since_adaptation

    @property
    def thinks_alone(self) -> bool:
        """Is the next adaptation for second thoughts, and for nothing that takes as long?

        Not if every adaptation thinks again: then nobody else would ever have a turn.
        """
        rule = self.rule
        if isinstance(rule, CosineRule) or not (rule.learns and rule.config.sweeps and rule.config.keep):
            return False
        return rule.config.every > 1 and (rule.adaptations + 1) % rule.config.every == 0

    @property
    def regroups_next(self) -> bool:
        """Does the next adaptation group images anew, so that categories may come to mean something else?"""
        return isinstance(self.rule, EvidenceRule) and self.rule.regroups_next

    def hold(self, categories: Iterable[int]) -> None:
        """Let categories, given by ids, mean what they mean when images are grouped anew: people rely on them."""
        slots = [slot for category in categories if (slot := self.memory.slot(category)) is not None]
        if isinstance(self.rule, EvidenceRule):
            self.rule.held = np.array(sorted(slots), np.int64)

    def name(self, category: int) -> str:
        """Return the name of a category."""
        return category_name(category, self._names)

    def decide(self, vector: FeatureArray | Sequence[float], source: str = "") -> Decision:
        """Answer one vector ``(D,)`` without learning anything from it."""
        features = self._unit(matrix(vector, rows=False))
        return self.decisions(self.look(features), [source], self.answered)[0]

    def observe(self, vector: FeatureArray | Sequence[float], source: str = "") -> Decision:
        """Answer one vector ``(D,)`` and learn from it."""
        return self._observe(self._unit(matrix(vector, rows=False)), [source])[0]

    def observe_many(self, vectors: FeatureArray, sources: Sequence[str] | None = None) -> list[Decision]:
        """Answer vectors ``(N, D)`` in order; the answers are those of N calls of ``observe``."""
        features = self._unit(matrix(vectors, rows=True))
        names = [""] * len(features) if sources is None else list(sources)
        if len(names) != len(features):
            raise DataError(f"{len(names)} sources were given for {len(features)} vectors.")
        return self._observe(features, names)

    def look(self, features: Tensor) -> Assignment:
        """Answer unit features ``(B, D)``, each as if it came next; changes nothing."""
        assignment = self.rule.look(features, self.memory)
        return told_alone(self.memory, assignment) if self._silent else assignment

    def place(self, features: Tensor) -> Assignment:
        """Answer at most ``room`` unit features ``(B, D)`` and remember them; does not adapt (the caller does)."""
        assignment = self.rule.assign(features, self.memory)
        slots, founded = torch.from_numpy(assignment.ids), torch.from_numpy(assignment.founded)
        if assignment.founded.any():
            self.memory.append(features[founded])
        if self._silent:
            assignment = told_in_turn(self.memory, assignment)
        self.memory.count(slots, self.answered)
        self._silent = self._silent and not heard_of(self.memory).all()
        if self._moves_prototypes:
            self._groups.add(slots, features, founded)
        self.answered += len(slots)
        self._since_adaptation += len(slots)
        return assignment

    def adapt(self) -> None:
        """Learn from what came since the last adaptation, and start to collect anew."""
        if self._moves_prototypes:
            refine(self.memory, self._groups, self.config)
            self._groups.reset()
        if self._since_adaptation:  # a flush without news is no step of the rule's clock
            if isinstance(self.rule, CosineRule):
                self.rule.adapt()
                self.memory.fill_index(self.rule.index_above)
            elif len(left := self.rule.adapt()):  # categories that begin where a known class was
                self.memory.append(self.memory.rows(torch.from_numpy(left)))
                self._silent = True
        self._since_adaptation = 0

    def retire(self) -> list[int]:
        """Retire what is out of bounds, right after an adaptation; returns the ids of what people miss by now."""
        if self.bounds.hold(self.memory):
            return []
        kept = self.bounds.kept(self.memory, self.answered)
        if len(kept) == self.memory.size:
            return []
        missed = heard_of(self.memory)
        missed[kept.numpy()] = False
        retired: list[int] = self.memory.ids[torch.from_numpy(missed)].tolist()
        self._keep(kept)
        return retired

    def correct(self, index: int, feature: Tensor, away: int | None, to: int | None) -> None:
        """Learn from a person that the image answered at ``index`` is not of category ``away`` but of ``to``.

        The unit feature ``(D,)`` leaves the one and counts in the other at once; equal ids say that the answer was
        right, and let it count once more. ``None`` is no category. One that is not in the memory starts anew with it.
        """
        here = None if away is None else self.memory.slot(away)
        there = None if to is None else self.memory.slot(to)
        if to is not None and there is None:
            there = self.memory.size
            self.memory.append(feature[None], to)
        elif there is not None:
            nudge(self.memory, there, feature, 1.0, self.config)
        self.rule.correct(index, feature, here, there)
        if there is not None:
            self.memory.counts[there] += 1
            self.memory.last[there] = max(int(self.memory.last[there]), self.answered - 1)
        if here is not None and away != to:
            nudge(self.memory, here, feature, -1.0, self.config)
            self.memory.counts[here] = max(int(self.memory.counts[here]) - 1, 0)

    def heard_of(self) -> list[int]:
        """Return the ids of categories that people have heard of; second thoughts may have begun others."""
        ids: list[int] = self.memory.ids[torch.from_numpy(heard_of(self.memory))].tolist()
        return ids

    def make_way(self, category: int) -> None:
        """Let people have an id that they made a category with; one that nobody has heard of takes another."""
        self.memory.next_id = max(self.memory.next_id, category + 1)
        slot = self.memory.slot(category)
        if slot is not None and not heard_of(self.memory)[slot]:
            name_anew(self.memory, np.array([slot]))

    def go_back(self, state: Mapping[str, Tensor]) -> list[int]:
        """Go on with what an earlier state had learned; answers stay given, and their ids stay theirs.

        Returns the ids of categories that people had heard of and that are no longer in the memory.
        """
        answered, before, next_id = self.answered, set(self.heard_of()), self.memory.next_id
        self.load_state_dict(state)
        self.answered, self._since_adaptation = answered, 0
        self.memory.next_id = max(self.memory.next_id, next_id)
        name_anew(self.memory, np.flatnonzero(~heard_of(self.memory)))  # the ids mean something by now, or may
        self._groups.reset()
        self.rule.forget(answered)
        return sorted(before - set(self.memory.ids.tolist()))

    def _keep(self, slots: Tensor) -> None:
        self.memory.keep(slots)
        self._groups.keep(slots)
        self.rule.keep(slots)

    def second_thoughts(self) -> SecondThoughts | None:
        """Think again about recent images and say what would be answered differently; answers and ids stay.

        Later images meet the categories without what moved: to ask may change what is answered next.
        ``None`` if the rule remembers no images: only the evidence rule does.
        """
        if isinstance(self.rule, CosineRule):
            return None
        self.rule.think_again()
        indices, answers, homes = self.rule.recent.thoughts()
        ids = self.memory.ids.numpy()
        heard = heard_of(self.memory)  # of others nothing is proposed before an image is answered with them
        moved = (answers != homes) & (answers >= 0) & (homes >= 0) & heard[homes]  # nor of retired ones
        columns = (indices[moved].tolist(), ids[answers[moved]].tolist(), ids[homes[moved]].tolist())
        moves = tuple(Move(index, answer, home) for index, answer, home in zip(*columns, strict=True))
        pairs = [pair for pair in self.rule.merges() if heard[list(pair[:2])].all()]
        merges = tuple(Merge(int(ids[first]), int(ids[second]), odds) for first, second, odds in pairs)
        return SecondThoughts(moves, merges, len(indices))

    def state_dict(self) -> dict[str, Tensor]:
        """Return memory, groups and counters as tensors, ready for safetensors."""
        return {
            **{f"memory.{name}": value for name, value in self.memory.state_dict().items()},
            **{f"groups.{name}": value for name, value in self._groups.state_dict().items()},
            **{f"rule.{name}": value for name, value in self.rule.state_dict().items()},
            "answered": torch.tensor(self.answered),
            "since_adaptation": torch.tensor(self._since_adaptation),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where the stream that gave ``state`` was: a stream of the same model, opened with the same settings."""
        by_evidence = any(name.startswith("rule.") for name in state)
        if by_evidence != isinstance(self.rule, EvidenceRule):
            was, now = ("evidence", "a threshold") if by_evidence else ("a threshold", "evidence")
            raise DataError(
                f"the saved stream decided by {was}, this one decides by {now}; open it with the threshold it had."
            )
        self.memory = PrototypeMemory.from_state_dict(section(state, "memory"))
        self._silent = not heard_of(self.memory).all()
        if self.config.half_precision:
            self.memory.halve()
        if self._moves_prototypes:  # earlier versions had groups whatever rule decided
            self._groups.load_state_dict(section(state, "groups"))
        self.rule.load_state_dict(section(state, "rule"))
        self.answered = int(state["answered"])
        self._since_adaptation = int(state["since_adaptation"])

    def decisions(self, assignment: Assignment, sources: Sequence[str], first: int) -> list[Decision]:
        """Turn answers that were just given into decisions with ids and names; ``first`` is the index of the first."""
        return decisions(self._with_ids(assignment), sources, first, self._names, self.rule.threshold, self.rule.unit)

    def _with_ids(self, assignment: Assignment) -> Assignment:
        """Put ids in the place of slots; one that was only looked at may be past the end."""
        return replace(assignment, ids=self._ids(assignment.ids), runner_ups=self._ids(assignment.runner_ups))

    def _ids(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the ids ``(B,)`` of slots; -1 is nobody, and whatever is past the end will be the next one."""
        ids = np.where(slots < 0, -1, self.memory.next_id)
        there = (slots >= 0) & (slots < self.memory.size)
        ids[there] = self.memory.ids.numpy()[slots[there]]
        return ids

    def _observe(self, features: Tensor, sources: list[str]) -> list[Decision]:
        answers: list[Decision] = []
        while len(answers) < len(features):
            start = len(answers)
            end = start + min(self.room, CHUNK)
            first = self.answered
            assignment = self.place(features[start:end])
            answers += self.decisions(assignment, sources[start:end], first)
            if self.room == 0:
                self.adapt()
                self.retire()
        return answers

    def _unit(self, features: Tensor) -> Tensor:
        if features.shape[1] != self.memory.feature_size:
            raise DataError(
                f"features have {features.shape[1]} dimensions, the memory has {self.memory.feature_size}; "
                "use the encoder that made the known features."
            )
        return unit(features)


def section(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the part of a state whose names start with ``name.``, without it."""
    return {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}


def unit(raw_features: Tensor) -> Tensor:
    """Scale features ``(B, D)`` to unit length; zero, NaN and infinity are refused because they have no direction."""
    if not raw_features.shape[1]:
        raise DataError(f"features of the shape {tuple(raw_features.shape)} have no numbers.")
    largest = raw_features.abs().amax(dim=1, keepdim=True)
    bad = ~torch.isfinite(largest[:, 0]) | (largest[:, 0] == 0)
    if bad.any():
        row = int(bad.nonzero()[0])
        found = "all zero" if largest[row] == 0 else "not finite as float32"
        raise DataError(f"feature {row} is {found} and has no direction; leave it out, or look at its encoder.")
    return F.normalize(raw_features / largest, dim=1)  # whatever their length: squares can't over- or underflow


def matrix(values: FeatureArray | Sequence[float], rows: bool = True) -> Tensor:
    """Return vectors of any library, type and layout as float32 ``(N, D)``; without ``rows`` there is one, ``(D,)``."""
    tensor = values if isinstance(values, Tensor) else _from_numpy(values)
    tensor = tensor.detach().to("cpu", torch.float32)
    wanted = 2 if rows else 1
    if tensor.ndim != wanted:
        shape = "(N, D)" if rows else "(D,)"
        raise DataError(f"features must have the shape {shape}, got {tuple(tensor.shape)}.")
    return tensor if rows else tensor[None]


def _from_numpy(values: npt.ArrayLike) -> Tensor:
    """Copy only what torch can't take: foreign byte orders, backward strides, memory that is read-only."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"features must be rows of one length ({error}).") from error
    if array.dtype.kind not in "fiub":
        raise DataError(f"features must be real numbers, got an array of {array.dtype}.")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused by name
        return torch.from_numpy(np.require(array, np.float32, ["C", "W"]))
