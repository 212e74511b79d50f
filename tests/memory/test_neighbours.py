"""The index over many prototypes: it must answer as exact search does, whatever happens to the memory."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.config import OnlineConfig
from talon_ocd.memory import CandidateIndex, PrototypeMemory, neighbours
from talon_ocd.memory.search import Floats, Ints, best_two
from talon_ocd.online import Bounds, FeatureStream
from talon_ocd.online.rules import CosineRule

pytest.importorskip("usearch", reason="the index needs usearch: pip install 'talon-ocd[index]'")
SIZE = 24
TAU = 0.7
LITTLE = neighbours.CLOSE / 2


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put prototypes into the graph soon, as a memory of a million does not."""
    monkeypatch.setattr(neighbours, "WAITING", 8)


def unit_rows(rows: int, seed: int, size: int = SIZE) -> Tensor:
    return F.normalize(torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)), dim=1)


def around(centres: Tensor, noise: float, seed: int) -> Tensor:
    return F.normalize(centres + noise * unit_rows(len(centres), seed, centres.shape[1]), dim=1)


def indexed(prototypes: Tensor) -> PrototypeMemory:
    """Return a memory whose prototypes are in the graph, but for a few."""
    memory = PrototypeMemory(prototypes)
    graph = memory.index()
    assert graph is not None
    graph.catch_up(memory.stored, len(prototypes), neighbours.WAITING)
    return memory


def graph_of(memory: PrototypeMemory) -> CandidateIndex:
    assert memory._index is not None
    return memory._index


def agree(memory: PrototypeMemory, features: Tensor, threshold: float = TAU) -> None:
    """Check id and cosine of the nearest."""
    exact, found = memory.nearest(features), memory.nearest_for(features, threshold, 1)
    assert torch.equal(found.ids[:, 0], exact.ids[:, 0])
    assert torch.equal(found.similarities[:, 0], exact.similarities[:, 0])


def test_it_finds_what_exact_search_finds() -> None:
    prototypes = unit_rows(3000, 0)
    memory = indexed(prototypes)
    assert graph_of(memory).indexed == 3000 - neighbours.WAITING
    agree(memory, torch.cat([around(prototypes[:200], 0.4, 1), unit_rows(50, 2)]))
    agree(memory, prototypes[-1:])  # it waits outside, and one feature goes alone


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_a_handful_of_prototypes_is_found_too(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "WAITING", 0)
    memory = PrototypeMemory(unit_rows(size, 0))
    found, exact = memory.nearest_for(unit_rows(7, 1), TAU, 1), memory.nearest(unit_rows(7, 1))
    assert torch.equal(found.ids, exact.ids)
    assert torch.equal(found.similarities, exact.similarities)


def test_below_the_crossover_there_is_no_index() -> None:
    memory = PrototypeMemory(unit_rows(20, 0))
    for index_above in (0, 21):
        memory.nearest_for(unit_rows(3, 1), TAU, index_above)
        assert memory._index is None
    memory.nearest_for(unit_rows(3, 1), TAU, 20)
    assert graph_of(memory).indexed == 20 - neighbours.WAITING


def test_it_fills_itself_search_by_search() -> None:
    memory = PrototypeMemory(unit_rows(100, 0))
    for filled in (24, 48, 72, 92, 92):
        agree(memory, unit_rows(3, filled))
        assert graph_of(memory).indexed == filled
    assert memory.nearest_for(unit_rows(0, 0), TAU, 1).ids.shape == (0, 2)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.2, 1.2))
def test_streams_answer_as_with_exact_search(seed: int, noise: float) -> None:
    """New ones arrive inside a batch, prototypes move, categories retire: ids stay those of exact search."""
    classes = unit_rows(120, seed)
    chosen = torch.randint(120, (400,), generator=torch.Generator().manual_seed(seed))
    images = around(classes[chosen], noise, seed + 1)
    answers = []
    for index_above in (0, 1):
        config = OnlineConfig(threshold=TAU, adapt=("prototypes",), index_above=index_above, adapt_every=32)
        bounds = Bounds(most_categories=100, retire_after=150)
        stream = FeatureStream(PrototypeMemory(classes[:60]), config, bounds=bounds)
        answers.append([(found.category, found.verdict) for found in stream.observe_many(images)])
    assert answers[0] == answers[1]


@pytest.mark.parametrize(("at_once", "outside"), [(0, 100), (8, 0)])
def test_what_moves_far_is_found_where_it_is(at_once: int, outside: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "AT_ONCE", at_once)
    prototypes = unit_rows(2000, 0)
    memory = indexed(prototypes)
    slots, places = torch.arange(0, 100), unit_rows(100, 5)
    memory.replace(slots, places)
    agree(memory, around(places, 0.3, 6))
    assert len(graph_of(memory)._moved) == outside
    agree(memory, around(prototypes[:100], 0.3, 8))


def test_small_moves_leave_the_graph_alone_until_they_add_up() -> None:
    prototypes = unit_rows(500, 0)
    memory, slots = indexed(prototypes), torch.arange(40)
    step = neighbours.FAR / 3.5
    for count in range(1, 5):
        here = memory.rows(slots)
        side = unit_rows(40, count)
        side = F.normalize(side - (side * here).sum(dim=1, keepdim=True) * here, dim=1)
        memory.replace(slots, np.cos(step) * here + np.sin(step) * side)
        assert len(graph_of(memory)._moved) == (0 if count < 4 else 40)
        assert torch.equal(graph_of(memory).nearest_two(here, memory.stored, TAU).ids, memory.nearest(here).ids)


def test_retired_categories_are_never_proposed() -> None:
    prototypes = unit_rows(2000, 0)
    memory = indexed(prototypes)
    memory.replace(torch.tensor([3, 4, 1990]), unit_rows(3, 4))
    kept = torch.arange(0, 2000, 3)
    memory.keep(kept)
    agree(memory, around(prototypes[:300], 0.3, 1))
    memory.append(prototypes[1:200:3])
    agree(memory, around(prototypes[:300], 0.3, 1))
    memory.keep(torch.arange(2))
    agree(memory, unit_rows(20, 9))


def misled(memory: PrototypeMemory, monkeypatch: pytest.MonkeyPatch, blind: set[int]) -> CandidateIndex:
    """Let the graph miss some prototypes for ever."""
    index = graph_of(memory)
    propose = index._propose
    monkeypatch.setattr(
        index, "_propose", lambda wide, look: np.where(np.isin(found := propose(wide, look), list(blind)), -1, found)
    )
    return index


def at_cosine(direction: Tensor, cosine: float, side: Tensor) -> Tensor:
    """Return the unit vector in the plane of two orthogonal ones that has this cosine with the first."""
    return F.normalize(cosine * direction + (1 - cosine**2) ** 0.5 * side, dim=0)


@pytest.mark.parametrize(
    ("missed", "second", "corrected"),
    [
        (TAU + LITTLE, TAU - LITTLE, True),  # just below the threshold: exact search finds the one above it
        (TAU + 0.1, TAU + LITTLE, True),  # just above
        (0.96, 0.95, False),  # far above, and nothing else is close: what the graph misses goes unnoticed
    ],
)
def test_close_to_the_threshold_exact_search_decides(
    missed: float, second: float, corrected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = torch.eye(SIZE)
    best, other = at_cosine(axes[0], missed, axes[1]), at_cosine(axes[0], second, axes[2])
    memory = PrototypeMemory(torch.cat([best[None], other[None], axes[3:20]]))
    memory.nearest_for(axes[20:21], TAU, 1)
    graph = misled(memory, monkeypatch, {0})
    found = memory.nearest_for(axes[:1], TAU, 1).ids[0, 0]
    assert int(found) == (0 if corrected else 1)
    assert graph.exact_rows == int(corrected)


def test_between_close_candidates_exact_search_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    axes = torch.eye(SIZE)
    three = [at_cosine(axes[0], 0.95 - place * LITTLE, axes[place]) for place in (1, 2, 3)]
    memory = PrototypeMemory(torch.cat([torch.stack(three), axes[4:20]]))
    memory.nearest_for(axes[4:5], TAU, 1)
    graph = misled(memory, monkeypatch, {0})
    assert memory.nearest_for(axes[:1], TAU, 1).ids.tolist() == [[0, 1]]
    assert graph.exact_rows == 1


def test_before_a_category_is_founded_the_graph_is_searched_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    prototypes = unit_rows(500, 0)
    memory = indexed(prototypes)
    looks: list[tuple[int, int]] = []
    graph = graph_of(memory)
    propose = graph._propose

    def noted(wide: Floats, look: int) -> Ints:
        looks.append((len(wide), look))
        return propose(wide, look)

    monkeypatch.setattr(graph, "_propose", noted)
    agree(memory, torch.cat([around(prototypes[:5], 0.1, 1), unit_rows(3, 2)]), threshold=0.95)
    assert looks == [(8, neighbours.FIRST_LOOK), (3, neighbours.SECOND_LOOK)]


def test_the_same_calls_give_the_same_graph() -> None:
    first, second = (indexed(unit_rows(1500, 0)) for _ in range(2))
    features = unit_rows(64, 1).numpy()
    assert np.array_equal(graph_of(first)._propose(features, 16), graph_of(second)._propose(features, 16))


def test_half_precision_is_held_learned_and_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = unit_rows(300, 0)
    images = around(classes[torch.randint(300, (600,), generator=torch.Generator().manual_seed(1))], 0.5, 2)
    streams = []
    for half, index_above in ((False, 0), (True, 0), (True, 1)):
        config = OnlineConfig(threshold=TAU, index_above=index_above, half_precision=half)
        streams.append(FeatureStream(PrototypeMemory(classes[:200]), config))
    answers = [[found.category for found in stream.observe_many(images)] for stream in streams]
    assert answers[0] == answers[1] == answers[2]
    state = streams[1].memory.state_dict()
    assert state["prototypes"].dtype == torch.float16
    assert torch.equal(PrototypeMemory.from_state_dict(state).prototypes, streams[1].memory.prototypes)
    torch.testing.assert_close(streams[1].memory.prototypes, streams[0].memory.prototypes, atol=2e-3, rtol=0)
    monkeypatch.setattr("talon_ocd.memory.search.WIDENED", 7)
    agree(streams[1].memory, images)


def test_without_usearch_exact_search_goes_on_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    neighbours._usearch.cache_clear()
    memory, features = PrototypeMemory(unit_rows(50, 0)), unit_rows(5, 1)
    try:
        with pytest.warns(UserWarning, match=r"pip install 'talon-ocd\[index\]'"):
            found = memory.nearest_for(features, TAU, 1)
        assert torch.equal(found.ids, memory.nearest(features).ids)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            memory.nearest_for(features, TAU, 1)
            PrototypeMemory(unit_rows(50, 0)).nearest_for(features, TAU, 1)
    finally:
        neighbours._usearch.cache_clear()


def test_following_takes_what_was_told_unless_it_can_not_be() -> None:
    memory = PrototypeMemory(unit_rows(30, 0))
    memory.keep(torch.arange(1, 30))  # ids and slots differ
    rule = CosineRule(TAU, index_above=1)
    features = torch.cat([memory.rows(torch.tensor([4])), unit_rows(1, 3), memory.rows(torch.tensor([7]))])
    features = torch.cat([features, features[1:2]])
    followed = rule.follow(features, memory, [5, 30, 8, 30])
    assert followed is not None
    assert followed.ids.tolist() == [4, 29, 7, 29]
    assert followed.founded.tolist() == [False, True, False, False]
    assert rule.follow(features, memory, [6, 30, 8, 30]) is None  # too far away
    assert rule.follow(features, memory, [5, 31, 8, 31]) is None  # not the next id
    assert rule.follow(features, memory, [0, 30, 8, 30]) is None  # retired
    assert rule.follow(unit_rows(2, 4), memory, [31, 30]) is None  # founded out of order
    assert CosineRule(TAU).follow(features, memory, [5, 30, 8, 30]) is None  # exact search must come to the same


@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 9), st.integers(0, 10_000))
def test_best_two_leaves_out_nobody_and_doubles(size: int, batch: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    prototypes, features = unit_rows(size, seed), unit_rows(batch, seed + 1)
    candidates = random.integers(-1, size, (batch, width))
    found = best_two(features.numpy(), prototypes.numpy(), candidates)
    cosines = (features.double() @ prototypes.double().T).numpy()
    for row in range(batch):
        wanted = sorted({int(place) for place in candidates[row] if place >= 0}, key=lambda place: -cosines[row, place])
        assert found.ids[row].tolist() == [*wanted, -1, -1][:2]
