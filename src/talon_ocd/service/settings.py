"""What a service allows: addresses, token, sizes, times (layer: service)."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from talon_ocd.errors import ConfigError

SHORTEST_TOKEN = 8
MB = 1_000_000


@dataclass(frozen=True)
class ServiceSettings:
    """Every limit of a service; the defaults suit one machine with a few people."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    token: str | None = None
    """What a client must know; needed unless only this machine can reach the service."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, besides ``host`` and ``localhost``, by which browsers may call the service (``Host`` header)."""
    behind_proxy: bool = False
    """Believe ``X-Forwarded-For`` and ``X-Forwarded-Proto`` of a proxy on this machine."""
    max_body: int = 20 * MB
    """Bytes of one request."""
    max_held: int = 400 * MB
    """Bytes of all requests that are being read or wait for an answer."""
    max_pixels: int = 64_000_000
    """Width times height of one image."""
    max_batch: int = 64
    """Images of one ``decide:batch``."""
    body_seconds: float = 30.0
    """Time in which the head of a request has to arrive, and then its body."""
    request_seconds: float = 60.0
    """Time in which an image that has arrived has to be answered."""
    stop_seconds: float = 30.0
    """Time that requests get to finish when the service stops."""
    rate: float = 200.0
    """Requests a second of one client, on average; 0: as many as it likes."""
    burst: int = 400
    """Requests of one client at once."""
    queue: int = 256
    """Images that may wait for their answer."""
    listeners: int = 64
    """Clients that may listen to ``/v1/events``."""

    def __post_init__(self) -> None:
        for name in ("max_body", "max_held", "max_pixels", "max_batch", "burst", "queue", "listeners"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be 1 or more.")
        for name in ("body_seconds", "request_seconds", "stop_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be more than 0 seconds.")
        if not self.rate >= 0:
            raise ConfigError(f"rate={self.rate} must be 0 (no limit) or more requests a second.")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port} must be between 0 (any free one) and 65535.")
        self._check_token()

    def _check_token(self) -> None:
        if self.token is None:
            if not is_loopback(self.host):
                raise ConfigError(
                    f"--host {self.host} can be reached from other machines, so a token is needed: set TALON_TOKEN or "
                    "--token-file FILE (python -c 'import secrets; print(secrets.token_urlsafe())' makes a good one), "
                    "or listen on 127.0.0.1."
                )
            return
        if len(self.token) < SHORTEST_TOKEN or not self.token.isascii() or not self.token.isprintable():
            raise ConfigError(
                f"the token must have {SHORTEST_TOKEN} or more printable ASCII characters; the given one has "
                f"{len(self.token)} characters."
            )
        if self.token != self.token.strip():
            raise ConfigError("the token begins or ends with a space; take it away.")


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches ``host``, a name or an address; a name that can't be resolved counts not.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)} if host else set()
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)
