import pytest

from talon_ocd.config import TalonConfig
from talon_ocd.methods.talon import TalonMethod, talon_row


@pytest.mark.parametrize(("set_to", "plain"), [("margin", "cosine"), ("cosine", "cosine"), ("linear", "linear")])
def test_rows_without_margin_take_the_classifier_that_is_set(set_to: str, plain: str) -> None:
    config = TalonConfig().override(classifier=set_to)
    rows = {margin: talon_row(config, margin, ()) for margin in (False, True)}
    assert rows[False].recipe.config.offline.classifier == plain
    assert rows[True].recipe.config.offline.classifier == "margin"
    assert isinstance(rows[True], TalonMethod) and rows[True].adapt == ()
