"""Where ``talon discover`` computes: in this process, or on Ray; and what it asks of a stream in either place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import typer

from talon_ocd.durable import DurableStream, Journal
from talon_ocd.durable.pictures import Pictures
from talon_ocd.errors import ConfigError
from talon_ocd.images import ImageItem, ImageSource
from talon_ocd.images import stream as stream_of
from talon_ocd.images.vectors import check_pyarrow
from talon_ocd.online import Decision, DiscoveryStream
from talon_ocd.online.stream import OnSkip
from talon_ocd.scale.connecting import start_only_when_told
from talon_ocd.scale.extra import STREAM_NEEDS, check_extra
from talon_ocd.scale.settings import Mode, RaySettings
from talon_ocd.scale.token import demand_token
from talon_ocd.talon import Talon

if TYPE_CHECKING:
    from talon_ocd.scale.stream import RayStream

Online: TypeAlias = "DiscoveryStream | RayStream"
PURPOSE = "talon discover"


class Engine(str, Enum):
    """Where images are encoded."""

    LOCAL = "local"
    RAY = "ray"


EngineOption = Annotated[Engine, typer.Option("--engine", help="Where to compute: local (this process) or ray.")]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="Ray to join, e.g. auto; without it Ray is started on this machine.")
]
EncodersOption = Annotated[
    int | None, typer.Option("--encoders", help="Processes of Ray that encode; by default one a CPU.")
]
ReplicasOption = Annotated[
    str | None,
    typer.Option(
        "--encoders", help="Processes of Ray that encode, e.g. 4, or 1-4: more under load; by default one a CPU."
    ),
]
GpusOption = Annotated[float, typer.Option("--gpus-per-encoder", help="GPUs of an encoder, e.g. 0.5; 0: none.")]
ModeOption = Annotated[
    str, typer.Option("--mode", help="exact: the ids of one process; async: features may be --staleness steps old.")
]
StalenessOption = Annotated[
    int, typer.Option("--staleness", help="Encoder steps that a feature may be behind in mode async.")
]

ReadAheadOption = Annotated[
    bool, typer.Option("--read-ahead", help="Let Ray Data read files before encoders need them: for slow disks.")
]


def ray_settings(
    engine: Engine,
    address: str | None,
    encoders: int | None,
    gpus: float,
    mode: str,
    staleness: int,
    needs: Sequence[str] = STREAM_NEEDS,
    read_ahead: bool = False,
) -> RaySettings | None:
    """Return how work is spread, ``None`` if it is not; options of Ray are refused without it.

    ``needs`` are the modules without which it can't be spread.
    """
    checked = cast("Mode", mode)  # RaySettings checks the word
    settings = RaySettings(address, encoders, gpus, checked, staleness, read_ahead=read_ahead)
    if engine is Engine.RAY:
        check_extra("--engine ray", needs)
        start_only_when_told()
        if address is None:
            demand_token()
        return settings
    if settings != RaySettings():
        raise ConfigError(
            "--address, --encoders, --gpus-per-encoder, --mode, --staleness and --read-ahead are for --engine ray."
        )
    return None


def encoder_range(given: str | None) -> tuple[int | None, int | None]:
    """Return the fewest (``None``: it is always the same number) and the most encoders that ``--encoders`` asks for.

    >>> encoder_range("1-4"), encoder_range("4"), encoder_range(None)
    ((1, 4), (None, 4), (None, None))
    """
    if given is None:
        return None, None
    try:
        least, most = given.rsplit("-", 1) if "-" in given[1:] else ("", given)
        return int(least) if least else None, int(most)
    except ValueError:
        raise ConfigError(f"--encoders {given}: give a number, or the fewest and the most, as in 1-4.") from None


def listed(data: str, column: str | None) -> ImageSource:
    """List the images of ``data``, which may be the address of an object store."""
    if "://" not in data:
        return stream_of(data, column=column)
    check_pyarrow("the address of an object store")
    from talon_ocd.scale.storage import stored

    return stored(data)


def shown(data: str) -> str:
    """Return ``data`` as reports name it: an address without the options that open its store."""
    return data.partition("?")[0] if "://" in data else data


@contextmanager
def opened(
    talon: Talon, model: Path, folder: Path | None, spread: RaySettings | None, options: Mapping[str, Any]
) -> Iterator[Online]:
    """Open a stream where it shall compute, and close it."""
    if spread is not None:
        from talon_ocd.scale.stream import RayStream

        with RayStream(model, folder, spread, **options) as on_ray:
            yield on_ray
    elif folder is None:
        yield talon.stream(**options)
    else:
        with talon.stream(folder, purpose=PURPOSE, **options) as durable:
            yield durable


@dataclass(frozen=True)
class Lasting:
    """What a stream with a folder has to read: where it is, its journal and its pictures."""

    folder: Path
    journal: Journal
    pictures: Pictures


def lasting(online: Online) -> Lasting | None:
    """Return what there is to read of a stream that has a folder."""
    if isinstance(online, DurableStream) or not isinstance(online, DiscoveryStream):
        folder, journal, pictures = online.folder, online.journal, online.pictures
        if folder is not None and journal is not None and pictures is not None:
            return Lasting(folder, journal, pictures)
    return None


def answers(
    online: Online, items: Iterable[ImageItem], on_skip: OnSkip, one_by_one: bool = False
) -> Iterator[tuple[Decision, ImageItem]]:
    """Answer images; ``one_by_one`` answers every image before the next one is read, which Ray can't."""
    if isinstance(online, DiscoveryStream):
        return online.run_items(items, on_skip, batch_size=1 if one_by_one else None)
    return online.run_items(list(items), on_skip)


def rates(online: Online) -> dict[str, str]:
    """Return what a progress should show besides: images a second of one process, by stage."""
    if isinstance(online, DiscoveryStream):
        return {}
    return {stage: f"{rate:.0f}/s" for stage, rate in online.rates.per_second().items()}


def ray_line(facts: Mapping[str, Any]) -> str:
    """Return what happened on Ray as one line for people."""
    speeds = ", ".join(f"{stage} {rate:g}/s" for stage, rate in facts["images_per_second_at_work"].items())
    died = facts["encoder_restarts"] + facts["owner_restarts"]
    again = f"; {died} times a process died, was started again and did its work again" if died else ""
    encoders = f"{facts['encoders']} encoder{'s' if facts['encoders'] > 1 else ''}"
    encoders += f" ({speeds} each at work)" if speeds else ""
    return f"Ray: {encoders}, owner {facts['owner_busy']:.0%} busy{again}"
