import io
import re
from collections.abc import Iterator

import pytest
from rich.console import Console

from talon_ocd.cli import display as module
from talon_ocd.cli.display import BarProgress, LineProgress, facts_text, progress_for
from talon_ocd.progress import SILENT


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    fake = Clock()
    monkeypatch.setattr(module, "time", fake)
    yield fake


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=80, force_terminal=terminal, color_system=None, legacy_windows=False), text


def test_the_progress_suits_its_reader() -> None:
    assert progress_for(console(True)[0], quiet=True) is SILENT
    assert isinstance(progress_for(console(True)[0]), BarProgress)
    assert isinstance(progress_for(console(False)[0]), LineProgress)


def test_lines_come_seldom_and_at_the_end(clock: Clock) -> None:
    plain, text = console(False)
    with LineProgress(plain).task("Training", 100) as task:
        for _ in range(10):
            clock.now += 4
            task.advance(10, loss=1.0)
    lines = text.getvalue().splitlines()
    assert lines == [
        "Training: 30/100 images, 2.5/s, 28 s left loss 1",
        "Training: 60/100 images, 2.5/s, 16 s left loss 1",
        "Training: 90/100 images, 2.5/s, 4 s left loss 1",
        "Training: 100/100 images, 2.5/s, 40.0 s loss 1",
    ]
    assert "\x1b" not in text.getvalue()


def test_work_of_unknown_length(clock: Clock) -> None:
    plain, text = console(False)
    with LineProgress(plain).task("Discovering", unit="lines") as task:
        clock.now += 20
        task.advance(4)
    assert text.getvalue().splitlines() == ["Discovering: 4 lines, 0.2/s", "Discovering: 4 lines, 0.2/s, 20.0 s"]


def test_no_time_is_no_division(clock: Clock) -> None:
    plain, text = console(False)
    with LineProgress(plain).task("Looking", 0):
        pass
    assert text.getvalue() == "Looking: 0/0 images, 0.0/s, 0.0 s\n"


def test_notes_are_plain_text() -> None:
    for terminal in (True, False):
        plain, text = console(terminal)
        progress_for(plain).note("[bold]a/[b].png[/] was left out")
        assert text.getvalue() == "note: [bold]a/[b].png[/] was left out\n"


def test_bars_fit_a_terminal_and_nest() -> None:
    plain, text = console(True)
    progress = BarProgress(plain)
    with progress.task("Training for the rehearsal", 20) as outer:
        outer.advance(10, loss=1.23456)
        with progress.task("Rehearsing discovery", 4, unit="thresholds") as inner:
            inner.advance()
            progress.note("in between")
        outer.advance(10)
    with progress.task("Discovering") as again:
        again.advance(3)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue())
    assert "note: in between" in shown and "20/20" in shown and "loss 1.235" in shown and "3/?" in shown
    assert max(len(line) for line in re.split(r"[\r\n]", shown)) <= 80


def test_a_bar_survives_an_error() -> None:
    plain, _ = console(True)
    progress = BarProgress(plain)
    with pytest.raises(KeyboardInterrupt), progress.task("Training", 3):
        raise KeyboardInterrupt
    with progress.task("Training", 3) as task:
        task.advance(3)


def test_facts() -> None:
    assert facts_text({"loss": 0.123456, "categories": 12, "phase": "warm"}) == "loss 0.1235  categories 12  phase warm"
