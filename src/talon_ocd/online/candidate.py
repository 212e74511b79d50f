"""A head on the side: what a step made of it, before anything is answered with it (layer: online)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from talon_ocd.online.adapt import EncoderAdapter


@dataclass
class Candidate:
    """A head after a step, which has answered nothing yet.

    Attributes:
        values: of the parameters that adapt.
        steps: gradient steps that made it.
        features: unit features ``(p, D)`` of the first p probe images, as many as were passed through it.
    """

    values: list[Tensor]
    steps: int
    features: Tensor

    def adopt(self, adapter: EncoderAdapter) -> None:
        """Let the adapter go on with this head."""
        set_values(adapter, self.values)
        adapter.steps += self.steps

    @contextmanager
    def worn_by(self, adapter: EncoderAdapter) -> Iterator[None]:
        """Let the adapter have this head for a while."""
        own = values_of(adapter)
        set_values(adapter, self.values)
        try:
            yield
        finally:
            set_values(adapter, own)

    def state_dict(self) -> dict[str, Tensor]:
        """Return all of it, ready for safetensors."""
        values = {f"values.{number}": value.clone() for number, value in enumerate(self.values)}
        return {**values, "steps": torch.tensor(self.steps), "features": self.features.clone()}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor], adapter: EncoderAdapter) -> Candidate:
        """Build from what ``state_dict`` gave, for a head like the adapter's."""
        values = [
            state[f"values.{number}"].to(parameter.device, copy=True)
            for number, parameter in enumerate(adapter.parameters)
        ]
        return cls(values, int(state["steps"]), state["features"].clone())


def values_of(adapter: EncoderAdapter) -> list[Tensor]:
    """Return copies of the parameters that adapt."""
    return [parameter.detach().clone() for parameter in adapter.parameters]


def set_values(adapter: EncoderAdapter, values: list[Tensor]) -> None:
    """Give the parameters that adapt other values."""
    with torch.no_grad():
        for parameter, value in zip(adapter.parameters, values, strict=True):
            parameter.copy_(value)
