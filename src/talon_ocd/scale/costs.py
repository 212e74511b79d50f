"""What images, features and answers cost, and what follows for a network of many machines (layer: scale).

Plain sums over constants that ``benchmarks/owner.py`` and ``benchmarks/large_memory.py`` measured; ``docs/scale.md``
explains them. Nothing here was tried on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log

BUSY = 0.8
"""Share of the time that encoders, owners and network cards are planned to work: the rest is for stragglers."""
REGIONS_UNEVEN = 1.25
"""Load of the fullest region over that of the mean one, if there are several owners; assumed."""
BOUNDARY = 0.2
"""Share of features that a second owner is asked about, if there are several; assumed."""
REPLICATED = 0.2
"""Share of prototypes that a neighbouring region holds as well, if there are several; assumed."""
CARD_GBIT = 25.0
"""A network card."""
DAY = 86_400
FEW_LISTED, MANY_LISTED, LISTED_SIZE = 100_000, 1_000_000, 256
"""Prototypes, fewer and more, and numbers of a vector, with which an index of lists was measured."""


@dataclass(frozen=True)
class Costs:
    """Seconds of one processor core, and bytes; ``docs/scale.md`` says where each comes from."""

    product_seconds: float = 1.4e-11
    """One multiply-add of the matrix product that compares features with prototypes."""
    beside_seconds: float = 37e-6
    """All else that deciding and remembering one feature takes."""
    few_listed_seconds: float = 300e-6
    """One feature of an owner with an index of lists over ``FEW_LISTED`` prototypes: deciding and remembering."""
    many_listed_seconds: float = 570e-6
    """The same over ``MANY_LISTED``."""
    journal_seconds: float = 52e-6
    """Writing one answer down, snapshots included."""
    learning_seconds: float = 3.1e-3
    """One image of an owner that adapts its encoder, EfficientNet-Lite0: head, loss, gradient, step."""
    decode_seconds: float = 6.3e-3
    """One JPEG of 640 x 480."""
    encode_seconds: float = 19e-3
    """Trunk and head of EfficientNet-Lite0 on one image."""
    image_bytes: int = 100_000
    """That JPEG."""
    number_bytes: int = 4
    """One number of a feature on its way to the owner."""
    answer_bytes: int = 200
    """What stays of an answer in the journal, for ever."""

    def owner_seconds(self, prototypes: float, size: int, journal: bool = True) -> float:
        """Return the owner's time for one feature of ``size`` numbers in front of so many prototypes.

        It searches them all, or with an index of lists where that is faster (``online.index_above``).
        """
        exact = self.product_seconds * prototypes * size
        searched = min(exact, self._listed_seconds(prototypes, size)) if prototypes else exact
        return searched + self.beside_seconds + (self.journal_seconds if journal else 0.0)

    def _listed_seconds(self, prototypes: float, size: int) -> float:
        """Return what searching with an index takes: a power of the prototypes, and as many times as numbers."""
        few, many = (seconds - self.beside_seconds for seconds in (self.few_listed_seconds, self.many_listed_seconds))
        power = log(many / few) / log(MANY_LISTED / FEW_LISTED)
        seconds: float = few * (prototypes / FEW_LISTED) ** power * size / LISTED_SIZE
        return seconds

    def owner_rate(self, prototypes: float, size: int, journal: bool = True) -> float:
        """Return the features a second that one owner can take.

        >>> round(Costs(product_seconds=1e-11, beside_seconds=2e-5).owner_rate(10_000, 800, journal=False))
        10000
        """
        return 1.0 / self.owner_seconds(prototypes, size, journal)

    def full_at(self, images_a_second: float, size: int, journal: bool = True) -> int:
        """Return the prototypes up to which one owner is no busier than planned; 0 if it is so without any."""
        most = BUSY / images_a_second
        return _smallest(lambda prototypes: self.owner_seconds(prototypes, size, journal) > most) - 1

    @property
    def encoder_rate(self) -> float:
        """Images a second that one core decodes and encodes."""
        return 1.0 / (self.decode_seconds + self.encode_seconds)


@dataclass(frozen=True)
class Plan:
    """What a stream of so many images a second needs.

    Attributes:
        images_a_second: to be answered.
        prototypes: categories in all memories, copies at the edges of regions not counted.
        encoders: processes.
        owners: processes, one core each; more than one divide the feature space.
        prototypes_each: of one owner, copies included.
        owner_busy: share of the time that the owner of the fullest region works.
        images_gbit: gigabits a second of images to all encoders.
        features_gbit: the same, features to all owners.
        cards: network cards, if images come over the network.
        journal_gigabytes_a_day: of all owners together, kept for ever.
    """

    images_a_second: float
    prototypes: int
    encoders: int
    owners: int
    prototypes_each: int
    owner_busy: float
    images_gbit: float
    features_gbit: float
    cards: int
    journal_gigabytes_a_day: float


def plan(
    images_a_second: float,
    prototypes: int,
    size: int = 768,
    encoder_rate: float | None = None,
    costs: Costs | None = None,
) -> Plan:
    """Plan encoders, owners and network for a stream; ``encoder_rate`` are images a second of one encoder.

    >>> plan(1_000, 10_000, encoder_rate=50.0).encoders
    25
    """
    costs = costs or Costs()
    rate = encoder_rate or costs.encoder_rate

    def busy(owners: int) -> float:
        return owner_load(costs, images_a_second, prototypes, size, owners)

    owners = _smallest(lambda number: busy(number) <= BUSY)
    images_gbit = 8e-9 * images_a_second * costs.image_bytes
    asked = 1.0 + (BOUNDARY if owners > 1 else 0.0)
    features_gbit = 8e-9 * images_a_second * asked * costs.number_bytes * size
    return Plan(
        images_a_second=images_a_second,
        prototypes=prototypes,
        encoders=ceil(images_a_second / rate / BUSY),
        owners=owners,
        prototypes_each=ceil(held_by_each(prototypes, owners)),
        owner_busy=busy(owners),
        images_gbit=images_gbit,
        features_gbit=features_gbit,
        cards=ceil((images_gbit + features_gbit) / (BUSY * CARD_GBIT)),
        journal_gigabytes_a_day=1e-9 * DAY * images_a_second * costs.answer_bytes,
    )


def owner_load(costs: Costs, images_a_second: float, prototypes: int, size: int, owners: int) -> float:
    """Return the seconds of work that come to the owner of the fullest region in a second."""
    seconds = costs.owner_seconds(held_by_each(prototypes, owners), size)
    if owners == 1:
        return images_a_second * seconds
    return REGIONS_UNEVEN * (1.0 + BOUNDARY) * images_a_second / owners * seconds


def held_by_each(prototypes: int, owners: int) -> float:
    """Return the prototypes of one owner; those near the edge of its region are copies of a neighbour's."""
    return prototypes if owners == 1 else prototypes * (1.0 + REPLICATED) / owners


def _smallest(enough: Callable[[int], bool]) -> int:
    """Return the smallest number that is enough, where every larger one is, too."""
    high = 1
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
