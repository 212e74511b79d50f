"""The index over many prototypes: it must answer as exact search does, whatever happens to the memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.config import OnlineConfig
from talon_ocd.memory import CandidateIndex, PrototypeMemory, lists, neighbours
from talon_ocd.memory.search import Floats, Ints, best_two
from talon_ocd.online import Bounds, FeatureStream

SIZE = 24
TAU = 0.7
LITTLE = neighbours.CLOSE / 2


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have as many lists in a memory of a thousand as one of many thousands has."""
    monkeypatch.setattr(lists, "LONG", 16)


def unit_rows(rows: int, seed: int, size: int = SIZE) -> Tensor:
    return F.normalize(torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)), dim=1)


def around(centres: Tensor, noise: float, seed: int) -> Tensor:
    return F.normalize(centres + noise * unit_rows(len(centres), seed, centres.shape[1]), dim=1)


def indexed(prototypes: Tensor) -> PrototypeMemory:
    """Return a memory whose prototypes are all in the index."""
    memory = PrototypeMemory(prototypes)
    while memory.fill_index(1):
        pass
    return memory


def index_of(memory: PrototypeMemory) -> CandidateIndex:
    assert memory.index is not None
    return memory.index


def agree(memory: PrototypeMemory, features: Tensor, threshold: float = TAU) -> None:
    """Check id and cosine of the nearest."""
    exact, found = memory.nearest(features), memory.nearest_for(features, threshold, 1)
    assert torch.equal(found.ids[:, 0], exact.ids[:, 0])
    assert torch.equal(found.similarities[:, 0], exact.similarities[:, 0])


def test_it_finds_what_exact_search_finds() -> None:
    prototypes = unit_rows(3000, 0)
    memory = indexed(prototypes[:2990])
    memory.append(prototypes[2990:])
    assert index_of(memory).indexed == 2990
    agree(memory, torch.cat([around(prototypes[:200], 0.4, 1), unit_rows(50, 2)]))
    agree(memory, prototypes[-1:])  # it waits outside, and one feature goes alone
    assert memory.nearest_for(unit_rows(0, 0), TAU, 1).ids.shape == (0, 2)


@pytest.mark.parametrize("size", [1, 2, 5, 9, 17])
def test_a_handful_of_prototypes_is_found_too(size: int) -> None:
    memory = indexed(unit_rows(size, 0))
    found, exact = memory.nearest_for(unit_rows(7, 1), TAU, 1), memory.nearest(unit_rows(7, 1))
    assert torch.equal(found.ids, exact.ids)
    assert torch.equal(found.similarities, exact.similarities)


def test_below_the_crossover_there_is_no_index() -> None:
    memory = PrototypeMemory(unit_rows(20, 0))
    for index_above in (0, 21):
        assert memory.fill_index(index_above) == 0
        assert memory.index is None
    assert memory.fill_index(20) == 20


def test_it_is_filled_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "AT_ONCE", 40)
    memory = PrototypeMemory(unit_rows(100, 0))
    agree(memory, unit_rows(3, 0))
    for filled in (40, 80, 100, 100):
        memory.fill_index(1)
        assert index_of(memory).indexed == filled
        agree(memory, unit_rows(30, filled))


def test_looking_changes_nothing_and_learning_fills() -> None:
    config = OnlineConfig(threshold=TAU, adapt_every=8, index_above=1)
    stream = FeatureStream(PrototypeMemory(unit_rows(50, 0)), config)
    stream.observe_many(unit_rows(7, 1))
    assert stream.memory.index is None
    stream.observe_many(unit_rows(1, 2))
    before, founded = stream.memory.state_dict(), stream.memory.size
    assert index_of(stream.memory).indexed == founded > 50
    stream.look(unit_rows(20, 3))
    stream.decide(unit_rows(1, 4)[0])
    after = stream.memory.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before | after)
    stream.adapt()  # nothing was answered: a replay would not know of it
    assert index_of(stream.memory).indexed == founded


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


def test_what_moves_is_found_where_it_is() -> None:
    prototypes = unit_rows(2000, 0)
    memory = indexed(prototypes[:1990])
    memory.append(prototypes[1990:])
    slots, places = torch.cat([torch.arange(0, 100), torch.arange(1985, 2000)]), unit_rows(115, 5)
    memory.replace(slots, places)
    agree(memory, around(places, 0.3, 6))
    agree(memory, around(prototypes[:100], 0.3, 8))
    nearby = around(memory.rows(slots), 0.05, 9)
    memory.replace(slots, nearby)
    agree(memory, nearby)


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
    """Let the index miss some prototypes for ever."""
    index = index_of(memory)
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
        (0.96, 0.95, False),  # far above, and nothing else is close: what the index misses goes unnoticed
    ],
)
def test_close_to_the_threshold_exact_search_decides(
    missed: float, second: float, corrected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = torch.eye(SIZE)
    best, other = at_cosine(axes[0], missed, axes[1]), at_cosine(axes[0], second, axes[2])
    memory = PrototypeMemory(torch.cat([best[None], other[None], axes[3:20]]))
    memory.fill_index(1)
    index = misled(memory, monkeypatch, {0})
    found = memory.nearest_for(axes[:1], TAU, 1).ids[0, 0]
    assert int(found) == (0 if corrected else 1)
    assert index.exact_rows == int(corrected)


def test_between_close_candidates_exact_search_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    axes = torch.eye(SIZE)
    three = [at_cosine(axes[0], 0.95 - place * LITTLE, axes[place]) for place in (1, 2, 3)]
    memory = PrototypeMemory(torch.cat([torch.stack(three), axes[4:20]]))
    memory.fill_index(1)
    index = misled(memory, monkeypatch, {0})
    assert memory.nearest_for(axes[:1], TAU, 1).ids.tolist() == [[0, 1]]
    assert index.exact_rows == 1


def test_before_a_category_is_founded_many_more_lists_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    prototypes = unit_rows(500, 0)
    memory = indexed(prototypes)
    looks: list[tuple[int, int]] = []
    index = index_of(memory)
    propose = index._propose

    def noted(wide: Floats, look: int) -> Ints:
        looks.append((len(wide), look))
        return propose(wide, look)

    monkeypatch.setattr(index, "_propose", noted)
    agree(memory, torch.cat([around(prototypes[:5], 0.1, 1), unit_rows(3, 2)]), threshold=0.95)
    assert looks == [(8, neighbours.FIRST_LOOK), (3, neighbours.SECOND_LOOK)]


def test_a_saved_memory_goes_on_with_the_very_same_index() -> None:
    """Also when the index had begun, when prototypes had moved, and in half precision."""
    classes = unit_rows(400, 0)
    images = around(classes[torch.randint(400, (480,), generator=torch.Generator().manual_seed(1))], 0.6, 2)
    for half in (False, True):
        config = OnlineConfig(threshold=TAU, adapt_every=32, index_above=1, half_precision=half)
        whole = FeatureStream(PrototypeMemory(classes[:200]), config)
        whole.observe_many(images[:200])
        again = FeatureStream(PrototypeMemory(classes[:200]), config)
        again.load_state_dict(whole.state_dict())
        for stream in (whole, again):
            stream.observe_many(images[200:])
        one, other = whole.state_dict(), again.state_dict()
        assert one.keys() == other.keys()
        assert "memory.index.lists" in one
        assert all(torch.equal(one[name], other[name]) for name in one)
        features = unit_rows(64, 3).numpy()
        first, second = (index_of(stream.memory)._propose(features, 2) for stream in (whole, again))
        assert np.array_equal(first, second)


def test_batch_size_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where candidates are missed: so few lists are read that some are."""
    monkeypatch.setattr(neighbours, "FIRST_LOOK", 1)
    monkeypatch.setattr(neighbours, "SECOND_LOOK", 1)
    classes = unit_rows(300, 0)
    images = around(classes[torch.randint(300, (400,), generator=torch.Generator().manual_seed(1))], 0.6, 2)
    answers = {}
    for batch, index_above in ((400, 0), (1, 1), (7, 1), (400, 1)):
        config = OnlineConfig(threshold=TAU, adapt=("prototypes",), adapt_every=32, index_above=index_above)
        stream = FeatureStream(PrototypeMemory(classes[:200]), config)
        found = [decision.category for part in images.split(batch) for decision in stream.observe_many(part)]
        answers[batch, index_above] = found
    assert answers[1, 1] == answers[7, 1] == answers[400, 1] != answers[400, 0]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40))
def test_candidates_do_not_depend_on_the_batch(seed: int, batch: int) -> None:
    index, features = index_of(indexed(unit_rows(600, seed))), unit_rows(60, seed + 1).numpy()
    together = index._propose(features, 3)
    parts = [index._propose(features[start : start + batch], 3) for start in range(0, 60, batch)]
    assert np.array_equal(together, np.concatenate(parts))


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
    begun = indexed(classes)
    begun.halve()
    assert begun.index is None  # its copies were of other numbers
    monkeypatch.setattr("talon_ocd.memory.search.WIDENED", 7)
    agree(streams[1].memory, images)


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
