from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_ocd import Talon
from talon_ocd.service.limits import MOST_CLIENTS, TokenBuckets
from talon_ocd.service.settings import ServiceSettings
from tests.images.test_decode import png_header
from tests.service.running import WAIT, Running, digits, form, running

HEAD = "POST /v1/decide HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


def raw(port: int, *parts: bytes) -> bytes:
    """Send parts as they are, and return all that comes until the service closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT) as connection:
        for part in parts:
            connection.sendall(part)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
            if b"\r\n\r\n" in received and b'"detail"' in received:
                break
        return received


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@pytest.fixture(scope="module")
def small(fitted: Talon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(
        fitted, tmp_path_factory.mktemp("small") / "s", max_body=100_000, max_pixels=10_000, body_seconds=0.3
    ) as service:
        yield service


def test_large_bodies_are_refused(small: Running) -> None:
    before = small.client().state()
    for body in (b"x" * 100_001, b"x" * 3_000_000):
        refused = small.client().decide(body)
        assert refused.status == 413 and refused.problem("too-large")["limit"] == 100_000
    content, kind = form([("image", "a.png", b"x" * 200_000)])
    small.client()("POST", "/v1/decide", content, {"Content-Type": kind}).problem("too-large")
    small.client()("PATCH", "/v1/categories/0", {"name": "x" * 200_000}).problem("too-large")
    assert small.client().decide(b"x" * 100_000).problem("invalid-image")
    assert small.client().state() == before


def test_a_large_body_of_unknown_length_is_refused_while_it_is_read(small: Running) -> None:
    parts = [f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode(), *[chunk(b"x" * 30_000)] * 4, b"0\r\n\r\n"]
    answer = raw(small.port, *parts)
    assert answer.startswith(b"HTTP/1.1 413 ") and b"too-large" in answer


def test_a_client_that_asks_first_need_not_send(small: Running) -> None:
    answer = raw(small.port, f"{HEAD}Content-Length: 5000000\r\nExpect: 100-continue\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_slow_bodies_are_refused(small: Running) -> None:
    answer = raw(small.port, f"{HEAD}Content-Length: 1000\r\n\r\n".encode() + b"beginning")
    assert answer.startswith(b"HTTP/1.1 408 ") and b"slow-body" in answer and b"connection: close" in answer.lower()
    drip = raw(small.port, f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode(), chunk(b"x"), chunk(b"y"))
    assert drip.startswith(b"HTTP/1.1 408 ")


def test_a_head_that_never_ends_is_not_waited_for(small: Running) -> None:
    for beginning in (b"", b"GET /healthz HTTP/1.1\r\nHost: loc"):
        with socket.create_connection(("127.0.0.1", small.port), timeout=WAIT) as connection:
            connection.sendall(beginning)
            assert connection.recv(100) == b""


def test_a_second_head_that_never_ends_is_not_waited_for(small: Running) -> None:
    with socket.create_connection(("127.0.0.1", small.port), timeout=WAIT) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(10_000).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        while connection.recv(10_000):  # the rest of the first answer, and then the end
            pass


def test_a_client_that_leaves_in_the_middle_does_no_harm(small: Running) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", small.port)) as connection:
            connection.sendall(f"{HEAD}Content-Length: 1000\r\n\r\nhalf".encode())
    assert small.client().get("/readyz").status == 200


def test_bombs_are_refused_by_their_header(small: Running) -> None:
    for bomb in (png_header(30_000, 30_000), png_header(200, 200)):
        assert "pixels" in small.client().decide(bomb).problem("invalid-image")["detail"]


def test_garbage_instead_of_http_is_a_400(small: Running) -> None:
    with socket.create_connection(("127.0.0.1", small.port), timeout=WAIT) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    with socket.create_connection(("127.0.0.1", small.port), timeout=WAIT) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_too_many_requests(fitted: Talon, folder: Path) -> None:
    with running(fitted, folder, rate=0.001, burst=3) as service:
        client = service.client()
        assert [client.get("/v1/status").status for _ in range(5)] == [200, 200, 200, 429, 429]
        refused = client.decide(digits()[0])
        refused.problem("too-many-requests")
        assert int(refused.headers["retry-after"]) >= 1
        assert [client.get("/healthz").status for _ in range(5)] == [200] * 5
        assert service.service.stream.answered == 0


def test_the_queue_is_bounded(fitted: Talon, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(fitted, folder, queue=4) as service:
        release = hold(service)
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(service.client().decide, image) for image in digits()[:4]]
            wait_until(lambda: service.service.worker.waiting == 4)
            refused = service.client().decide(digits()[4])
            refused.problem("busy")
            assert refused.headers["retry-after"] == "1"
            assert service.client().get("/v1/categories").status == 200  # reading goes on
            release.set()
            assert sorted(answer.result(WAIT).json["index"] for answer in waiting) == [0, 1, 2, 3]
        assert service.client().decide(digits()[4]).json["index"] == 4


def test_what_is_not_answered_in_time_is_not_learned(fitted: Talon, folder: Path) -> None:
    with running(fitted, folder, request_seconds=0.2) as service:
        release = hold(service)
        late = service.client().decide(digits()[0], key="late")
        assert "nothing was learned" in late.problem("busy")["detail"]
        release.set()
        again = service.client().decide(digits()[0], key="late")
        assert again.json["index"] == 0 and "idempotent-replay" not in again.headers
        assert service.service.stream.answered == 1


def test_memory_for_bodies_is_bounded(fitted: Talon, folder: Path) -> None:
    with running(fitted, folder, max_held=150_000, max_body=100_000) as service:
        with socket.create_connection(("127.0.0.1", service.port)) as first:
            first.sendall(f"{HEAD}Content-Length: 100000\r\n\r\n".encode() + b"x" * 90_000)
            wait_until(lambda: budget(service) >= 90_000)
            refused = service.client().decide(b"x" * 90_000)
            refused.problem("busy")
        wait_until(lambda: budget(service) == 0)
        service.client().decide(b"x" * 90_000).problem("invalid-image")
        wait_until(lambda: budget(service) == 0)


def test_listeners_are_bounded(fitted: Talon, folder: Path) -> None:
    with running(fitted, folder, listeners=2) as service:
        request = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with (
            socket.create_connection(("127.0.0.1", service.port)) as one,
            socket.create_connection(("127.0.0.1", service.port)) as two,
        ):
            for connection in (one, two):
                connection.sendall(request)
            wait_until(lambda: len(service.service.broadcaster) == 2)
            refused = service.client().get("/v1/events")
            refused.problem("busy")
            assert refused.headers["retry-after"] == "30"
        wait_until(lambda: len(service.service.broadcaster) == 0)  # who leaves makes room


@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from("abc")), max_size=60), st.integers(1, 5))
def test_no_client_gets_more_than_its_rate(steps: list[tuple[float, str]], burst: int) -> None:
    now, rate = [0.0], 2.0
    buckets = TokenBuckets(rate, burst, lambda: now[0])
    taken = dict.fromkeys("abc", 0)
    for pause, client in steps:
        now[0] += pause
        wait = buckets.wait(client)
        taken[client] += not wait
        assert 0 <= wait <= 1 / rate
        assert taken[client] <= burst + rate * now[0] + 1e-6


def test_the_rates_of_silent_clients_are_forgotten() -> None:
    buckets = TokenBuckets(1, 1, lambda: 0.0)
    for number in range(MOST_CLIENTS + 1):
        assert buckets.wait(str(number)) == 0
    assert buckets.wait("0") == 0 and buckets.wait(str(MOST_CLIENTS)) > 0


@pytest.mark.parametrize(
    ("setting", "value"), [("max_body", 0), ("queue", 0), ("body_seconds", 0), ("rate", -1), ("port", 70000)]
)
def test_settings_out_of_range_are_refused(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{setting}={value}"):
        ServiceSettings(**{setting: value})  # type: ignore[arg-type]


def hold(service: Running) -> threading.Event:
    """Keep the owner of the stream busy until the event is set; images gather meanwhile."""
    release, busy = threading.Event(), threading.Event()

    def wait() -> None:
        busy.set()
        release.wait(WAIT)

    service.service.worker.call(wait)
    assert busy.wait(WAIT)
    return release


def budget(service: Running) -> int:
    gate = service.server.config.app
    return int(gate._budget.held)  # type: ignore[union-attr]


def wait_until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT * 100)):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError("it never came to that")
