"""A backbone for embeddings (layer: backbones): the vector of an image is its trunk output.

Its head leaves vectors as they are. If it shall be trained, it is a linear map that starts as the identity.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from talon_ocd.backbones.base import Backbone, Scope, check_size
from talon_ocd.backbones.paired import Paired
from talon_ocd.errors import DataError
from talon_ocd.images.transforms import Preprocessing
from talon_ocd.images.vectors import VectorFacts, VectorPreprocessing

NAME = "vectors"


class Gain(nn.Module):
    """Weighs each coordinate: ``(B, D)`` stays so; with weights of 1 nothing changes, to the bit."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, vectors: Tensor) -> Tensor:
        """Weigh."""
        return vectors * self.weight


class Vectors(Backbone):
    """Vectors ``(B, size)`` of an encoder that ran elsewhere.

    >>> Vectors(size=4)(torch.eye(4)[:2]).tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
    """

    def __init__(self, *, size: int, encoder: str = "", encoder_name: str = "", trainable: bool = False) -> None:
        super().__init__()
        check_size("size", size, least=1)
        self.family = NAME
        self.name = f"{NAME} of {encoder_name}" if encoder_name else NAME
        self.options = {"size": size, "encoder": encoder, "encoder_name": encoder_name, "trainable": trainable}
        self.encoder = encoder
        self.preprocessing = VectorPreprocessing(size=size)
        self.trunk = nn.Identity()
        self.head = nn.Linear(size, size, bias=False) if trainable else Gain(size)
        if trainable:
            nn.init.eye_(self.head.weight)
        self.hidden_shape = (size,)
        self.feature_size = size
        self.finish()

    @classmethod
    def of(cls, facts: VectorFacts, trainable: bool = False) -> Vectors:
        """Return the backbone for the vectors of a file."""
        return cls(size=facts.size, encoder=facts.encoder, encoder_name=facts.name, trainable=trainable)

    def forward(self, pixels: Tensor) -> Tensor:
        """Take vectors ``(B, size)`` for pixels."""
        features: Tensor = self.head(pixels)
        return features

    def head_parameter_names(self, scope: Scope) -> list[str]:
        """All scopes mean the one weight."""
        return ["weight"]

    def architecture(self) -> dict[str, Any]:
        """Return kind, name and the constructor's options."""
        return {"kind": NAME, "name": self.name, **self.options}

    @classmethod
    def from_architecture(cls, architecture: dict[str, Any], preprocessing: Preprocessing) -> Vectors:
        """Build with a head that changes nothing."""
        return cls(**{key: value for key, value in architecture.items() if key not in ("kind", "name")})


class FinishedHead(nn.Module):
    """A head that has done its work: features ``(B, D)`` stay as they are; its weights are only kept."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.inner = head

    def forward(self, features: Tensor) -> Tensor:
        """Hand on."""
        return features


class Finished(Backbone):
    """A backbone that takes its own features ``(B, D)`` instead of pictures; streams of both know the same state."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self._names = backbone.head_parameter_names
        self.family, self.name = backbone.family, backbone.name
        self.preprocessing = VectorPreprocessing(size=backbone.feature_size)
        self.trunk, self.head = nn.Identity(), FinishedHead(backbone.head)
        self.hidden_shape = (backbone.feature_size,)
        self.feature_size = backbone.feature_size

    def head_parameter_names(self, scope: Scope) -> list[str]:
        """Return the scope's names of the head that has done its work."""
        return [f"inner.{name}" for name in self._names(scope)]

    def architecture(self) -> dict[str, Any]:
        """Refuse: what is saved is the encoder itself."""
        raise NotImplementedError("save the encoder that made the features.")

    @classmethod
    def from_architecture(cls, architecture: dict[str, Any], preprocessing: Preprocessing) -> Finished:
        """Refuse: nothing like this is ever saved."""
        raise NotImplementedError("build the encoder that made the features.")


def takes_vectors(backbone: Backbone) -> bool:
    """Was this encoder made for embeddings?"""
    return isinstance(backbone.preprocessing, VectorPreprocessing)


def check_vectors(facts: VectorFacts, backbone: Backbone, where: str) -> None:
    """Refuse vectors that lie in another space than those a model knows."""
    single = backbone.base if isinstance(backbone, Paired) else backbone
    made_by = f"by {facts.name or 'an encoder that nobody wrote down'}"
    if not isinstance(single, Vectors):
        if facts.encoder != backbone.fingerprint():
            raise DataError(
                f"{where}: its vectors were made {made_by}, not by this model's own encoder; make them with "
                "`talon embed DATA -m MODEL`, or fit a model on vectors of the same encoder."
            )
    elif facts.size != single.feature_size:
        raise DataError(f"{where}: its vectors have {facts.size} numbers, the model's {single.feature_size}.")
    elif facts.encoder and single.encoder and facts.encoder != single.encoder:
        raise DataError(
            f"{where}: its vectors were made {made_by}, those that the model was fitted on by another one "
            f"({single.name}); embed with the same encoder."
        )
