"""A Ray that is named must be there; none is started here."""

from __future__ import annotations

import socket
import warnings

import pytest

from talon_ocd.errors import ConfigError
from talon_ocd.scale.settings import RaySettings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of Ray's own models
    ray = pytest.importorskip("ray", reason="joining a Ray needs the extra ray")
    from ray.exceptions import AuthenticationError

    from talon_ocd.scale.connection import connected


@pytest.mark.parametrize(
    "address", ["127.0.0.1:{port}", "[::1]:{port}", "no.such.host.invalid:{port}", "127.0.0.1:70000", "auto"]
)
def test_an_address_where_nobody_listens_is_refused_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would try for more than ten minutes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray was asked"))
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    named = address.format(port=port)
    with pytest.raises(ConfigError, match="this Ray can't be joined") as told, connected(RaySettings(named)):
        pass
    assert f"--address {named}:" in str(told.value)


def test_a_ray_that_does_not_let_us_in_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray has an error of its own for a token that is missing."""

    def refuse(**options: object) -> None:
        raise AuthenticationError("no token\nwas found")

    monkeypatch.setattr(ray, "init", refuse)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        named = f"127.0.0.1:{listening.getsockname()[1]}"
        with (
            pytest.raises(ConfigError, match=r"no token was found.*RAY_AUTH_MODE=token"),
            connected(RaySettings(named)),
        ):
            pass
