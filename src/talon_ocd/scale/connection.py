"""A Ray to work on: one that runs already, or one of our own on this machine (layer: scale)."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError

from talon_ocd.errors import ConfigError
from talon_ocd.scale.settings import RaySettings

ANSWER_SECONDS = 10.0
"""How long the machine of an address may take to answer."""


@contextmanager
def connected(settings: RaySettings) -> Iterator[int]:
    """Join the Ray of ``settings``, or start one for as long as it is needed; gives the number of encoders.

    A Ray that this process has joined before is used as it is, and left as it is.
    """
    ours = not ray.is_initialized()
    if ours:
        _join(settings)
    try:
        yield _encoders(settings)
    finally:
        if ours:
            ray.shutdown()


def _join(settings: RaySettings) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unless somebody wants it
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray will do by default, without its warning
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if settings.address is None:
        os.environ.setdefault("RAY_worker_niceness", "0")  # encoders are what this machine is for, not a side job
        cpus = settings.encoders or os.cpu_count()
        ray.init("local", num_cpus=cpus, include_dashboard=False, **quiet)  # "local": never somebody else's
        return
    try:
        _knock(settings.address)
        ray.init(address=settings.address, **quiet)
    except (OSError, OverflowError, ValueError, RuntimeError, RayError) as error:
        said = " ".join(str(error).split())  # Ray's words have many lines
        raise ConfigError(
            f"--address {settings.address}: this Ray can't be joined ({said}); check that it runs and lets you in "
            "(RAY_AUTH_MODE=token in the environment, if it asks for a token), start one with `ray start --head`, or "
            "leave --address out to use this machine alone."
        ) from error


def _knock(address: str) -> None:
    """Raise if nobody listens at ``host:port``: Ray would try for many minutes, deaf to Ctrl-C most of the time."""
    named = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    host, _, port = named.rpartition(":")
    if port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()


def _encoders(settings: RaySettings) -> int:
    """Return the number of encoders: what was asked for, or as many as there is room for.

    Of a service that may have more or fewer only the fewest must find room: machines may come.
    """
    kind, share = ("GPU", settings.gpus_per_encoder) if settings.gpus_per_encoder else ("CPU", 1.0)
    there = ray.cluster_resources().get(kind, 0.0)
    room = int(there / share)
    wanted = settings.encoders or max(room, 1)
    needed = settings.least_encoders or wanted
    if needed > room:
        raise ConfigError(
            f"{needed} encoders need {needed * share:g} {kind}s and this Ray has {there:g}; give fewer --encoders, or "
            "add machines."
        )
    return wanted
