from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from talon_ocd import Talon
from talon_ocd.durable import Draft
from talon_ocd.service import routes_stream
from talon_ocd.service.events import BACKLOG, Broadcaster, message
from talon_ocd.service.problems import Problem
from tests.service.listening import listening
from tests.service.running import TOKEN, WAIT, digits, running


def test_listeners_hear_what_happens(fitted: Talon, folder: Path) -> None:
    with running(fitted, folder) as service, listening(service.port) as one, listening(service.port) as two:
        client = service.client()
        for listener in (one, two):
            first = listener.next()
            assert first is not None and first.kind == "status" and first.data["answered"] == 0 and first.id == "0"
        answers = [client.decide(image).json for image in digits()[:10]]
        founded = [answer["category"] for answer in answers if answer["verdict"] == "new"]
        assert founded
        for listener in (one, two):
            heard = [listener.next("decision") for _ in answers]
            assert [news.data["index"] for news in heard if news] == list(range(10))
            assert heard[3] is not None and heard[3].data == answers[3]
        named = client("PATCH", f"/v1/categories/{founded[0]}", {"name": "<b>found</b>"}).json["event"]
        news = one.next("ledger")
        assert news is not None and news.data == named and news.id == str(named["seq"])
        client.decide(digits()[11], "?learn=false")
        client.decide(digits()[11], key="k")
        client.decide(digits()[11], key="k")
        client.decide(digits()[12])
        heard_later = [two.next("decision") for _ in range(2)]
        assert [news.data["index"] for news in heard_later if news] == [10, 11]  # no looks, no replays


def test_founded_categories_are_told(fitted: Talon, folder: Path) -> None:
    with running(fitted, folder) as service, listening(service.port) as listener:
        assert listener.next("status") is not None
        decisions = service.client().batch(digits()[:20]).json["decisions"]
        founded = [answer["category"] for answer in decisions if answer["verdict"] == "new"]
        heard = [listener.next("ledger") for _ in founded]
        assert [(news.data["kind"], news.data["category"]) for news in heard if news] == [
            ("created", category) for category in founded
        ]


def test_status_comes_when_something_changed(fitted: Talon, folder: Path) -> None:
    with running(fitted, folder) as service, listening(service.port) as listener:
        assert listener.next("status") is not None
        service.client().decide(digits()[0])
        news = listener.next("status")
        while news is not None and not news.data["answered"]:
            news = listener.next("status")
        assert news is not None and news.data["verdicts"]["known"] + news.data["verdicts"]["new"] == 1


def test_who_was_away_gets_what_was_missed(fitted: Talon, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(fitted, folder) as service:
        client = service.client()
        events = [client("PATCH", "/v1/categories/0", {"name": f"name {number}"}).json["event"] for number in range(5)]
        last = str(events[1]["seq"])
        with listening(service.port, {"Last-Event-ID": last}) as listener:
            heard = [listener.next() for _ in range(4)]
            assert [(news.kind, news.id) for news in heard if news] == [
                *(("ledger", str(event["seq"])) for event in events[2:]),
                ("status", str(events[-1]["seq"])),
            ]
            client("PATCH", "/v1/categories/0", {"name": "later"})
            news = listener.next("ledger")
            assert news is not None and news.data["data"]["name"] == "later"
        for nonsense in ("x", "-1", "9" * 30):
            with listening(service.port, {"Last-Event-ID": nonsense}) as listener:
                first = listener.next()
                assert first is not None and first.kind == "status"
        monkeypatch.setattr(routes_stream, "MOST_RESUMED", 3)
        with listening(service.port, {"Last-Event-ID": "0"}) as listener:
            assert [news.kind for news in (listener.next(), listener.next()) if news] == ["resync", "status"]


def test_listeners_are_sent_away_when_the_service_stops(fitted: Talon, folder: Path) -> None:
    with running(fitted, folder) as service, listening(service.port) as listener:
        assert listener.next("status") is not None
        service.stop()
        while listener.next() is not None:
            pass


def test_events_need_the_token(fitted: Talon, folder: Path) -> None:
    with running(fitted, folder, token=TOKEN) as service:
        service.client().get("/v1/events").problem("token-needed")
        cookie = service.client().post("/v1/session", {"token": TOKEN}).headers["set-cookie"].partition(";")[0]
        with listening(service.port, {"Cookie": cookie}) as listener:
            assert listener.next("status") is not None


def test_a_client_that_does_not_keep_up_is_sent_away() -> None:
    async def story() -> tuple[int, int]:
        broadcaster = Broadcaster(1)
        listener = broadcaster.join()
        with pytest.raises(Problem, match="listen already"):
            broadcaster.join()
        for number in range(BACKLOG + 5):
            broadcaster.publish(message("ledger", {"number": number}, number + 1))
        await asyncio.sleep(0)
        received = [content async for content in broadcaster.stream(listener, [])]
        return len(received), len(broadcaster)

    received, left = asyncio.run(story())
    assert received <= BACKLOG + 1 and left == 0


def test_nothing_comes_twice() -> None:
    async def story() -> list[bytes]:
        broadcaster = Broadcaster(1)
        listener = broadcaster.join()
        for number in (1, 2, 3):
            broadcaster.publish(message("ledger", {}, number))
        await asyncio.sleep(0)
        broadcaster.close()
        await asyncio.sleep(0)
        return [content async for content in broadcaster.stream(listener, [message("ledger", {}, 2)])]

    numbers = [content.split(b"\n")[0] for content in asyncio.run(story())]
    assert numbers == [b"retry: 2000", b"id: 2", b"id: 3"]


def test_events_of_the_guard_are_told_whatever_they_measured(fitted: Talon, folder: Path) -> None:
    with running(fitted, folder) as service, listening(service.port) as listener:
        assert listener.next("status") is not None
        journal, facts = service.service.journal, {"reason": "no features", "values": {"accuracy": float("nan")}}
        event = journal.append(Draft("guard", None, facts), 0)
        service.service.worker.call(lambda: service.service.announce(event)).result(WAIT)
        news = listener.next("ledger")
        assert news is not None and news.data["data"] == {"reason": "no features", "values": {"accuracy": None}}
        shown = service.client().get("/v1/history?everything=true").json["items"][0]
        assert shown == news.data and "no features" in shown["summary"]
