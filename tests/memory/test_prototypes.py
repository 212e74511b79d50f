import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from talon_ocd.errors import DataError
from talon_ocd.memory import PrototypeMemory, search


def unit_rows(rows: int, size: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)), dim=1)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 10_000))
def test_nearest_two_are_the_two_largest_cosines(size: int, batch: int, seed: int) -> None:
    prototypes, features = unit_rows(size, 5, seed), unit_rows(batch, 5, seed + 1)
    found = PrototypeMemory(prototypes).nearest(features)
    exact = features.double() @ F.normalize(prototypes, dim=1).double().T
    wanted = exact.sort(dim=1, descending=True)
    assert torch.equal(found.ids[:, 0], wanted.indices[:, 0])
    torch.testing.assert_close(found.similarities[:, 0], wanted.values[:, 0], atol=1e-12, rtol=0)
    if size == 1:
        assert found.ids[:, 1].eq(-1).all()
    else:
        torch.testing.assert_close(found.similarities[:, 1], wanted.values[:, 1], atol=1e-12, rtol=0)


def test_blocks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, features = PrototypeMemory(unit_rows(257, 16, 0)), unit_rows(31, 16, 1)
    whole = memory.nearest(features)
    monkeypatch.setattr(search, "PRODUCT", 310)
    parts = memory.nearest(features)
    assert torch.equal(whole.ids, parts.ids)
    assert torch.equal(whole.similarities, parts.similarities)


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 10_000))
def test_two_largest_prefers_the_first_of_equal_ones(columns: int, rows: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 4, (rows, columns)).astype(np.float32)
    wanted = np.argsort(-values, axis=1, kind="stable")[:, :2]
    largest, places = search.two_largest(values.copy())
    assert np.array_equal(places, wanted)
    assert np.array_equal(largest, np.take_along_axis(values, wanted, axis=1))


@given(st.integers(1, 90), st.integers(1, 9), st.integers(0, 10_000))
def test_maxima_of_groups_lead_to_the_two_largest(count: int, batch: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 30, (count, batch)).astype(np.float32)
    wanted = np.argsort(-values.T, axis=1, kind="stable")[:, :2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "GROUP", 4)
        largest, places = search._two_nearest(torch.from_numpy(values.copy()))
    assert np.array_equal(places, wanted)
    assert np.array_equal(largest, np.take_along_axis(values.T, wanted, axis=1))


def test_of_many_equal_prototypes_the_oldest_two_are_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "PRODUCT", 8)
    memory = PrototypeMemory(torch.eye(3)[[0, 1, 0, 1, 0, 1, 0, 1, 0, 1]])
    assert memory.nearest(torch.eye(3)[1:2]).ids.tolist() == [[1, 3]]
    assert memory.nearest(torch.eye(3)[:2]).ids.tolist() == [[0, 2], [1, 3]]


def test_batch_size_does_not_change_a_similarity_by_a_bit() -> None:
    memory, features = PrototypeMemory(unit_rows(3000, 768, 0)), unit_rows(64, 768, 1)
    together = memory.nearest(features)
    alone = [memory.nearest(feature[None]) for feature in features]
    assert torch.equal(together.ids, torch.cat([one.ids for one in alone]))
    assert torch.equal(together.similarities, torch.cat([one.similarities for one in alone]))


def test_equal_prototypes_answer_with_the_older_one() -> None:
    memory = PrototypeMemory(torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]))
    assert memory.nearest(torch.tensor([[1.0, 0.0]])).ids.tolist() == [[1, 2]]


def test_growth_keeps_prototypes_counts_and_ids() -> None:
    memory = PrototypeMemory(unit_rows(3, 4, 0))
    added = unit_rows(500, 4, 1)
    for row in added:
        memory.append(row[None])
        memory.count(torch.tensor([memory.size - 1, 0]))
    assert memory.size == 503 and memory.known == 3
    assert torch.equal(memory.prototypes[3:], added)
    assert memory.counts.tolist() == [500, 0, 0, *[1] * 500]


def test_state_round_trip_is_exact() -> None:
    memory = PrototypeMemory(unit_rows(3, 4, 0))
    memory.append(unit_rows(2, 4, 1))
    memory.count(torch.tensor([4, 4]))
    again = PrototypeMemory.from_state_dict(memory.state_dict())
    assert torch.equal(again.prototypes, memory.prototypes)
    assert torch.equal(again.counts, memory.counts) and again.known == 3
    copied = memory.copy()
    copied.append(unit_rows(1, 4, 2))
    assert memory.size == 5 and copied.size == 6


@pytest.mark.parametrize("bad", [torch.zeros(3), torch.zeros(2, 0), torch.tensor([[float("nan"), 1.0]])])
def test_bad_prototypes_are_refused(bad: torch.Tensor) -> None:
    with pytest.raises(DataError):
        PrototypeMemory(bad)


@pytest.mark.parametrize(
    "change",
    [
        {"known": torch.tensor(4)},
        {"known": torch.tensor(-1)},
        {"counts": torch.zeros(2, dtype=torch.int64)},
        {"counts": torch.zeros(3)},
        {"prototypes": unit_rows(3, 4, 0).double()},
        {"prototypes": torch.full((3, 4), float("nan"))},
    ],
)
def test_a_state_that_does_not_fit_together_is_refused(change: dict[str, torch.Tensor]) -> None:
    state = PrototypeMemory(unit_rows(3, 4, 0)).state_dict()
    with pytest.raises(DataError, match="load another copy"):
        PrototypeMemory.from_state_dict({**state, **change})
