import pytest

from talon_ocd.config import ADAPTATIONS, PRESETS, TalonConfig
from talon_ocd.methods import get_method, list_methods
from talon_ocd.methods.evidence import EvidenceMethod
from talon_ocd.methods.registry import entry
from talon_ocd.methods.talon import TalonMethod, talon_row

ROWS = [*list_methods("ablation"), *list_methods("adapter"), *list_methods("floor")]


def talon_method(name: str, config: TalonConfig) -> TalonMethod:
    method = get_method(name, config)
    assert isinstance(method, TalonMethod)
    return method


@pytest.mark.parametrize(("set_to", "plain"), [("margin", "cosine"), ("cosine", "cosine"), ("linear", "linear")])
def test_rows_without_margin_take_the_classifier_that_is_set(set_to: str, plain: str) -> None:
    config = TalonConfig().override(classifier=set_to)
    rows = {margin: talon_row(config, margin, ()) for margin in (False, True)}
    assert rows[False].recipe.config.offline.classifier == plain
    assert rows[True].recipe.config.offline.classifier == "margin"
    assert isinstance(rows[True], TalonMethod) and rows[True].adapt == ()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", ROWS)
def test_talon_is_talon_on_every_preset(name: str, preset: str) -> None:
    config = talon_method(name, TalonConfig.from_preset(preset)).recipe.config
    assert (config.online.rule, config.online.adapt) == ("cosine", ADAPTATIONS)
    assert not config.offline.keep_pretrained


@pytest.mark.parametrize("preset", PRESETS)
def test_rows_with_margin_share_one_fit_and_those_without_another(preset: str) -> None:
    config = TalonConfig.from_preset(preset)
    keys: dict[bool, set[str]] = {True: set(), False: set()}
    for name in (*list_methods("ablation"), *list_methods("adapter")):
        with_margin = name == "talon" or "MLC" in entry(name).title
        recipe = talon_method(name, config).recipe
        assert (recipe.config.offline.classifier == "margin") == with_margin, name
        keys[with_margin].add(recipe.key)
    assert len(keys[True]) == len(keys[False]) == 1 and keys[True] != keys[False]


@pytest.mark.parametrize("preset", PRESETS)
def test_rows_of_the_evidence_rule_share_one_fit_that_is_trained_as_the_preset_says(preset: str) -> None:
    config = TalonConfig.from_preset(preset)
    methods = [get_method(name, config) for name in list_methods("ours")]
    assert all(isinstance(method, EvidenceMethod) for method in methods) and len(set(map(repr, methods))) == 7
    assert len({method.recipe.key for method in methods}) == 1
    found = methods[0].recipe.config  # type: ignore[attr-defined]
    assert found.online.by_evidence and found.offline == config.offline


@pytest.mark.parametrize(("adapt", "kept"), [("none", ()), ("encoder", ("encoder",))])
def test_what_is_asked_to_adapt_does_so_on_the_default_preset_too(adapt: str, kept: tuple[str, ...]) -> None:
    assert talon_method("talon", TalonConfig().override(adapt=adapt)).recipe.config.online.adapt == kept
