import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_ocd.memory import PrototypeMemory
from talon_ocd.online import CosineRule
from tests.memory.test_prototypes import unit_rows


@given(
    st.integers(0, 6),
    st.integers(0, 40),
    st.integers(2, 5),
    st.sampled_from([-1.0, 0.0, 0.5, 0.9, 1.5]),
    st.integers(0, 9999),
)
@settings(max_examples=200)
def test_a_batch_is_answered_as_if_one_by_one(size: int, batch: int, dims: int, threshold: float, seed: int) -> None:
    features, start = unit_rows(batch, dims, seed), unit_rows(size, dims, seed + 1)
    rule = CosineRule(threshold)
    together = rule.assign(features, PrototypeMemory(start))
    memory = PrototypeMemory(start)
    for i, feature in enumerate(features):
        one = rule.assign(feature[None], memory)
        assert (one.ids[0], one.founded[0]) == (together.ids[i], together.founded[i])
        assert one.runner_ups[0] == together.runner_ups[i]
        assert abs(one.similarities[0] - together.similarities[i]) < 1e-12
        assert abs(one.runner_up_similarities[0] - together.runner_up_similarities[i]) < 1e-12
        if one.founded[0]:
            memory.append(feature[None])


def test_deciding_is_pure() -> None:
    memory = PrototypeMemory(unit_rows(3, 4, 0))
    before = memory.state_dict()
    CosineRule(0.9).assign(unit_rows(20, 4, 1), memory)
    assert all(torch.equal(value, before[key]) for key, value in memory.state_dict().items())


def test_threshold_minus_one_never_creates_and_above_one_always_does() -> None:
    memory, features = PrototypeMemory(unit_rows(3, 4, 0)), unit_rows(50, 4, 1)
    assert not CosineRule(-1.0).assign(features, memory).founded.any()
    answers = CosineRule(1.0001).assign(features, memory)
    assert answers.ids.tolist() == list(range(3, 53))


def test_a_founder_reports_the_nearest_category_it_refused() -> None:
    memory = PrototypeMemory(torch.eye(2))
    answers = CosineRule(0.99).assign(torch.tensor([[0.6, 0.8], [0.6, 0.8], [1.0, 0.0]]), memory)
    assert answers.ids.tolist() == [2, 2, 0] and answers.founded.tolist() == [True, False, False]
    np.testing.assert_allclose(answers.similarities, [0.8, 1.0, 1.0], atol=1e-7)
    assert answers.runner_ups.tolist() == [1, 1, 2]


def test_the_first_query_of_an_empty_memory_founds_category_zero() -> None:
    answers = CosineRule(0.5).assign(torch.tensor([[1.0, 0.0]]), PrototypeMemory(torch.empty(0, 2)))
    assert (answers.ids[0], answers.similarities[0], answers.runner_ups[0]) == (0, -1.0, -1)
