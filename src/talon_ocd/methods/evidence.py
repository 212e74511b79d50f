"""The evidence rule as a method, and the rows of its ablation (layer: methods; ``docs/evidence.md``).

All rows share one fit: they differ in what their streams do with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from talon_ocd.config import Adaptation, TalonConfig
from talon_ocd.memory import PrototypeMemory
from talon_ocd.methods.base import Method, Trained
from talon_ocd.methods.streams import MethodStream, PrototypeStream
from talon_ocd.methods.talon import AdaptiveStream, TalonMethod, TalonRecipe
from talon_ocd.online import Evidence, EvidenceRule, FeatureStream
from talon_ocd.online.feature_stream import section
from talon_ocd.talon import prepared


@dataclass(frozen=True)
class EvidenceMethod(Method):
    """Discovery by evidence.

    Attributes:
        recipe: how the encoder is trained and the evidence estimated.
        adapt: what keeps learning; ``None`` is what the settings say.
        offset: α; ``None`` is what the recipe rehearsed or was given.
        sweeps: of second thoughts; ``None`` is what the settings say.
        regroup: images that are grouped anew; ``None`` is what the settings say.
        branch_below: chance below which images leave a known class; ``None`` is what the settings say.
    """

    recipe: TalonRecipe = field(default_factory=TalonRecipe)
    adapt: tuple[Adaptation, ...] | None = None
    offset: float | None = None
    sweeps: int | None = None
    regroup: int | None = None
    branch_below: float | None = None

    def stream(self, trained: Trained) -> MethodStream:
        """Open a stream with its own beliefs; where nothing could be estimated, it is TALON's."""
        state = section(trained.facts, "evidence")
        if not state:
            return TalonMethod(self.recipe, self.adapt).stream(trained)
        config = self.recipe.config
        online = config.online if self.adapt is None else replace(config.online, adapt=self.adapt)
        evidence = Evidence.from_state_dict(state)
        if self.offset is not None:
            evidence = evidence.with_offset(self.offset)
        others = {name: getattr(self, name) for name in ("sweeps", "regroup", "branch_below")}
        settings = replace(config.evidence, **{name: value for name, value in others.items() if value is not None})
        rule = EvidenceRule(evidence, settings, learns="prototypes" in online.adapt)
        memory = PrototypeMemory(trained.facts["prototypes"])
        if "encoder" in online.adapt:
            encoder = prepared(trained.backbone, config.offline)
            return AdaptiveStream(trained, encoder, memory, online, rule=rule)
        return PrototypeStream(trained.network, FeatureStream(memory, online, trained.names, rule))


def evidence_recipe(config: TalonConfig) -> TalonRecipe:
    """Return the recipe for any preset: training as it says, then evidence in the place of its threshold."""
    return TalonRecipe(config.override(rule="evidence", threshold="auto"))
