from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from talon_ocd import Talon
from talon_ocd.durable import DurableStream
from talon_ocd.errors import StorageError, StreamInUseError
from talon_ocd.images import memory_item
from talon_ocd.service.encoding import LocalEncoding
from talon_ocd.service.jobs import Outcome
from talon_ocd.service.metrics import Metrics
from talon_ocd.service.service import Service
from talon_ocd.service.settings import ServiceSettings
from talon_ocd.service.worker import MICRO_BATCH, Worker
from tests.service.running import WAIT, Running, digits, running
from tests.service.test_limits import hold, wait_until


def test_many_clients_lose_nothing_and_double_nothing(fitted: Talon, folder: Path) -> None:
    """Singles, batches and repeated keys from many threads, with people and readers in between."""
    with running(fitted, folder) as service, ThreadPoolExecutor(12) as pool:

        def send(number: int) -> list[int]:
            client, image = service.client(), digits()[number % 60]
            if number % 5 == 0:
                answers = client.batch([image, digits()[(number + 1) % 60]], key=f"batch-{number}").json["decisions"]
                return [answer["index"] for answer in answers]
            first = client.decide(image, f"?source={number}", key=f"key-{number}")
            again = client.decide(image, f"?source={number}", key=f"key-{number}")
            assert first.json["index"] == again.json["index"] and again.headers["idempotent-replay"] == "true"
            return [first.json["index"]]

        def edit(number: int) -> int:
            service.client().get("/v1/categories?state=all")
            return service.client()("PATCH", "/v1/categories/0", {"name": f"name {number}"}).status

        sending = [pool.submit(send, number) for number in range(60)]
        editing = [pool.submit(edit, number) for number in range(20)]
        indices = [index for future in sending for index in future.result(WAIT)]
        assert {future.result(WAIT) for future in editing} == {200}
        assert sorted(indices) == list(range(72)) and service.service.stream.answered == 72
        status = service.client().get("/v1/status").json
        assert sum(status["verdicts"].values()) == 72 and status["waiting"] == 0
        rows = service.service.journal.query("SELECT count(*) AS n, count(DISTINCT idx) AS d FROM decisions")
        assert (rows[0]["n"], rows[0]["d"]) == (72, 72)


def test_what_waits_is_encoded_together_and_answered_in_order(
    fitted: Talon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    with fitted.stream(folder) as stream:
        metrics = Metrics()
        monkeypatch.setattr(metrics, "batch", batches.append)
        worker = Worker(stream, LocalEncoding(stream), ServiceSettings(), metrics)
        release = threading.Event()
        worker.call(lambda: release.wait(WAIT))
        first = [worker.submit([memory_item(image, str(at))], True) for at, image in enumerate(digits())]
        wait_until(lambda: sum(batches) >= 2)
        release.set()
        outcomes = [future.result(WAIT)[0] for future in first]
        worker.close()
    assert all(isinstance(outcome, Outcome) for outcome in outcomes)
    assert sorted(outcome.decision.index for outcome in outcomes if isinstance(outcome, Outcome)) == list(range(60))
    assert max(batches) > 1 and max(batches) <= MICRO_BATCH and sum(batches) == 60


def test_reading_waits_for_nobody(fitted: Talon, folder: Path) -> None:
    with running(fitted, folder) as service:
        client = service.client()
        assert client.batch(digits()[:10]).status == 200
        release = hold(service)
        with ThreadPoolExecutor(2) as pool:
            answer = pool.submit(client.decide, digits()[11])
            naming = pool.submit(client, "PATCH", "/v1/categories/0", {"name": "zero"})
            for path in (
                "status", "categories", "categories/0", "categories/0/images", "images", "images/0/thumbnail",
                "images/0", "images/0/decision", "history", "suggestions", "what-if", "map",
            ):  # fmt: skip
                assert client.get(f"/v1/{path}").status == 200, path
            assert client.get("/metrics").status == 200 and client.get("/readyz").status == 200
            assert not answer.done() and not naming.done()
            release.set()
            assert answer.result(WAIT).status == naming.result(WAIT).status == 200


def test_a_service_goes_on_where_it_stopped(fitted: Talon, folder: Path) -> None:
    wanted = [(d.index, d.category) for d in fitted.stream().observe_many(list(digits(60)))]
    found: list[tuple[int, int]] = []

    def send(service: Running, first: int, last: int) -> None:
        for number in range(first, last):
            answer = service.client().decide(digits(60)[number], key=f"k{number}").json
            found.append((answer["index"], answer["category"]))

    with running(fitted, folder) as service:
        send(service, 0, 25)
        named = service.client()("PATCH", "/v1/categories/4", {"name": "found"}).json["event"]
    with running(fitted, folder) as service:
        client = service.client()
        assert client.get("/v1/categories/4").json["name"] == "found"
        replay = client.decide(digits(60)[24], key="k24")
        assert replay.headers["idempotent-replay"] == "true" and replay.json["index"] == 24
        assert sum(client.get("/v1/status").json["verdicts"].values()) == 25
        assert client.get("/v1/images/24").body == digits(60)[24]
        send(service, 25, 60)
        client.post("/v1/undo", {"event": named["seq"]})
        assert client.get("/v1/categories/4").json["named"] is False
    assert found == wanted


def test_stopping_finishes_what_waits(fitted: Talon, folder: Path) -> None:
    with running(fitted, folder) as service:
        release = hold(service)
        with ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(service.client().decide, image) for image in digits()[:6]]
            wait_until(lambda: service.service.worker.waiting == 6)
            stopping = pool.submit(service.stop)
            wait_until(lambda: service.service.stopping)
            release.set()
            assert sorted(answer.result(WAIT).json["index"] for answer in answers) == list(range(6))
            stopping.result(WAIT)
    with fitted.stream(folder) as stream:
        assert stream.answered == 6 and stream.snapshots.all()[0].answered == 6


def test_a_folder_has_one_service(fitted: Talon, folder: Path) -> None:
    with running(fitted, folder), pytest.raises(StreamInUseError, match="talon serve"), running(fitted, folder):
        pass


def test_a_service_that_can_not_start_leaves_nobody_at_work(fitted: Talon, folder: Path) -> None:
    """The worker refuses this encoding; both it and the stream are closed again."""
    closed = []

    class Wrong(LocalEncoding):
        ahead = -1

        def close(self) -> None:
            super().close()
            closed.append(self)

    with pytest.raises(ValueError, match="semaphore"):
        Service(fitted, folder, ServiceSettings(), encoding=Wrong)
    assert len(closed) == 1
    with running(fitted, folder) as service:
        assert service.client().decide(digits()[0]).json["index"] == 0


def test_a_full_disk_is_told_and_loses_nothing(fitted: Talon, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise StorageError("no space left on device")

    with running(fitted, folder) as service:
        client = service.client()
        assert client.decide(digits()[0]).json["index"] == 0
        with monkeypatch.context() as patch:
            patch.setattr(service.service.stream.pictures, "store", full)
            client.decide(digits()[1]).problem("storage")
        assert client.decide(digits()[2]).json["index"] == 1
        with monkeypatch.context() as patch:
            patch.setattr(service.service.journal, "write", full)
            client.decide(digits()[3]).problem("storage")
        client.decide(digits()[4]).problem("storage")  # memory and journal disagree: it must be opened again
        assert client.get("/v1/images").status == 200
        assert client.get("/readyz").status == 503
        assert client.post("/v1/images:reject", {"images": [0]}).status == 200  # the disk is back, the stream is not
        assert [event["kind"] for event in client.get("/v1/history").json["items"]] == ["rejected"]
    with running(fitted, folder) as service:
        assert service.client().get("/v1/images?limit=1&before=1").json["items"][0]["home"] == -1
        assert service.client().decide(digits()[3]).json["index"] == 2


def test_an_unexpected_error_is_a_500_that_tells_nothing(
    fitted: Talon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def surprise(self: DurableStream, canvases: Any) -> Any:
        raise RuntimeError("secret inner words")

    with running(fitted, folder) as service:
        with monkeypatch.context() as patch:
            patch.setattr(DurableStream, "encode_loaded", surprise)
            refused = service.client().decide(digits()[0])
        assert refused.status == 500
        assert "secret" not in str(refused.problem("internal"))
        assert service.client().decide(digits()[0]).json["index"] == 0


def test_metrics_count(fitted: Talon, folder: Path) -> None:
    with running(fitted, folder) as service:
        client = service.client()
        decisions = client.batch(digits()[:20]).json["decisions"]
        client.get("/v1/nothing")
        client.decide(b"no image")
        text = client.get("/metrics")
        assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
        values = dict(line.rsplit(" ", 1) for line in text.body.decode().splitlines() if not line.startswith("#"))
        for verdict, number in Counter(decision["verdict"] for decision in decisions).items():
            assert float(values[f'talon_decisions_total{{verdict="{verdict}"}}']) == number
        status = client.get("/v1/status").json
        assert float(values["talon_categories"]) == status["categories"]
        assert float(values["talon_prototypes"]) == service.service.stream.memory.size
        assert float(values["talon_answered"]) == 20 and float(values["talon_queue_images"]) == 0
        assert float(values["talon_journal_bytes"]) > 10_000
        assert float(values["talon_encoders"]) >= 1
        assert float(values['talon_rejected_requests_total{status="404"}']) == 1
        assert float(values['talon_rejected_requests_total{status="422"}']) == 1
        assert float(values['talon_stage_seconds_count{stage="decode"}']) == 21
        for stage in ("encode", "decide"):
            assert float(values[f'talon_stage_seconds_count{{stage="{stage}"}}']) >= 1
        assert float(values["talon_decide_seconds_count"]) == 2
        assert "talon_guard_refused_total" in values and "talon_adaptation_steps_total" in values
        assert not any("nothing" in name for name in values)  # labels are routes, not what clients invent


def test_the_encoder_learns_while_it_serves(fitted: Talon, folder: Path) -> None:
    with running(fitted, folder, threshold=0.7, adapt="prototypes,encoder") as service:
        client = service.client()
        with ThreadPoolExecutor(6) as pool:
            answers = [answer.json for answer in pool.map(client.decide, [*digits(60), *digits(60), *digits(20)])]
        assert sorted(answer["index"] for answer in answers) == list(range(140))
        journal = service.service.stream.journal
        assert all(answer["steps"] == journal.steps(answer["index"]) for answer in answers)  # as a repeat would say
        before = client.get("/v1/status").json
        assert before["adapt"] == "prototypes,encoder"
        judged, skipped = before["guard"]["taken"] + before["guard"]["refused"], before["guard"]["skipped"]
        adaptations = 140 // service.service.stream.config.adapt_every
        assert 2 * judged + skipped == adaptations  # a step at one, the verdict at the next
        assert before["encoder_steps"] == before["guard"]["taken"]
        assert b'talon_stage_seconds_count{stage="adapt"}' in client.get("/metrics").body
    with running(fitted, folder) as service:
        after = service.client().get("/v1/status").json
        assert {**after, "rate": 0, "uptime": 0} == {**before, "rate": 0, "uptime": 0}


def test_two_services_count_apart(fitted: Talon, tmp_path: Path) -> None:
    with running(fitted, tmp_path / "a") as one, running(fitted, tmp_path / "b") as two:
        one.client().decide(digits()[0])
        assert b"talon_answered 1.0" in one.client().get("/metrics").body
        assert b"talon_answered 0.0" in two.client().get("/metrics").body
