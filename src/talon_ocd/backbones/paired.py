"""An encoder whose features have several parts, side by side (layer: backbones).

Training on known classes moves features that new classes would need. So the pre-trained head stays beside the one that
is trained: what the first sees of anything, and what the second sees of the known. The other parts are their textures.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from talon_ocd.backbones.base import Backbone, Scope
from talon_ocd.backbones.texture import Texture
from talon_ocd.images.transforms import Preprocessing

KIND = "paired"
AT_ONCE = 64
"""Images that texture is learned from together: their activations need memory."""


class PairedHead(nn.Module):
    """Parts side by side: hidden ``(B, *hidden_shape)`` -> ``(B, D)``, each centred and scaled to its length.

    Attributes:
        first: the pre-trained head; it never moves, unless it is the only one.
        second: the head that training and adaptation move; ``None`` if there is no training, or if it would not pay.
        texture: how local features of the first head vary together; ``None`` if it is not wanted.
        second_texture: the same of the second head; ``None`` if there is no such head or it is not wanted.
        wants_second_texture: whether a second head has one, if there is a second head.
        weight: length of the second head's parts ``()``; all others have length 1.
        centres: what is subtracted from the unit features of the heads ``(heads, feature_size)``; ``centre`` sets it.
    """

    centres: Tensor
    weight: Tensor

    def __init__(
        self,
        head: nn.Module,
        feature_size: int,
        trained: bool = True,
        texture: Texture | None = None,
        trained_texture: bool = False,
    ) -> None:
        super().__init__()
        self.first = copy.deepcopy(head)
        self.second = copy.deepcopy(head) if trained else None
        self.texture, self.wants_second_texture = texture, trained_texture and texture is not None
        self.second_texture = copy.deepcopy(texture) if trained and self.wants_second_texture else None
        self.register_buffer("centres", torch.zeros(1 + trained, feature_size))
        self.register_buffer("weight", torch.tensor(1.0))

    @property
    def feature_size(self) -> int:
        """D, of all parts together."""
        return self.centres.numel() + sum(texture.size for texture in self.textures)

    @property
    def heads(self) -> list[nn.Module]:
        """The pre-trained head and, if there is one, that which is trained."""
        return [self.first] if self.second is None else [self.first, self.second]

    @property
    def trained(self) -> nn.Module:
        """The head that may move."""
        return self.heads[-1]

    @property
    def textures(self) -> list[Texture]:
        """Those that are wanted, in the order of the heads."""
        return [texture for texture in (self.texture, self.second_texture) if texture is not None]

    def add_second(self) -> None:
        """Put a second head beside the first, if there is none, for a training to move."""
        if self.second is None:
            self.second, self.centres = copy.deepcopy(self.first), self.centres.repeat(2, 1)
            self.second_texture = copy.deepcopy(self.texture) if self.wants_second_texture else None

    def drop_second(self) -> None:
        """Go on without the second head: untrained it would only be the first one once more."""
        self.second, self.second_texture, self.centres = None, None, self.centres[:1].clone()
        self.weight.fill_(1.0)

    def forward(self, hidden: Tensor) -> Tensor:
        """Encode with all parts."""
        first, texture = _seen(self.first, self.texture, hidden)
        parts, textures = [self._centred(first, 0)], [texture]
        if self.second is not None:
            second, texture = _seen(self.second, self.second_texture, hidden)
            parts.append(self.weight * self._centred(second, 1))
            textures.append(None if texture is None else self.weight * texture)
        return torch.cat([*parts, *(texture for texture in textures if texture is not None)], dim=1)

    def learn_textures(self, hidden: Tensor) -> None:
        """Learn from trunk outputs ``(N, *hidden_shape)`` of labelled images which local features vary most."""
        with torch.no_grad():
            for texture, head in zip(self.textures, self.heads, strict=False):
                texture.learn(torch.cat([_described(head, part)[1] for part in hidden.split(AT_ONCE)]))

    def centre(self, *features: Tensor) -> None:
        """Centre on the unit features ``(N, feature_size)`` that each of the heads gives of the labelled images."""
        self.centres.copy_(torch.stack([own.mean(dim=0) for own in features]))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take saved parts over: a head that was saved without a second one goes on without it.

        One that was saved before there were weights has the weight 1.
        """
        state_dict.setdefault(f"{prefix}weight", torch.tensor(1.0))
        if not any(name.startswith(f"{prefix}second.") for name in state_dict):
            self.drop_second()
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _centred(self, raw: Tensor, head: int) -> Tensor:
        """Return unit rows ``(B, feature_size)`` of what a head sees, without what it sees of all images."""
        return F.normalize(F.normalize(raw.float(), dim=1) - self.centres[head], dim=1)


class Paired(Backbone):
    """A backbone with a ``PairedHead``; trunk and preprocessing are those of ``base``, which stays as it is.

    Args:
        base: the encoder with its pre-trained head.
        trained: whether there is a second head, to be trained.
        texture: directions of local features whose covariance is a part of the feature; 0: none.
        trained_texture: whether the second head has a texture of its own, if there is one at all.
    """

    head: PairedHead

    def __init__(self, base: Backbone, trained: bool = True, texture: int = 0, trained_texture: bool = False) -> None:
        super().__init__()
        self._base = (base,)  # in a tuple: its parameters are not ours
        self.family, self.name = base.family, base.name
        self.preprocessing, self.hidden_shape = base.preprocessing, base.hidden_shape
        part = Texture(base.local_size, texture) if texture else None
        self.trunk = base.trunk
        self.head = PairedHead(base.head, base.feature_size, trained, part, trained_texture)
        self.finish()

    @property
    def feature_size(self) -> int:  # type: ignore[override]  # a fit may leave the second head out
        """D, of all parts together."""
        return self.head.feature_size

    @property
    def base(self) -> Backbone:
        """The encoder with its one head, as it was before training."""
        return self._base[0].with_head(self.head.first)  # also after weights were loaded or moved to a device

    def head_parameter_names(self, scope: Scope) -> list[str]:
        """Return the scope's names, of the second head only if there is one."""
        prefix = "first" if self.head.second is None else "second"
        return [f"{prefix}.{name}" for name in self.base.head_parameter_names(scope)]

    def architecture(self) -> dict[str, Any]:
        """Return which parts there are, and the base's, one level down."""
        texture = 0 if self.head.texture is None else self.head.texture.directions.shape[1]
        parts: dict[str, Any] = {"trained": self.head.second is not None, "texture": texture}
        if self.head.wants_second_texture:
            parts["trained_texture"] = True
        return {"kind": KIND, "name": self.name, **parts, "base": self.base.architecture()}

    @classmethod
    def from_architecture(cls, architecture: dict[str, Any], preprocessing: Preprocessing) -> Paired:
        """Build with random weights."""
        raise NotImplementedError("the registry builds the base first; use backbone_from_architecture.")

    def trunk_fingerprint(self) -> str:
        """Return the base's: both share trunk outputs."""
        return self.base.trunk_fingerprint()


def paired(backbone: Backbone, trained: bool = True, texture: int = 0, trained_texture: bool = False) -> Backbone:
    """Return the backbone with all parts that are wanted and that it has; one that has several stays as it is."""
    texture = min(texture, backbone.local_size)
    whole = isinstance(backbone, Paired) or not (trained or texture)
    return backbone if whole else Paired(backbone, trained, texture, trained_texture)


def _described(head: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return raw features ``(B, D)`` and the local features ``(B, P, C)`` behind them."""
    features, local = head.describe(hidden)  # type: ignore[operator]  # a backbone with a local_size has it
    return features, local


def _seen(head: nn.Module, texture: Texture | None, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return what a head sees, and its texture if there is one: the block before both runs once."""
    if texture is None:
        return head(hidden), None
    features, local = _described(head, hidden)
    return features, texture(local.detach())  # roots of eigenvalues near 0 have no gradient to speak of
