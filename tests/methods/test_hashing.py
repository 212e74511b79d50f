"""BaseHash and SMILE: reference values, slow twins, gradients, and what training does to the codes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from talon_ocd.errors import ConfigError
from talon_ocd.methods import get_method
from talon_ocd.methods.base import seeded
from talon_ocd.methods.hashing import HashMethod, HashRecipe, SmileNetwork, SmileRecipe, magnitude, sign_codes
from talon_ocd.offline import Labelled
from talon_ocd.progress import SILENT
from tests.methods.learning import BACKBONE, agreement, clean, labelled_digits
from tests.twins import losses as twin

SMALL = {"mlp_width": 32, "batch_size": 40, "epochs": 8, "lr": 0.05}
RECIPES = [HashRecipe(**SMALL), SmileRecipe(**SMALL)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "expected"), [(2.0, 2.0746294), (0.5, 1.0819767), (0.0, 1.0)])
def test_magnitude_reference_values(value: float, expected: float) -> None:
    for signed in (value, -value):
        assert magnitude(torch.tensor(signed).double()).item() == pytest.approx(expected, abs=5e-8)


@given(st.floats(-20, 20))
def test_magnitude_equals_the_quotient_and_is_at_least_one(value: float) -> None:
    found = magnitude(torch.tensor(value, dtype=torch.float64)).item()
    assert found >= max(1.0, abs(value))
    if abs(value) > 1e-6:
        assert found == pytest.approx(value / math.tanh(value), rel=1e-11)


def test_magnitude_has_its_gradient_everywhere() -> None:
    values = torch.tensor([-3.0, -0.031, -0.029, -1e-4, 0.0, 1e-9, 0.02, 0.04, 5.0], dtype=torch.float64)
    values.requires_grad_()
    assert torch.autograd.gradcheck(magnitude, (values,), eps=1e-6, atol=1e-8)
    (gradient,) = torch.autograd.grad(magnitude(values).sum(), values)
    assert gradient[4] == 0.0
    assert magnitude(torch.tensor([0.0, -0.0])).tolist() == [1.0, 1.0]


@given(st.lists(st.lists(st.sampled_from([-2.0, -0.0, 0.0, 1e-30, 3.0]), min_size=11, max_size=11), min_size=1))
@settings(deadline=None)
def test_codes_are_the_signs(values: list[list[float]]) -> None:
    codes = sign_codes(np.array(values))
    bits = np.unpackbits(codes, axis=1)[:, :11]
    assert bits.tolist() == [[int(value > 0) for value in row] for row in values]


def test_smile_loss_equals_its_slow_twin() -> None:
    recipe = SmileRecipe(bits=5, mlp_width=16)
    labels = torch.tensor([0, 1, 0, 2])
    with seeded(3):
        network, views = SmileNetwork(BACKBONE, 5, 16), torch.randn(2, 4, 8, 4, 4)
    features = network.mlp(network.head(views.flatten(0, 1)))
    signs = [[math.tanh(value) for value in row] for row in network.code(features).tolist()]
    strengths = [[value / math.tanh(value) for value in row] for row in network.strength(features).tolist()]
    embedding = [[h * rho for h, rho in zip(*pair, strict=True)] for pair in zip(signs, strengths, strict=True)]
    units = [[value / math.hypot(*row) for value in row] for row in embedding]
    contrast = twin.supcon(units, [0, 1, 0, 2] * 2, 0.07)
    sharpness = sum(1 - abs(value) for row in signs for value in row) / 40
    found = recipe.loss(network)(views, labels)
    assert found["supcon"].item() == pytest.approx(contrast, rel=1e-4)
    assert found["sharpness"].item() == pytest.approx(sharpness, rel=1e-5)
    assert found["loss"].item() == pytest.approx(contrast + 3 * sharpness, rel=1e-4)


def test_base_hash_contrasts_the_projection_itself() -> None:
    recipe = HashRecipe(bits=5, mlp_width=16)
    with seeded(4):
        network, views = recipe.network(BACKBONE, 3), torch.randn(2, 4, 8, 4, 4)
    units = F.normalize(network(views.flatten(0, 1)), dim=1)
    expected = twin.supcon(units.tolist(), [0, 1, 0, 2] * 2, 0.07)
    assert recipe.loss(network)(views, torch.tensor([0, 1, 0, 2]))["loss"].item() == pytest.approx(expected, rel=1e-4)


def test_smile_decides_on_its_sign_branch() -> None:
    with seeded(5):
        network, hidden = SmileNetwork(BACKBONE, 6, 16), torch.randn(7, 8, 4, 4)
    network.eval()
    signs, strengths = network.branches(hidden)
    assert torch.equal(network(hidden), signs)
    assert np.array_equal(sign_codes(signs.detach().numpy()), sign_codes((signs * strengths).detach().numpy()))


@pytest.mark.parametrize("recipe", RECIPES)
def test_training_lowers_the_loss_and_unites_classes(recipe: HashRecipe) -> None:
    with labelled_digits() as labelled:
        with seeded(1):
            untrained = recipe.network(BACKBONE, labelled.classes).eval()
        trained = recipe.fit(BACKBONE, labelled, seed=1)
        hidden, labels = clean(labelled), labelled.labels
        with torch.no_grad():
            before = agreement(untrained(hidden), labels, sign_codes)
            after = agreement(trained.network(hidden), labels, sign_codes)
        again = recipe.fit(BACKBONE, labelled, seed=1)
    losses = [epoch["loss"] for epoch in trained.report["losses"]]
    assert losses[-1] < 0.8 * losses[0]
    assert after[0] - after[1] > 0.3 + before[0] - before[1]
    stream = HashMethod(recipe).stream(trained)
    ids = stream.observe(hidden).ids
    assert len(set(ids.tolist())) == stream.size - labelled.classes
    assert np.array_equal(HashMethod(recipe).stream(again).observe(hidden).ids, ids)
    assert not any(parameter.requires_grad for parameter in trained.network.parameters())


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("count", [1, 2, 41])
def test_tiny_labelled_sets_train(recipe: HashRecipe, count: int) -> None:
    with labelled_digits(count) as labelled:
        network = recipe.fit(BACKBONE, labelled, seed=0).network
        assert network(clean(labelled)).isfinite().all()


def test_the_backbone_stays_as_it_is() -> None:
    before = {name: value.clone() for name, value in BACKBONE.state_dict().items()}
    with labelled_digits(30) as labelled:
        _fit(labelled, "head")
        block = _fit(labelled, "norms")
    assert all(torch.equal(value, before[name]) for name, value in BACKBONE.state_dict().items())
    moved = [name for name, value in block.items() if not torch.equal(value, before[f"head.{name}"])]
    assert set(moved) <= {"2.weight", "2.bias"}


def _fit(labelled: Labelled, trainable: str) -> dict[str, torch.Tensor]:
    recipe = SmileRecipe(mlp_width=16, epochs=1, trainable=trainable)  # type: ignore[arg-type]
    network = recipe.network(BACKBONE, labelled.classes)
    recipe.train(network, labelled, 0, SILENT)
    return network.head.state_dict()


def test_settings_follow_the_length_of_training_if_asked_to() -> None:
    recipe = SmileRecipe()
    assert (recipe.epochs, recipe.lr, recipe.weight_decay, recipe.batch_size) == (100, 0.01, 5e-5, 128)
    assert recipe.with_epochs(20) == SmileRecipe(epochs=20)
    released = SmileRecipe(argument_defaults=True)
    short = released.with_epochs(20)
    assert (short.epochs, short.lr, short.weight_decay) == (20, 0.1, 1e-4)
    assert short.with_epochs(100) == released
    assert released.with_epochs(21).lr == 0.01
    assert SmileRecipe(lr=0.02, argument_defaults=True).with_epochs(5).lr == 0.02
    assert recipe.key != short.key != HashRecipe().with_epochs(20).key


@pytest.mark.parametrize(("name", "bits"), [("smile", 12), ("smile-16", 16), ("smile-32", 32), ("smile-64", 64)])
def test_registered_lengths(name: str, bits: int) -> None:
    method = get_method(name)
    assert isinstance(method.recipe, SmileRecipe)
    assert method.recipe.bits == bits
    assert method.settings()["recipe"]["bits"] == bits


def test_a_code_without_bits_is_refused() -> None:
    assert get_method("base-hash") == HashMethod(HashRecipe())
    with pytest.raises(ConfigError, match="0 bits"):
        SmileRecipe(bits=0)
