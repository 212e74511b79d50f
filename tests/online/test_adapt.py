import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from talon_ocd.config import OnlineConfig
from talon_ocd.online import EncoderAdapter, adaptation_loss
from talon_ocd.online.adapt import alignment, class_means, entropy, repulsion
from tests.memory.test_prototypes import unit_rows
from tests.twins.online import slow_adaptation_loss

OFFICIAL = OnlineConfig(threshold=0.7)
Z = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], dtype=torch.float64)
MU = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
IDS = torch.tensor([0, 0, 1])


def test_reference_values_of_appendix_a() -> None:
    present, means = class_means(Z, IDS)
    assert float(entropy(Z, MU, 1 / 30)) == pytest.approx(0.01581876, abs=1e-8)
    assert float(alignment(means, MU[present]) / 2) == pytest.approx(0.87434165, abs=1e-8)
    assert float(repulsion(means) / 2) == pytest.approx(0.68377223, abs=1e-8)
    assert float(adaptation_loss(Z, IDS, MU, OFFICIAL)) == pytest.approx(-1.54229512, abs=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_loss_is_that_of_the_slow_twin(seed: int) -> None:
    features, prototypes = unit_rows(12, 4, seed).double(), unit_rows(5, 4, seed + 100).double()
    ids = torch.randint(0, 5, (12,), generator=torch.Generator().manual_seed(seed))
    ent, align, repel = slow_adaptation_loss(features.tolist(), ids.tolist(), prototypes.tolist(), 1 / 30)
    assert float(adaptation_loss(features, ids, prototypes, OFFICIAL)) == pytest.approx(ent - align - repel, abs=1e-9)
    together = dataclasses.replace(OFFICIAL, repel_sign="together", repel_reduction="sum", align_over="all")
    number = len(set(ids.tolist()))
    printed = ent - align * number / 5 + repel * number * (number - 1)
    assert float(adaptation_loss(features, ids, prototypes, together)) == pytest.approx(printed, abs=1e-9)


def test_gradients_in_float64() -> None:
    raw = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    prototypes, ids = unit_rows(3, 4, 1).double(), torch.tensor([0, 1, 2, 0, 1, 1])
    gentle = dataclasses.replace(OFFICIAL, temperature=0.5)
    assert torch.autograd.gradcheck(lambda x: adaptation_loss(F.normalize(x, dim=1), ids, prototypes, gentle), (raw,))


def test_one_class_has_no_repulsion() -> None:
    only = adaptation_loss(Z[:2], torch.tensor([0, 0]), MU, OFFICIAL)
    without = adaptation_loss(Z[:2], torch.tensor([0, 0]), MU, dataclasses.replace(OFFICIAL, repel_weight=0.0))
    assert float(only) == pytest.approx(float(without), abs=1e-12)


def small_head(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4))


def test_only_promised_parameters_move_and_a_step_is_bounded() -> None:
    head, hidden = small_head(), torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    before = {name: value.detach().clone() for name, value in head.named_parameters()}
    adapter = EncoderAdapter(head, ["0.weight", "0.bias"], dataclasses.replace(OFFICIAL, encoder_lr=0.1))
    adapter.step(hidden, torch.arange(16) % 3, unit_rows(3, 4, 2))
    moved = {name: value.detach() - before[name] for name, value in head.named_parameters()}
    assert moved["0.weight"].abs().sum() > 0 and moved["1.weight"].abs().sum() == 0 and moved["1.bias"].abs().sum() == 0
    assert float(torch.cat([moved["0.weight"], moved["0.bias"]]).norm()) <= 0.1 + 1e-6
    assert adapter.steps == 1


def test_lr_zero_changes_no_feature_and_a_given_graph_gives_the_same_step() -> None:
    hidden, ids, prototypes = torch.randn(16, 8), torch.arange(16) % 3, unit_rows(3, 4, 2)
    still = EncoderAdapter(small_head(), ["0.weight"], dataclasses.replace(OFFICIAL, encoder_lr=0.0))
    before = still.encode(hidden)
    still.step(hidden, ids, prototypes)
    assert torch.equal(before, still.encode(hidden))
    plain, reused = (EncoderAdapter(small_head(), ["0.weight"], OFFICIAL) for _ in range(2))
    plain.step(hidden, ids, prototypes)
    reused.step(hidden, ids, prototypes, reused.encode(hidden, with_graph=True))
    assert torch.equal(plain.encode(hidden), reused.encode(hidden))


def test_a_step_of_repulsion_alone_drives_class_means_apart() -> None:
    only = dataclasses.replace(OFFICIAL, entropy_weight=0.0, align_weight=0.0, encoder_lr=1e-2)
    hidden, ids = torch.randn(30, 8, generator=torch.Generator().manual_seed(3)), torch.arange(30) % 3
    adapter = EncoderAdapter(small_head(), ["0.weight", "0.bias"], only)

    def mean_cosine() -> float:
        _, means = class_means(adapter.encode(hidden), ids)
        return float(((means @ means.T).sum() - 3) / 6)

    before = mean_cosine()
    adapter.step(hidden, ids, unit_rows(3, 4, 2))
    assert mean_cosine() < before


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    adapter = EncoderAdapter(small_head(), ["0.weight"], OFFICIAL)
    before = adapter.parameters[0].detach().clone()
    adapter.step(torch.full((4, 8), float("nan")), torch.tensor([0, 1, 0, 1]), unit_rows(2, 4, 0))
    assert adapter.refused == 1 and torch.equal(before, adapter.parameters[0])


def test_autocast_computes_in_bfloat16_and_answers_in_float32() -> None:
    hidden, ids, prototypes = torch.randn(16, 8), torch.arange(16) % 3, unit_rows(3, 4, 2)
    exact = EncoderAdapter(small_head(), ["0.weight"], OFFICIAL)
    half = EncoderAdapter(small_head(), ["0.weight"], dataclasses.replace(OFFICIAL, autocast=True))
    features = half.encode(hidden, with_graph=True)
    assert features.dtype == torch.float32 and not torch.equal(features, exact.encode(hidden))
    torch.testing.assert_close(features.detach(), exact.encode(hidden), atol=0.05, rtol=0)
    half.step(hidden, ids, prototypes, features)
    assert half.steps == 1 and half.parameters[0].dtype == torch.float32
