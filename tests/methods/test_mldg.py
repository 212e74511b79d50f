"""MLDG: its gradient against finite differences and a slow twin, the split of classes, and what training does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.backbones.tiny import TinyViT
from talon_ocd.methods import get_method
from talon_ocd.methods.base import seeded
from talon_ocd.methods.hashing import HashMethod, HashRecipe, sign_codes
from talon_ocd.methods.mldg import Half, MetaLoss, MldgRecipe, first_half, meta_losses
from talon_ocd.methods.training import Group
from talon_ocd.offline import supcon
from tests.methods.learning import BACKBONE, agreement, clean, labelled_digits

SMALL = MldgRecipe(mlp_width=32, batch_size=40, epochs=8, lr=0.05)
RATE = 0.3


def objective(parameters: dict[str, Tensor], views: Tensor, labels: Tensor) -> Tensor:
    """A tiny network in front of the contrastive loss."""
    hidden = torch.tanh(views.flatten(0, 1) @ parameters["a"] + parameters["shift"])
    return supcon(F.normalize(hidden @ parameters["b"], dim=1), labels.repeat(2), 0.5)


def scene() -> tuple[dict[str, Tensor], Half, Half]:
    draws = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

    parameters = {"a": normal(3, 4), "shift": normal(4), "b": normal(4, 3)}
    parameters = {name: value.requires_grad_() for name, value in parameters.items()}
    return parameters, (normal(2, 4, 3), torch.tensor([0, 0, 1, 1])), (normal(2, 3, 3), torch.tensor([2, 3, 2]))


def test_second_order_gradient_is_that_of_finite_differences() -> None:
    parameters, train, test = scene()

    def total(*values: Tensor) -> Tensor:
        return sum(meta_losses(objective, dict(zip(parameters, values, strict=True)), train, test, RATE))  # type: ignore[return-value]

    assert torch.autograd.gradcheck(total, tuple(parameters.values()))


def test_first_order_takes_the_step_for_a_constant() -> None:
    parameters, train, test = scene()
    names, values = list(parameters), list(parameters.values())
    steps = torch.autograd.grad(objective(parameters, *train), values)
    moved = [(value - RATE * step).detach().requires_grad_() for value, step in zip(values, steps, strict=True)]
    behind = torch.autograd.grad(objective(dict(zip(names, moved, strict=True)), *test), moved)
    before, after = meta_losses(objective, parameters, train, test, RATE, first_order=True)
    for found, expected in zip(torch.autograd.grad(after, values, retain_graph=True), behind, strict=True):
        torch.testing.assert_close(found, expected)
    both = meta_losses(objective, parameters, train, test, RATE)
    assert (before.item(), after.item()) == (both[0].item(), both[1].item())
    second = torch.autograd.grad(both[1], values)
    assert not torch.allclose(second[0], behind[0], rtol=1e-2)


def test_without_a_step_it_is_the_sum_of_both_halves() -> None:
    parameters, train, test = scene()
    before, after = meta_losses(objective, parameters, train, test, rate=0.0)
    assert before.item() == objective(parameters, *train).item()
    assert after.item() == objective(parameters, *test).item()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(0, 1000))
@settings(deadline=None)
def test_a_class_is_in_one_half(labels: list[int], seed: int) -> None:
    first = first_half(torch.tensor(labels), torch.Generator().manual_seed(seed)).tolist()
    train = {label for label, chosen in zip(labels, first, strict=True) if chosen}
    test = {label for label, chosen in zip(labels, first, strict=True) if not chosen}
    assert not train & test
    assert len(train) - len(test) in (0, 1)


def test_every_class_is_in_both_halves_at_some_time() -> None:
    labels, draws = torch.arange(6), torch.Generator().manual_seed(0)
    share = torch.stack([first_half(labels, draws).double() for _ in range(300)]).mean(dim=0)
    assert (share - 0.5).abs().max() < 0.12


@pytest.mark.parametrize("first_order", [False, True])
def test_the_step_moves_head_and_layers_by_sgd(first_order: bool) -> None:
    """G is the loss of a network that SGD really moved, head included."""
    recipe = MldgRecipe(mlp_width=16, bits=6, meta_weight=0.5, first_order=first_order)
    labels = torch.tensor([0, 0, 1, 1])
    networks = []
    for _ in range(2):
        with seeded(3):
            networks.append(recipe.network(BACKBONE, 2))
    with seeded(9):
        views = torch.randn(2, 4, 8, 4, 4)
    found = _ready(recipe, networks[0], 0.2)(views, labels)
    first = first_half(labels, torch.Generator().manual_seed(0))
    plain = HashRecipe(mlp_width=16, bits=6)
    optimizer = torch.optim.SGD(_trainable(recipe.groups(networks[1])), lr=0.2)
    before = plain.loss(networks[1])(views[:, first], labels[first])["loss"]
    before.backward()
    optimizer.step()
    after = plain.loss(networks[1])(views[:, ~first], labels[~first])["loss"]
    assert found["meta_train"].item() == pytest.approx(before.item(), rel=1e-5)
    assert found["meta_test"].item() == pytest.approx(after.item(), rel=1e-3)
    assert found["loss"].item() == pytest.approx(before.item() + 0.5 * after.item(), rel=1e-3)


def _ready(recipe: MldgRecipe, network: nn.Module, rate: float) -> MetaLoss:
    _trainable(recipe.groups(network))
    loss = MetaLoss(network, recipe)
    loss.rate = rate
    return loss


def _trainable(groups: list[Group]) -> list[nn.Parameter]:
    parameters = [parameter for group in groups for parameter in group.parameters]
    for parameter in parameters:
        parameter.requires_grad_()
    return parameters


def test_attention_can_be_differentiated_twice() -> None:
    recipe = MldgRecipe(mlp_width=16)
    backbone = TinyViT(width=32, depth=2)
    network = recipe.network(backbone, 2)
    views = torch.randn(2, 4, *backbone.hidden_shape, generator=torch.Generator().manual_seed(1))
    _ready(recipe, network, 0.1)(views, torch.tensor([0, 0, 1, 1]))["loss"].backward()
    gradients = [parameter.grad for parameter in network.head_parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


def test_training_lowers_both_losses_and_unites_classes() -> None:
    with labelled_digits() as labelled:
        with seeded(1):
            untrained = SMALL.network(BACKBONE, labelled.classes)
        untrained.eval()
        trained, again = (SMALL.fit(BACKBONE, labelled, seed=1) for _ in range(2))
        hidden, labels = clean(labelled), labelled.labels
    with torch.no_grad():
        before = agreement(untrained(hidden), labels, sign_codes)
        after = agreement(trained.network(hidden), labels, sign_codes)
        assert torch.equal(trained.network(hidden), again.network(hidden))
    first, *_, last = trained.report["losses"]
    assert last["meta_train"] < 0.8 * first["meta_train"]
    assert last["meta_test"] < 0.8 * first["meta_test"]
    assert after[0] - after[1] > 0.2 + before[0] - before[1]


@pytest.mark.parametrize("count", [1, 2])
def test_tiny_labelled_sets_train(count: int) -> None:
    with labelled_digits(count) as labelled:
        trained = SMALL.fit(BACKBONE, labelled, seed=0)
        assert trained.network(clean(labelled)).isfinite().all()
    assert count > 1 or trained.report["losses"][0]["meta_test"] == 0.0


def test_registered_settings_are_the_chosen_ones() -> None:
    method = get_method("mldg")
    assert method == HashMethod(MldgRecipe())
    assert isinstance(method.recipe, MldgRecipe)
    assert (method.recipe.bits, method.recipe.meta_weight, method.recipe.first_order) == (12, 1.0, False)
