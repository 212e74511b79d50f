"""``talon serve`` as a program of its own."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from talon_ocd import Talon
from talon_ocd.cli import serve as module
from tests.cli.programs import Program, program
from tests.cli.running import refused
from tests.service.listening import listening
from tests.service.running import TOKEN, Client, digits, running


@contextmanager
def serving(model: Path, folder: Path, *options: str, token: str | None = None) -> Iterator[tuple[Client, Program]]:
    """Run ``talon serve`` on a free port."""
    with program("serve", "-m", str(model), "--stream", str(folder), "--port", "0", *options) as started:
        found = started.says(r"http://127\.0\.0\.1:(\d+) \(\d+ images")
        yield Client(int(found.group(1)), token), started


@pytest.mark.parametrize(("number", "place"), [(signal.SIGTERM, "file"), (signal.SIGINT, "environment")])
def test_it_answers_and_stops_in_peace(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, place: str
) -> None:
    """Its token comes from a file or the environment, and is in nothing that it writes."""
    options = ["--log", "--most-categories", "7"]
    if place == "file":
        (tmp_path / "token").write_text(f"{TOKEN}\n", encoding="utf-8")
        options += ["--token-file", str(tmp_path / "token")]
    else:
        monkeypatch.setenv("TALON_TOKEN", TOKEN)
    with serving(model, tmp_path / "stream", *options, token=TOKEN) as (client, started):
        Client(client.port).get("/v1/status").problem("token-needed")
        assert client.decide(digits()[0]).json["index"] == 0
        with listening(client.port, {"Authorization": f"Bearer {TOKEN}"}) as listener:
            assert listener.next("status") is not None
            assert started.stop(number) == 0
        assert "everything that was answered is kept" in started.said and TOKEN not in started.said
    with Talon.from_pretrained(model).stream(tmp_path / "stream") as stream:
        assert stream.answered == 1 and stream.snapshots.all()[0].answered == 1
        assert stream.discovery.bounds.most_categories == 7


def test_killed_in_the_middle_it_has_all_that_it_answered(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "stream") as (client, started):
        before = [client.decide(image, key=f"k{at}").json for at, image in enumerate(digits()[:12])]
        client("PATCH", "/v1/categories/0", {"name": "nought"})
        assert started.stop(signal.SIGKILL) != 0
    with running(Talon.from_pretrained(model), tmp_path / "stream") as service:
        client = service.client()
        again = [client.decide(image, key=f"k{at}").json for at, image in enumerate(digits()[:12])]
        kept = ("index", "category", "similarity", "verdict", "runner_up")
        assert [[answer[name] for name in kept] for answer in again] == [
            [answer[name] for name in kept] for answer in before
        ]
        assert client.get("/v1/status").json["answered"] == 12
        assert client.get("/v1/categories/0").json["name"] == "nought"


def test_refusals(model: Path, tmp_path: Path) -> None:
    words = ("serve", "-m", model, "--stream", tmp_path / "stream")
    assert "a token is needed" in refused(*words, "--host", "0.0.0.0")
    assert not (tmp_path / "stream").exists()
    assert "8 or more" in refused(*words, "--token", "short")
    assert "use one of them" in refused(*words, "--token", TOKEN, "--token-file", tmp_path / "x")
    assert "can't be read" in refused(*words, "--token-file", tmp_path / "missing")
    assert "port=-1" in refused(*words, "--port", "-1")
    assert "max_body=0" in refused(*words, "--max-body", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "another --port" in refused(*words, "--port", taken.getsockname()[1])
    assert "no model" in refused("serve", "-m", tmp_path, "--stream", tmp_path / "stream", "--port", "0").lower()


def test_without_the_extra_it_says_what_to_install(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NEEDED", ("fastapi", "a_package_that_is_not_there"))
    message = refused("serve", "-m", model, "--stream", tmp_path / "stream")
    assert "needs a_package_that_is_not_there" in message and "pip install 'talon-ocd[serve]'" in message
