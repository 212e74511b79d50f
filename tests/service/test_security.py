from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from talon_ocd import Talon
from talon_ocd.errors import ConfigError
from talon_ocd.service.app import create_app
from talon_ocd.service.auth import SESSION_SECONDS, Guardian
from talon_ocd.service.settings import ServiceSettings
from tests.service.running import TOKEN, Client, Running, digits, form, running

CHANGES: list[tuple[str, str, Any]] = [
    ("POST", "/v1/decide", digits()[0]),
    ("POST", "/v1/decide:batch", form([("images", "a.png", digits()[0])])[0]),
    ("PATCH", "/v1/categories/0", {"name": "somebody else"}),
    ("POST", "/v1/categories:merge", {"categories": [0], "into": 1}),
    ("POST", "/v1/categories/0:split", {"images": [0]}),
    ("POST", "/v1/images:move", {"images": [0], "category": 1}),
    ("POST", "/v1/images:confirm", {"images": [0]}),
    ("POST", "/v1/images:reject", {"images": [0]}),
    ("POST", "/v1/undo", {}),
    ("POST", "/v1/suggestions:refuse", {"first": 0, "second": 1}),
]
"""A request for every route that changes something."""


@pytest.fixture(scope="module")
def locked(fitted: Talon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with a token, some images and a name."""
    with running(fitted, tmp_path_factory.mktemp("locked") / "stream", token=TOKEN) as service:
        owner = service.client(TOKEN)
        assert owner.batch(digits(8)).status == 200
        assert owner("PATCH", "/v1/categories/0", {"name": "zero"}).status == 200
        yield service


def test_the_list_of_changes_is_complete(locked: Running) -> None:
    paths = locked.client().get("/openapi.json").json["paths"]
    listed = {(method, path.replace("0", "{category}").replace("0", "")) for method, path, _ in CHANGES}
    open_ones = {("POST", "/v1/session"), ("DELETE", "/v1/session")}
    found = {(method.upper(), path) for path, methods in paths.items() for method in methods if method != "get"}
    assert found - open_ones == listed


@pytest.mark.parametrize("token", [None, "", "wrong-token", TOKEN + "x", TOKEN[:-1], TOKEN.upper()])
@pytest.mark.parametrize(("method", "path", "body"), CHANGES, ids=[f"{method} {path}" for method, path, _ in CHANGES])
def test_nothing_changes_without_the_token(
    locked: Running, method: str, path: str, body: Any, token: str | None
) -> None:
    before = locked.client(TOKEN).state()
    refused = locked.client(token)(method, path, body)
    refused.problem("token-needed")
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert locked.client(TOKEN).state() == before


def test_nothing_is_read_without_the_token(locked: Running) -> None:
    schema = locked.client().get("/openapi.json").json
    for path, methods in schema["paths"].items():
        if "get" in methods and path not in ("/healthz", "/readyz"):
            plain = path.replace("{category}", "0").replace("{index}", "0")
            locked.client().get(plain).problem("token-needed")
            if plain != "/v1/events":
                assert locked.client(TOKEN).get(plain).status == 200
    for path in ("/v1/nothing", "/v2/status", "/docs", "/V1/status", "//v1/status", "/v1/../v1/status"):
        locked.client().get(path).problem("token-needed")
    for path in ("/", "/healthz", "/readyz", "/openapi.json"):
        assert locked.client().get(path).status == 200


def test_other_schemes_and_places_of_the_token_do_not_count(locked: Running) -> None:
    client = locked.client()
    for value in (TOKEN, f"Basic {TOKEN}", f"Token {TOKEN}", "Bearer", f"Bearer{TOKEN}"):
        client.get("/v1/status", Authorization=value).problem("token-needed")
    client.get(f"/v1/status?token={TOKEN}").problem("token-needed")
    assert client.get("/v1/status", Authorization=f"bearer {TOKEN}").status == 200


def session_of(locked: Running) -> str:
    opened = locked.client().post("/v1/session", {"token": TOKEN})
    assert opened.status == 204
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
    return cookie.partition(";")[0]


def test_a_page_trades_the_token_for_a_cookie(locked: Running) -> None:
    locked.client().post("/v1/session", {"token": "wrong-token"}).problem("token-needed")
    cookie = session_of(locked)
    client = locked.client()
    assert client.get("/v1/images/0/thumbnail", Cookie=cookie).status == 200
    assert client.get("/v1/images/0/thumbnail", Cookie=cookie[:-1] + "0").status == 401 or cookie.endswith("0")
    here = f"http://127.0.0.1:{locked.port}"
    named = client("PATCH", "/v1/categories/1", {"name": "one"}, {"Cookie": cookie, "Origin": here})
    assert named.status == 200
    closed = client("DELETE", "/v1/session", headers={"Cookie": cookie})
    assert closed.status == 204 and "Max-Age=0" in closed.headers["set-cookie"]


def test_a_cookie_alone_changes_nothing(locked: Running) -> None:
    """Without Origin or Sec-Fetch-Site nobody knows which page sent it."""
    cookie = session_of(locked)
    before = locked.client(TOKEN).state()
    locked.client()("PATCH", "/v1/categories/1", {"name": "two"}, {"Cookie": cookie}).problem("foreign-origin")
    assert locked.client(TOKEN).state() == before


def test_sessions_end_and_belong_to_one_token() -> None:
    now = [1000.0]
    guardian = Guardian(ServiceSettings(token=TOKEN), lambda: now[0])
    session = guardian.session()
    assert guardian.is_session(session)
    assert not Guardian(ServiceSettings(token="another-token")).is_session(session)
    ends, _, proof = session.partition(".")
    assert not guardian.is_session(f"{int(ends) + 1}.{proof}")
    for nonsense in ("", ".", "x.y", proof, f"{ends}.", "9" * 5000 + ".x"):
        assert not guardian.is_session(nonsense)
    now[0] += SESSION_SECONDS
    assert not guardian.is_session(session)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "10.0.0.7", "a:b:c"])
def test_foreign_names_of_the_service_are_refused(locked: Running, host: str) -> None:
    for client in (locked.client(), locked.client(TOKEN)):
        client.get("/v1/status", Host=host).problem("foreign-host")
        client.get("/", Host=host).problem("foreign-host")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]:8000", "LOCALHOST:1"])
def test_own_names_are_accepted(locked: Running, host: str) -> None:
    assert locked.client(TOKEN).get("/v1/status", Host=host).status == 200


def test_allowed_names_and_addresses_of_a_public_service() -> None:
    guardian = Guardian(ServiceSettings(host="0.0.0.0", token=TOKEN, allowed_hosts=("Birds.example",)))
    for host in ("birds.example", "192.168.1.9:8000", "[fe80::1]"):
        guardian.check_host(host)
    with pytest.raises(Exception, match="another name"):
        guardian.check_host("other.example")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_pages_of_other_sites_change_nothing(served: Running, headers: dict[str, str]) -> None:
    """The service without a token: a browser on this machine must not be a way in."""
    client = served.client()
    before = client.state()
    for method, path, body in CHANGES:
        client(method, path, body, headers).problem("foreign-origin")
    assert client.state() == before


def test_other_sites_can_not_look_but_may_link(served: Running) -> None:
    client = served.client()
    client.get("/v1/images/0", **{"Sec-Fetch-Site": "cross-site"}).problem("foreign-origin")
    assert client.get("/", **{"Sec-Fetch-Site": "cross-site"}).status == 200
    answer = client.get("/v1/status", Origin="https://evil.example")
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_every_answer_keeps_browsers_careful(served: Running) -> None:
    client = served.client()
    for path in ("/", "/v1/status", "/v1/nothing", "/v1/images/0/thumbnail", "/assets/nothing.js", "/openapi.json"):
        headers = client.get(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
    assert "default-src 'self'; img-src 'self' blob: data:" in client.get("/").headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../app.py",
        "/assets/..%2fapp.py",
        "/assets/%2e%2e/app.py",
        "/assets/%2e%2e%2f%2e%2e%2f%2e%2e%2f%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/assets//etc/passwd",
        "/assets/%00index.html",
        "/assets/.",
        "/assets/",
        "/assets/index.html%00.png",
        "/assets/..\\app.py",
        "/v1/images/..%2f..%2fstream.sqlite",
        "/v1/images/%2e%2e/decision",
        "/v1/images/-1",
        "/v1/categories/..%2f0",
        "/../../etc/passwd",
    ],
)
def test_paths_lead_nowhere_else(served: Running, path: str) -> None:
    answer = served.client().get(path)
    assert answer.status in (404, 422), path
    assert b"root:" not in answer.body and b"import" not in answer.body


def test_the_page_and_its_files_have_their_kinds(served: Running) -> None:
    client = served.client()
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8" and page.body.startswith(b"<!")
    again = client.get("/", **{"If-None-Match": page.headers["etag"]})
    assert again.status == 304 and not again.body
    assert client.get("/assets/index.html").body == page.body


def test_the_token_is_never_repeated(fitted: Talon, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with running(fitted, folder, token=TOKEN) as service:
        client = service.client()
        assert client.post("/v1/session", {"token": [TOKEN]}).status == 422
        refused = [
            client.post("/v1/session", {"token": [TOKEN]}),
            client.post("/v1/session", {TOKEN: TOKEN}),
            client.post("/v1/session", f'{{"token": "{TOKEN}'.encode()),
            client.get("/v1/status", Authorization=f"Digest {TOKEN}"),
            service.client(TOKEN).get("/v1/nothing"),
        ]
    for answer in refused:
        assert answer.status >= 400 and TOKEN not in answer.body.decode().replace(f'"body.{TOKEN}"', "")
    assert TOKEN not in caplog.text
    assert not any(TOKEN.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_public_address_needs_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.168.7.7", "8.8.8.8"):
        with pytest.raises(ConfigError, match="token is needed"):
            ServiceSettings(host=host)
        assert ServiceSettings(host=host, token=TOKEN).token == TOKEN
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        assert ServiceSettings(host=host).token is None


@pytest.mark.parametrize("token", ["", "short", "white space\n", "ümlaute-sind-schön", " leading-space"])
def test_bad_tokens_are_refused_without_telling_them(token: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServiceSettings(token=token)
    assert not token or token not in str(caught.value)


def test_the_framework_shows_no_pages_of_its_own(locked: Running) -> None:
    owner = locked.client(TOKEN)
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
        owner.get(path).problem("not-found")
    assert create_app(locked.service) is not None
    assert isinstance(owner, Client)
