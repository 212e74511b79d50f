import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from talon_ocd.config import OnlineConfig
from talon_ocd.memory import Groups, PrototypeMemory, refine
from tests.memory.test_prototypes import unit_rows

OFFICIAL = OnlineConfig(threshold=0.7)


@pytest.mark.parametrize(
    ("known", "expected"),
    [(1, (0.99999955, 0.00095324)), (0, (0.99986738, 0.01628579))],
    ids=["known", "new"],
)
def test_reference_values_of_appendix_a(known: int, expected: tuple[float, float]) -> None:
    memory = PrototypeMemory(torch.tensor([[1.0, 0.0]]), known=known)
    groups = Groups(OFFICIAL)
    groups.add(torch.tensor([0, 0]), torch.tensor([[1.0, 0.0], [0.8, 0.6]]), torch.tensor([False, False]))
    refine(memory, groups, OFFICIAL)
    assert memory.prototypes[0].tolist() == pytest.approx(expected, abs=1e-7)


def run(config: OnlineConfig, ids: list[int], founders: list[bool] | None = None, batches: int = 1) -> torch.Tensor:
    memory = PrototypeMemory(unit_rows(4, 3, 0), known=2)
    features, groups = unit_rows(len(ids), 3, 1), Groups(config)
    for _ in range(batches):
        groups.add(torch.tensor(ids), features, torch.tensor(founders or [False] * len(ids)))
        refine(memory, groups, config)
        groups.reset()
    return memory.prototypes.clone()


def changed(config: OnlineConfig, ids: list[int], founders: list[bool] | None = None) -> list[bool]:
    before = PrototypeMemory(unit_rows(4, 3, 0), known=2).prototypes
    return (run(config, ids, founders) != before).any(dim=1).tolist()


def test_groups_of_one_are_left_alone_unless_the_paper_is_followed() -> None:
    free = dataclasses.replace(OFFICIAL, clamp_confidence=False)
    assert changed(free, [0, 2, 2]) == [False, False, True, False]
    assert changed(dataclasses.replace(free, min_group=1), [0, 2, 2]) == [True, False, True, False]


def test_the_founder_counts_only_if_asked() -> None:
    free = dataclasses.replace(OFFICIAL, clamp_confidence=False)
    assert changed(free, [3, 3], [True, False]) == [False, False, False, True]
    assert changed(dataclasses.replace(free, count_founder=False), [3, 3], [True, False]) == [False] * 4


def test_the_kind_of_mean_and_the_clamp_matter() -> None:
    free = dataclasses.replace(OFFICIAL, clamp_confidence=False)
    plain = run(free, [0, 0, 1, 1, 2, 2])
    assert not torch.equal(plain, run(dataclasses.replace(free, group_mean="normalised"), [0, 0, 1, 1, 2, 2]))
    assert not torch.equal(plain, run(OFFICIAL, [0, 0, 1, 1, 2, 2]))


def test_groups_can_live_as_long_as_the_stream() -> None:
    lasting = dataclasses.replace(OFFICIAL, group_lifetime="stream", clamp_confidence=False)
    anew = dataclasses.replace(OFFICIAL, clamp_confidence=False)
    assert torch.equal(run(lasting, [0, 0], batches=1), run(anew, [0, 0], batches=1))
    assert not torch.equal(run(lasting, [0, 0], batches=3), run(anew, [0, 0], batches=3))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 1000))
def test_prototypes_stay_unit_and_order_inside_a_group_does_not_show(ids: list[int], seed: int) -> None:
    features = unit_rows(len(ids), 3, seed)
    results = []
    for order in (torch.arange(len(ids)), torch.arange(len(ids)).flip(0)):
        memory, groups = PrototypeMemory(unit_rows(4, 3, 5), known=2), Groups(OFFICIAL)
        for i in order:
            groups.add(torch.tensor([ids[i]]), features[i][None], torch.tensor([False]))
        refine(memory, groups, OFFICIAL)
        results.append(memory.prototypes)
    torch.testing.assert_close(results[0].norm(dim=1), torch.ones(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(results[0], results[1], atol=1e-7, rtol=0)


def test_eta_zero_is_the_baseline() -> None:
    still = dataclasses.replace(OFFICIAL, eta_known=0.0, eta_new=0.0)
    torch.testing.assert_close(run(still, [0, 0, 1, 2, 2, 2, 3, 3]), F.normalize(unit_rows(4, 3, 0), dim=1))
