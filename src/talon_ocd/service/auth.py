"""Who may ask: token, session cookie, Host and Origin (layer: service).

A bearer token is for programs. A page can't put headers on images and event streams, so it trades the token for a
cookie that scripts can't read and other sites can't use. Host is checked because a web site can let its own name point
to this machine (DNS rebinding); Origin, because browsers send cookies and reach loopback for any site.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie

from talon_ocd.service.problems import Problem
from talon_ocd.service.settings import ServiceSettings

SESSION_SECONDS = 7 * 24 * 3600
"""How long a page may stay logged in."""
OPEN = frozenset({"/", "/favicon.ico", "/healthz", "/readyz", "/openapi.json", "/v1/session"})
"""Paths without a token; all others need it, whether they exist or not."""
OPEN_BELOW = "/assets/"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERYWHERE = frozenset({"0.0.0.0", "::"})


class Guardian:
    """Decides who may ask, for one service."""

    def __init__(self, settings: ServiceSettings, clock: Callable[[], float] = time.time) -> None:
        self._token = settings.token
        self._key = hashlib.sha256(b"talon session key\0" + (settings.token or "").encode()).digest()
        self._clock = clock
        self._hosts = _LOCAL | {settings.host.lower(), *(name.lower() for name in settings.allowed_hosts)}
        self._any_address = settings.host in _EVERYWHERE
        # Cookies don't know ports: two services on one machine must not overwrite each other's.
        self.cookie = f"talon_session_{self._sign('name')[:8]}"

    @property
    def wants_token(self) -> bool:
        """Whether there is a token at all."""
        return self._token is not None

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Refuse a request that comes from the wrong place or without the token; ``headers`` has lower-case names."""
        self.check_host(headers.get("host", ""))
        self.check_origin(method, path, headers)
        if self._token is None or path in OPEN or path.startswith(OPEN_BELOW):
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
            return
        if self.is_session(_cookie(headers, self.cookie)):
            self._check_cookie_use(method, headers)
            return
        raise Problem(
            "token-needed", "send the header 'Authorization: Bearer TOKEN' with the token of this service.",
            {"WWW-Authenticate": 'Bearer realm="talon"'},
        )  # fmt: skip

    def check_host(self, header: str) -> None:
        """Refuse names by which nobody calls this service: a site may have pointed its own name here."""
        host = host_name(header)
        if host in self._hosts or (self._any_address and _is_address(host)):
            return
        raise Problem("foreign-host", "this service has another name; allow yours with --allow-host NAME.")

    def check_origin(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Refuse what a page of another site makes a browser send."""
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and (method not in SAFE or path != "/"):
            raise Problem("foreign-origin", "this request comes from a page of another site.")
        origin = headers.get("origin")
        if origin is None or method in SAFE:
            return
        if origin.partition("://")[2].lower() != headers.get("host", "").lower():
            raise Problem("foreign-origin", "this request comes from a page of another site.")

    def is_token(self, given: str) -> bool:
        """Tell whether this is the token; takes the same time for all wrong ones."""
        wanted = (self._token or "").encode()
        return self._token is not None and hmac.compare_digest(given.encode("utf-8", "replace"), wanted)

    def session(self) -> str:
        """Return a fresh value for the cookie: when it ends, and a proof that this service made it."""
        ends = str(int(self._clock()) + SESSION_SECONDS)
        return f"{ends}.{self._sign(ends)}"

    def is_session(self, value: str) -> bool:
        """Tell whether a cookie is a session that goes on."""
        ends, _, proof = value.partition(".")
        if not hmac.compare_digest(proof.encode(), self._sign(ends).encode()):
            return False
        return int(ends) > self._clock()

    def _check_cookie_use(self, method: str, headers: Mapping[str, str]) -> None:
        """Let a cookie change something only if the browser says from which page."""
        if method not in SAFE and "origin" not in headers and "sec-fetch-site" not in headers:
            raise Problem("foreign-origin", "a cookie may only be used by the page; send the bearer token instead.")

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def host_name(header: str) -> str:
    """Return the name in a Host header, without port and brackets, in lower case.

    >>> host_name("Example.org:8000"), host_name("[::1]:80"), host_name("a:b:c")
    ('example.org', '::1', '')
    """
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    name, colon, port = text.partition(":")
    return name if not colon or port.isdigit() else ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _cookie(headers: Mapping[str, str], name: str) -> str:
    jar = SimpleCookie()
    try:
        jar.load(headers.get("cookie", ""))
    except CookieError:
        return ""
    return jar[name].value if name in jar else ""
