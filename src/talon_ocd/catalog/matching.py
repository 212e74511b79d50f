"""Which discovered categories of two sites are one (layer: catalog).

A pair is looked at when each of the two is the other's best match, or when people gave both one name. Whether it is
rather one than two follows from prototypes and counts, by the stream's own rule: the log-odds, or the cosine, must
reach what an image must reach to join. Then exemplars vote: what would either site have answered to the other's images?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from torch import Tensor

from talon_ocd.catalog.reading import CatalogReader
from talon_ocd.catalog.views import SUPPORT
from talon_ocd.memory.merges import odds_of_one
from talon_ocd.memory.two_covariance import Floats
from talon_ocd.online import EvidenceRule, FeatureStream

Verdict = Literal["same", "unsure", "different"]
EXEMPLARS = 16
"""Stored features of a category that vote: its newest ones."""
BLOCK = 512
"""Categories of one site that are compared with all of the other at once."""
SURE, ASKED = 0.5, 0.25
"""Share of exemplars, of both sides, from which on nobody is asked; of one side, below which nobody is asked either."""
LEAST_EXEMPLARS = 4
"""Exemplars of both sides from which on nobody is asked: two or three may agree by chance."""


@dataclass(frozen=True)
class Group:
    """Discovered categories of some sites that are one already, by what people there said.

    Attributes:
        end: the category that they have become.
        members: their ids, discovered ones only.
        total: sum of what the rule knows of them: coordinates, or prototypes times counts.
        count: members of all.
    """

    end: int
    members: tuple[int, ...]
    total: Floats
    count: float


@dataclass(frozen=True)
class Match:
    """Two categories that may be one.

    Attributes:
        first: of an earlier site, as it is by now.
        second: of the site that is matched.
        score: log-odds that they are one, in nats, or by how much the cosine of their centres is above the threshold.
        unit: of the score: ``log-odds`` or ``cosine``.
        votes: share of the second one's exemplars that the first one's site would answer with the first one, and of the
            first one's that the second one's site would answer with the second one.
        exemplars: how many have voted, second one's first.
        verdict: what follows.
        why: what makes it unsure.
    """

    first: int
    second: int
    score: float
    unit: str
    votes: tuple[float, float]
    exemplars: tuple[int, int]
    verdict: Verdict
    why: str = ""


class Voter(Protocol):
    """A site that can be asked."""

    def answers(self, features: Tensor) -> Sequence[int]:
        """Return what it would answer to unit features ``(N, D)``, each as if it came next.

        In ids of the join; -1 for a new one.
        """


def groups(catalog: CatalogReader, stream: FeatureStream, ids: Sequence[int]) -> list[Group]:
    """Return the groups of some discovered categories that are in the memory and have members."""
    known, chosen = stream.memory.known, set(ids)
    found: dict[int, list[int]] = {}
    for slot, category in enumerate(stream.memory.ids.tolist()):
        if slot >= known and category in chosen:
            found.setdefault(catalog.resolve(category), []).append(slot)
    made = [_group(stream, end, slots) for end, slots in found.items()]
    return [group for group in made if group.count > 0]


def _group(stream: FeatureStream, end: int, slots: Sequence[int]) -> Group:
    rule, members = stream.rule, tuple(stream.memory.ids[list(slots)].tolist())
    if isinstance(rule, EvidenceRule):
        return Group(end, members, rule.beliefs.sums[slots].sum(axis=0), float(rule.beliefs.counts[slots].sum()))
    counts = stream.memory.counts[list(slots)].double()
    total = (stream.memory.prototypes[list(slots)].double() * counts[:, None]).sum(dim=0)
    return Group(end, members, total.numpy(), float(counts.sum()))


def mutual_best(stream: FeatureStream, left: Sequence[Group], right: Sequence[Group]) -> dict[tuple[int, int], float]:
    """Return the pairs of positions that are each other's best match, with their score."""
    if not left or not right:
        return {}
    best_left, best_right = np.full(len(left), -np.inf), np.full(len(right), -np.inf)
    at_left, at_right = np.zeros(len(left), np.int64), np.zeros(len(right), np.int64)
    for start in range(0, len(left), BLOCK):
        part = slice(start, start + BLOCK)
        scores = pair_scores(stream, left[part], right)
        best_left[part], at_left[part] = scores.max(axis=1), scores.argmax(axis=1)
        better = scores.max(axis=0) > best_right
        at_right[better] = start + scores.argmax(axis=0)[better]
        best_right[better] = scores.max(axis=0)[better]
    own = np.flatnonzero(at_right[at_left] == np.arange(len(left)))
    return {(place, int(at_left[place])): float(best_left[place]) for place in own.tolist()}


def pair_scores(stream: FeatureStream, left: Sequence[Group], right: Sequence[Group]) -> Floats:
    """Return how much groups look like one ``(P, Q)``: log-odds, or cosine above the threshold."""
    totals = [np.stack([group.total for group in side]) for side in (left, right)]
    if isinstance(stream.rule, EvidenceRule):
        counts = [np.array([group.count for group in side]) for side in (left, right)]
        return odds_of_one(stream.rule.beliefs.model, counts[0], totals[0], counts[1], totals[1])
    units = [total / np.sqrt((total**2).sum(axis=1, keepdims=True)).clip(min=1e-12) for total in totals]
    cosines: Floats = units[0] @ units[1].T - stream.rule.threshold
    return cosines


class Matcher:
    """Looks at pairs of groups of two sides; ``voters`` are the sites, ``site_of`` tells whose a category is."""

    def __init__(
        self, catalog: CatalogReader, stream: FeatureStream, voters: Mapping[str, Voter], site_of: Mapping[int, str]
    ) -> None:
        self._catalog, self._stream, self._voters, self._site_of = catalog, stream, voters, site_of

    def matches(self, earlier: Sequence[int], later: Sequence[int]) -> Iterator[Match]:
        """Yield the pairs of an earlier and a later site's categories that are one, or may be; surest first."""
        left, right = (groups(self._catalog, self._stream, ids) for ids in (earlier, later))
        one_already = {group.end for group in left} & {group.end for group in right}
        left, right = ([group for group in side if group.end not in one_already] for side in (left, right))
        pairs = mutual_best(self._stream, left, right)
        for one, two in self._same_names(left, right):
            pairs.setdefault((one, two), float(pair_scores(self._stream, [left[one]], [right[two]])[0, 0]))
        refused = self._catalog.refusals()
        for (one, two), score in sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0])):
            first, second = left[one], right[two]
            if (min(first.end, second.end), max(first.end, second.end)) not in refused:
                match = self._match(first, second, score)
                if match.verdict != "different":
                    yield match

    def _same_names(self, left: Sequence[Group], right: Sequence[Group]) -> Iterator[tuple[int, int]]:
        named = {self._name(group): place for place, group in enumerate(left)}
        for place, group in enumerate(right):
            name = self._name(group)
            if name is not None and name in named:
                yield named[name], place

    def _name(self, group: Group) -> str | None:
        """Return what people call a group."""
        category = self._catalog.get(group.end, exemplars=0)
        return category.name if category.named or category.kind == "known" else None

    def _match(self, first: Group, second: Group, score: float) -> Match:
        there, back = self._votes(first, second), self._votes(second, first)
        votes = there[0], back[0]
        facts = (first.end, second.end, score, self._stream.rule.unit, votes, (there[1], back[1]))
        names = self._name(first), self._name(second)
        fewest = min(there[1], back[1])
        alike = score >= 0.0 and max(votes) >= ASKED and fewest >= SUPPORT
        one_name = names[0] is not None and names[0] == names[1]
        if not alike and not one_name:
            return Match(*facts, "different")
        why = self._doubt(first, second, names)
        sure = score >= 0.0 and min(votes) >= SURE and fewest >= LEAST_EXEMPLARS
        if not why and (sure or (one_name and alike)):
            return Match(*facts, "same")
        return Match(*facts, "unsure", why or _why(alike, votes))

    def _doubt(self, first: Group, second: Group, names: tuple[str | None, str | None]) -> str:
        """Say why people must be asked, however alike two groups are."""
        if None not in names and names[0] != names[1]:
            return f"people call them {names[0]!r} and {names[1]!r}"
        hidden = [self._catalog.get(group.end, exemplars=0).state == "hidden" for group in (first, second)]
        return "one of them is hidden" if hidden[0] != hidden[1] else ""

    def _votes(self, asked: Group, shown: Group) -> tuple[float, int]:
        """Return the share of a group's exemplars that another group's site would answer with that one."""
        features = self._exemplars(shown)
        sites = [self._site_of[category] for category in asked.members]
        voter = self._voters[max(sites, key=sites.count)]
        if not len(features):
            return 0.0, 0
        found = [self._catalog.resolve(answer) if answer >= 0 else answer for answer in voter.answers(features)]
        return found.count(asked.end) / len(found), len(found)

    def _exemplars(self, group: Group) -> Tensor:
        journal = self._catalog.journal
        newest: list[int] = []
        for category in group.members:
            rows = journal.query(
                "SELECT idx FROM decisions JOIN features USING (idx) WHERE home = ? ORDER BY idx DESC LIMIT ?",
                (category, EXEMPLARS),
            )
            newest += [row["idx"] for row in rows]
        return journal.features(sorted(newest, reverse=True)[:EXEMPLARS])[1]


def _why(alike: bool, votes: tuple[float, float]) -> str:
    """Say why a pair is not sure."""
    if not alike:
        return "people gave them one name, but they do not look alike"
    return "they have too few images" if min(votes) >= SURE else "they look alike, but not all of their images do"
