from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from talon_ocd.memory import projection as module
from talon_ocd.memory.projection import ROWS, SMALL, Projection
from tests.memory.test_prototypes import unit_rows

PLAIN = [(1, 1), (3, 2), (40, 7), (300, 15), (511, 17), (768, 64)]
BY_ONEDNN = [(70_001, 1), (9_001, 8), (5_003, 15), (4_099, 17), (7, 10_007), (300, 235), (1_280, 256), (3_616, 374)]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def drawn(feature_size: int, size: int, seed: int = 0) -> Tensor:
    return 30.0 * torch.randn(feature_size, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", BY_ONEDNN)
def test_large_ones_are_oneDNNs_if_there_is_one(shape: tuple[int, int]) -> None:
    assert shape[0] * shape[1] > SMALL
    assert Projection(drawn(*shape)).by_onednn == torch.backends.mkldnn.is_available()


@pytest.mark.parametrize("shape", PLAIN)
def test_small_ones_are_plain(shape: tuple[int, int]) -> None:
    assert not Projection(drawn(*shape)).by_onednn


@pytest.mark.parametrize("shape", [*PLAIN, *BY_ONEDNN])
def test_a_row_is_the_same_wherever_it_is_and_whatever_is_beside_it(shape: tuple[int, int], threads: int) -> None:
    projection, rows = Projection(drawn(*shape)), unit_rows(ROWS, shape[0], 1)
    generator = torch.Generator().manual_seed(2)
    wanted = projection(rows)
    assert wanted.shape == (ROWS, shape[1])
    for share, others in ((1.0, 0.0), (0.5, 100.0), (0.1, 1.0), (0.02, 0.0)):
        order = torch.randperm(ROWS, generator=generator)
        there = torch.rand(ROWS, generator=generator) < share
        mixed = torch.where(there[:, None], rows[order], others * torch.randn(rows.shape, generator=generator))
        assert torch.equal(projection(mixed)[there], wanted[order][there])
    assert torch.equal(projection(rows[:1].repeat(ROWS, 1)), wanted[:1].repeat(ROWS, 1))


@pytest.mark.parametrize("shape", [*PLAIN, *BY_ONEDNN])
@pytest.mark.parametrize("available", [True, False])
def test_either_product_is_the_exact_one_but_for_rounding(
    shape: tuple[int, int], available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: available)
    matrix, rows = drawn(*shape), unit_rows(ROWS, shape[0], 1)
    projection = Projection(matrix.double())
    assert projection.by_onednn == (available and matrix.numel() > SMALL)
    torch.testing.assert_close(projection(rows).double(), rows.double() @ matrix.double(), rtol=1e-5, atol=1e-4)


def refused(*args: object) -> Tensor:
    raise RuntimeError("no such product")


def uneven(matrix: Tensor, rows: Tensor) -> Tensor:
    return rows @ matrix.to_dense().T * (1.0 + torch.arange(ROWS)[:, None] * 1e-7)


@pytest.mark.parametrize("product", [refused, uneven])
def test_a_product_that_fails_or_rounds_rows_otherwise_is_not_used(
    product: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_by_onednn", product)
    matrix, rows = drawn(300, 235), unit_rows(ROWS, 300, 1)
    projection = Projection(matrix)
    assert not projection.by_onednn
    assert torch.equal(projection(rows), rows @ matrix)


def test_rows_need_not_lie_side_by_side() -> None:
    projection, rows = Projection(drawn(300, 235)), unit_rows(ROWS, 300, 1)
    assert torch.equal(projection(rows.T.contiguous().T), projection(rows))


def test_many_threads_may_use_one() -> None:
    projection, batches = Projection(drawn(700, 120)), [unit_rows(ROWS, 700, seed) for seed in range(8)]
    wanted = [projection(rows) for rows in batches]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(projection, batches * 20))
    assert all(torch.equal(one, wanted[number % 8]) for number, one in enumerate(found))


def test_neither_autocast_nor_the_default_type_changes_a_product() -> None:
    matrix, rows = drawn(300, 235), unit_rows(ROWS, 300, 1)
    projection = Projection(matrix)
    wanted = projection(rows)
    with torch.autocast("cpu", torch.bfloat16):
        assert not projection.by_onednn or torch.equal(projection(rows), wanted)
        assert Projection(matrix).by_onednn == projection.by_onednn
    torch.set_default_dtype(torch.float64)
    try:
        assert Projection(matrix).by_onednn == projection.by_onednn
    finally:
        torch.set_default_dtype(torch.float32)
