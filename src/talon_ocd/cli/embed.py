"""``talon embed``: an archive of embeddings, for those who encode once and discover often."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from talon_ocd.backbones import Backbone
from talon_ocd.cli import choices, engines
from talon_ocd.cli.display import progress_for
from talon_ocd.embeddings import Archive, write_archive
from talon_ocd.embeddings.archive import Run
from talon_ocd.errors import ConfigError
from talon_ocd.images import display
from talon_ocd.saved import MEMORY, make_folder, read_model
from talon_ocd.scale.extra import DATA_NEEDS
from talon_ocd.scale.settings import RaySettings

MOST_SHOWN = 10
"""Skipped images that are told by name."""


def embed(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="Images: a folder, a manifest, a tar, or an object store (s3://...); labels are kept."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The archive, a .parquet file.")],
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", help="Folder that `talon fit` wrote, or an encoder: efficientnet-lite0, a hub id, ..."
        ),
    ] = "efficientnet-lite0",
    half: Annotated[bool, typer.Option("--half", help="Store float16: half the size, three digits.")] = False,
    device: Annotated[str, typer.Option(help="Where the encoder runs: cpu, cuda ...")] = "cpu",
    image_size: choices.ImageSizeOption = None,
    aspect: choices.AspectOption = None,
    engine: engines.EngineOption = engines.Engine.LOCAL,
    address: engines.AddressOption = None,
    encoders: engines.EncodersOption = None,
    gpus_per_encoder: engines.GpusOption = 0.0,
    quiet: choices.QuietOption = False,
) -> None:
    """Encode images once and keep the vectors; fit, discover and evaluate take them instead of images."""
    if output.suffix.lower() != ".parquet":
        raise ConfigError(f"--output {display(output)}: an archive is a .parquet file; name it so.")
    ours = (RaySettings.mode, RaySettings.staleness)  # these two are for streams
    spread = engines.ray_settings(engine, address, encoders, gpus_per_encoder, *ours, DATA_NEEDS)
    if spread is not None and device != "cpu":
        raise ConfigError(f"--device {device} is for this process; with --engine ray, give --gpus-per-encoder.")
    make_folder(output.parent)
    encoder = _encoder(model, image_size, aspect).to(choices.checked_device(device))
    source, progress = engines.listed(data, None), progress_for(choices.err, quiet)
    archive = write_archive(output, source, encoder, engine=_on(spread, encoder), half=half, progress=progress)
    _tell(archive, encoder)


def _on(spread: RaySettings | None, encoder: Backbone) -> Run | None:
    """Return who runs the encoder: Ray, or (``None``) this process."""
    if spread is None:
        return None
    from talon_ocd.scale.embed import RayEmbedder

    return RayEmbedder(encoder, spread).all


def _encoder(model: str, image_size: int | None, aspect: str | None) -> Backbone:
    """Return the encoder of a model, or a pre-trained one."""
    if not (Path(model) / MEMORY).is_file():
        return choices.backbone_from(model, image_size, aspect)
    if image_size is not None or aspect is not None:
        raise ConfigError("--image-size and --aspect are for encoders; a model has its own preprocessing.")
    return read_model(Path(model)).backbone


def _tell(archive: Archive, encoder: Backbone) -> None:
    fresh = archive.images - archive.resumed
    if archive.resumed:
        choices.out.print(f"went on after {archive.resumed} embeddings of an earlier run")
    rate = f", {fresh / archive.seconds:.0f}/s" if fresh > 0 else ""
    choices.out.print(
        f"{archive.images} embeddings of {encoder.feature_size} numbers by {encoder.name} in {archive.seconds:.1f} s"
        f"{rate}, {len(archive.skipped)} skipped",
        highlight=False,
        soft_wrap=True,
    )
    for item in archive.skipped[:MOST_SHOWN]:
        choices.err.print(f"skipped {item.source}: {item.reason}", markup=False, highlight=False, soft_wrap=True)
    if (more := len(archive.skipped) - MOST_SHOWN) > 0:
        choices.err.print(f"... and {more} more skipped", highlight=False)
    choices.out.print(f"archive: {display(archive.path)}", soft_wrap=True, markup=False, highlight=False)
