"""``talon serve``: a stream over HTTP, with the page to look at it."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from talon_ocd.cli import bounds, choices, engines
from talon_ocd.cli.engines import Engine
from talon_ocd.errors import ConfigError
from talon_ocd.scale.extra import SERVE_NEEDS
from talon_ocd.scale.settings import RaySettings
from talon_ocd.talon import Talon

TOKEN_VARIABLE = "TALON_TOKEN"
NEEDED = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")
"""Modules of the extra ``serve``."""
MB = 1_000_000


def serve(
    model: Annotated[Path, typer.Option("--model", "-m", help="Folder that `talon fit` wrote.")],
    stream: Annotated[Path, typer.Option("--stream", help="Folder of the stream; made if it is not there.")],
    host: Annotated[str, typer.Option("--host", help="Address to listen on; others than loopback need a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0 takes a free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", help="What clients must know; better: --token-file or TALON_TOKEN.", show_default=False
        ),
    ] = None,
    token_file: Annotated[Path | None, typer.Option("--token-file", help="File with the token.")] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="A further name of this service in URLs; may be repeated."),
    ] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="Believe X-Forwarded-... of a proxy on this machine.")
    ] = False,
    adapt: Annotated[
        str | None, typer.Option("--adapt", help="What keeps learning: prototypes,encoder, one of them, or none.")
    ] = None,
    threshold: Annotated[
        str | None, typer.Option("--threshold", help="auto (what fit found) or a cosine (TALON's rule).")
    ] = None,
    finer: Annotated[
        float | None, typer.Option("--finer", help="Nats of evidence: 3 gives more categories, -3 fewer.")
    ] = None,
    most_categories: bounds.MostCategoriesOption = None,
    tentative_below: bounds.TentativeBelowOption = None,
    retire_after: bounds.RetireAfterOption = None,
    max_body: Annotated[float, typer.Option("--max-body", help="Megabytes of one request.")] = 20.0,
    rate: Annotated[float, typer.Option("--rate", help="Requests a second of one client; 0: no limit.")] = 200.0,
    queue: Annotated[int, typer.Option("--queue", help="Images that may wait for their answer.")] = 256,
    log: Annotated[bool, typer.Option("--log", help="Write a line for every request.")] = False,
    engine: engines.EngineOption = Engine.LOCAL,
    address: engines.AddressOption = None,
    encoders: engines.ReplicasOption = None,
    gpus_per_encoder: engines.GpusOption = 0.0,
) -> None:
    """Answer images over HTTP, and serve the page to look at categories, name and correct them."""
    check_extra()
    from talon_ocd.service.server import listen, url_of
    from talon_ocd.service.server import serve as run
    from talon_ocd.service.service import Service
    from talon_ocd.service.settings import ServiceSettings

    settings = ServiceSettings(
        host=host,
        port=port,
        token=_token(token, token_file),
        allowed_hosts=tuple(allow_host or ()),
        behind_proxy=behind_proxy,
        max_body=round(max_body * MB),
        rate=rate,
        burst=max(1, round(2 * rate)),
        queue=queue,
    )
    ours = (RaySettings.mode, RaySettings.staleness)  # these two are for streams
    least, most = engines.encoder_range(encoders)
    ray = engines.ray_settings(engine, address, most, gpus_per_encoder, *ours, SERVE_NEEDS)
    ray = ray and replace(ray, least_encoders=least)
    listener = listen(settings)
    with listener:
        talon = Talon.from_pretrained(model)
        options: dict[str, Any] = {"threshold": threshold, "adapt": adapt, "finer": finer}
        options["bounds"] = bounds.bounds_from(stream, most_categories, tentative_below, retire_after)
        if ray is not None:
            from talon_ocd.scale.serve_encoding import encoding_on_ray

            options["encoding"] = encoding_on_ray(talon, model, settings.request_seconds, ray)
        with Service(talon, stream, settings, **options) as service:
            choices.err.print(
                f"talon serves {url_of(listener, host)} ({service.stream.answered} images answered so far); "
                "stop it with Ctrl-C",
                markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
            run(service, listener, log)
    choices.err.print("talon: stopped; everything that was answered is kept.", markup=False, highlight=False)


def check_extra() -> None:
    """Say what to install if the packages of the service are missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"talon serve needs {', '.join(missing)}; install it with: pip install 'talon-ocd[serve]'")


def _token(given: str | None, file: Path | None) -> str | None:
    """Return the token: of the option, the file, or the environment."""
    if given is not None and file is not None:
        raise ConfigError("--token and --token-file were both given; use one of them.")
    if given is not None:
        return given
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {file}: the token can't be read ({error}).") from error
