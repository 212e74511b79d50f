"""What every backbone promises, as functions that the tests of each family call."""

from __future__ import annotations

import copy
import json
from typing import get_args

import torch
from torch import Tensor

from talon_ocd.backbones import Backbone, Scope, backbone_from_architecture
from talon_ocd.images.transforms import Preprocessing

SCOPES: tuple[Scope, ...] = get_args(Scope)


def pixels_for(backbone: Backbone, count: int = 2) -> Tensor:
    side = backbone.preprocessing.crop
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(7))


def check_shapes(backbone: Backbone) -> None:
    pixels = pixels_for(backbone)
    hidden = backbone.trunk(pixels)
    features = backbone.head(hidden)
    assert hidden.shape == (2, *backbone.hidden_shape)
    assert features.shape == (2, backbone.feature_size)
    assert hidden.is_contiguous()
    assert torch.isfinite(features).all()
    torch.testing.assert_close(backbone(pixels), features)


def check_places(backbone: Backbone) -> None:
    """Local features come with the very features that the head gives."""
    hidden = backbone.trunk(pixels_for(backbone))
    features, local = backbone.head.describe(hidden)  # type: ignore[operator]
    assert torch.equal(features, backbone.head(hidden))
    assert len(local) == 2 and local.ndim == 3 and local.shape[2] == backbone.local_size


def check_frozen(backbone: Backbone) -> None:
    backbone.train()
    assert not any(module.training for module in backbone.modules())
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    assert not backbone(pixels_for(backbone)).requires_grad


def check_scopes(backbone: Backbone) -> None:
    """Scopes are nested, name real parameters, and promised parameters, and no others, get gradients."""
    chosen = {scope: backbone.head_parameter_names(scope) for scope in SCOPES}
    assert set(chosen["norms"]) < set(chosen["head"])
    assert set(chosen["block"]) <= set(chosen["head"])
    hidden = backbone.trunk(pixels_for(backbone))
    for names in chosen.values():
        assert names and len(set(names)) == len(names)
        head = copy.deepcopy(backbone.head)
        parameters = dict(head.named_parameters())
        for name in names:
            parameters[name].requires_grad_(True)
        (head(hidden) ** 3).sum().backward()
        moved = {name for name, parameter in parameters.items() if parameter.grad is not None}
        assert moved == set(names)
    assert not any(parameter.requires_grad for parameter in backbone.parameters())


def check_adapting_a_copy(backbone: Backbone) -> None:
    """A stream moves a deep copy of the head; the backbone keeps its own."""
    pixels = pixels_for(backbone)
    before = backbone(pixels)
    head = copy.deepcopy(backbone.head)
    head.train()
    for name, parameter in head.named_parameters():
        if name in backbone.head_parameter_names("norms"):
            parameter.data.add_(0.1)
    assert not torch.allclose(head(backbone.trunk(pixels)), before, atol=1e-4)
    torch.testing.assert_close(backbone(pixels), before)


def check_round_trip(backbone: Backbone) -> None:
    architecture = json.loads(json.dumps(backbone.architecture()))
    preprocessing = Preprocessing.from_dict(json.loads(json.dumps(backbone.preprocessing.to_dict())))
    twin = backbone_from_architecture(architecture, preprocessing)
    state = {key: value.clone().contiguous() for key, value in backbone.state_dict().items()}
    twin.load_state_dict(state, strict=True)
    pixels = pixels_for(backbone)
    torch.testing.assert_close(twin(pixels), backbone(pixels), rtol=0, atol=0)
    assert type(twin) is type(backbone)
    assert (twin.name, twin.family, twin.preprocessing) == (backbone.name, backbone.family, preprocessing)
    assert twin.hidden_shape == backbone.hidden_shape
    assert twin.trunk_fingerprint() == backbone.trunk_fingerprint()
    check_frozen(twin)


def check_gradient(backbone: Backbone, scope: Scope = "norms") -> None:
    """The gradient of a scope agrees with a central difference along a random direction, in float64."""
    torch.manual_seed(3)
    pixels = pixels_for(backbone)
    hidden = backbone.trunk(pixels).double()
    head = copy.deepcopy(backbone.head).double()
    parameters = dict(head.named_parameters())
    chosen = [parameters[name].requires_grad_(True) for name in backbone.head_parameter_names(scope)]
    weights = torch.randn(2, backbone.feature_size, dtype=torch.float64)
    gradients = torch.autograd.grad((head(hidden) * weights).sum(), chosen)
    directions = [torch.randn_like(parameter) for parameter in chosen]
    analytic = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    values = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            for parameter, direction in zip(chosen, directions, strict=True):
                parameter.add_(step * direction)
            values.append(float((head(hidden) * weights).sum()))
    numeric = (values[0] - values[1]) / 2e-6
    assert abs(analytic - numeric) <= 1e-4 * max(1.0, abs(numeric))
