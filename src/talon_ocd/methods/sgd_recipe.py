"""The optimisation of SMILE's released code (layer: methods; section 3.8), which the older baselines share here."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor, nn

from talon_ocd.backbones.base import Scope
from talon_ocd.methods.base import GradientRecipe
from talon_ocd.methods.training import Group, Loss, Training, cosine_rate
from talon_ocd.offline import Labelled
from talon_ocd.progress import Progress


class Pace(NamedTuple):
    """A learning rate and a weight decay that belong together."""

    lr: float
    weight_decay: float


LONG = Pace(0.01, 5e-5)
"""What the released launch script sets, for 100 epochs."""
SHORT = Pace(0.1, 1e-4)
"""What the released code has as argument defaults, for 20 epochs."""
SHORT_EPOCHS = 20
"""Up to so many epochs a training is short."""


@dataclass(frozen=True)
class SgdRecipe(GradientRecipe):
    """SGD with momentum 0.9 and a cosine down to a thousandth of the rate; one rate for head and layers."""

    lr: float = LONG.lr
    """Learning rate of the first epoch."""
    weight_decay: float = LONG.weight_decay
    """Weight decay of everything that is trained."""
    trainable: Scope = "head"
    """What of the backbone is trained."""
    mlp_width: int = 2048
    """Width of the MLP between head and code."""
    argument_defaults: bool = False
    """Let ``with_epochs`` take the released argument defaults up to 20 epochs: made for a ViT, too fast for a CNN."""

    @abstractmethod
    def loss(self, network: Any) -> Loss:
        """Return what training minimises."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the losses to report, ``loss`` first."""
        return ("loss",)

    def train(self, network: nn.Module, labelled: Labelled, seed: int, progress: Progress) -> dict[str, Any]:
        """Minimise the loss; a partial batch is left out unless it is the only one."""
        return self.training.run(network, self.groups(network), self.loss(network), labelled, seed, progress)

    @property
    def training(self) -> Training:
        """How often, how fast and in which batches."""
        rate = cosine_rate(self.epochs)
        return Training(self.epochs, self.batch_size, "sgd", rate, self.parts, whole_batches=True)

    def groups(self, network: Any) -> list[Group]:
        """Return all that is trained: what ``trainable`` names of the head, and every layer after it."""
        behind = [parameter for name, parameter in network.named_parameters() if not name.startswith("head.")]
        return [Group([*network.head_parameters(), *behind], self.lr, self.weight_decay)]

    def facts(self, network: Any, labelled: Labelled) -> dict[str, Tensor]:
        """Return nothing: streams of descriptors start empty, known classes are not registered."""
        return {}

    def with_epochs(self, epochs: int) -> SgdRecipe:
        """Return this recipe with another length of training.

        With ``argument_defaults``, rate and weight decay become those that the released code has for such a length;
        values that it has nowhere were chosen by somebody, and stay.
        """
        if not self.argument_defaults or (self.lr, self.weight_decay) not in (LONG, SHORT):
            return replace(self, epochs=epochs)
        pace = SHORT if epochs <= SHORT_EPOCHS else LONG
        return replace(self, epochs=epochs, lr=pace.lr, weight_decay=pace.weight_decay)
