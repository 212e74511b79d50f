"""``talon fit``: learn the known classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from talon_ocd.backbones import Vectors
from talon_ocd.cli import choices
from talon_ocd.cli.display import progress_for
from talon_ocd.errors import PeerError, TalonError
from talon_ocd.images import ImageSource, VectorSource, display, labelled
from talon_ocd.offline import Processes, joined, own_device
from talon_ocd.saved import make_folder
from talon_ocd.talon import Talon, cache_for

CHECKPOINT = ".training.safetensors"


def fit(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Labelled images: a folder per class, a manifest (path,label), a tar; or .parquet embeddings.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the model.")],
    backbone: choices.BackboneOption = "efficientnet-lite0",
    preset: choices.PresetOption = "default",
    epochs: choices.EpochsOption = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of training and rehearsal.")
    ] = None,
    threshold: Annotated[
        str | None, typer.Option("--threshold", help="auto (evidence decides) or a cosine (TALON's rule).")
    ] = None,
    image_size: choices.ImageSizeOption = None,
    aspect: choices.AspectOption = None,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", help="Folder that keeps trunk outputs for the next fit of the same images."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="Where the encoder runs: cpu, cuda ...; of several processes, each takes its own GPU.")
    ] = "cpu",
    column: choices.ColumnOption = None,
    config: choices.ConfigOption = None,
    settings: choices.SetOption = None,
    quiet: choices.QuietOption = False,
) -> None:
    """Learn known classes from labelled images and save a model.

    On several processes: torchrun --nproc-per-node N -m talon_ocd fit ...
    """
    with joined(choices.checked_device(device)) as processes, _told_once(processes):
        with processes.together():
            source = labelled(data, column=column)
            vectors = source.facts if isinstance(source, VectorSource) else None
            encoder = choices.backbone_from(backbone, image_size, aspect, vectors)
            full = choices.config_from(
                preset,
                encoder.family,
                config,
                settings,
                epochs=epochs,
                seed=seed,
                threshold=choices.number_or_word(threshold),
            )
            if vectors is not None and not full.offline.epochs:
                encoder = Vectors.of(vectors)
            if processes.first:
                make_folder(output)
            talon = Talon(encoder, full, device=own_device(device))
        _train(talon, source, output, cache, quiet, processes)
        if processes.first:
            talon.save_pretrained(output)
            (output / CHECKPOINT).unlink(missing_ok=True)
            _tell(talon, output)


def _train(
    talon: Talon, source: ImageSource, output: Path, cache: Path | None, quiet: bool, processes: Processes
) -> None:
    """Fit the model; the first process shows how far it is."""
    checkpoint = output / CHECKPOINT
    progress = progress_for(choices.err, quiet or not processes.first)
    try:
        with cache_for(talon.backbone, talon.config, processes.own_folder(cache)) as trunk_cache:
            talon.fit(source, cache=trunk_cache, checkpoint=checkpoint, progress=progress, processes=processes)
    except KeyboardInterrupt:
        if checkpoint.exists() and processes.first:
            choices.err.print("The same command continues after the last epoch that was finished.", soft_wrap=True)
        raise


@contextmanager
def _told_once(processes: Processes) -> Iterator[None]:
    """When one process fails, let it speak and the first one; when all fail alike, the first one. Others just end."""
    try:
        yield
    except TalonError as error:
        alike = processes.all_say(str(error))
        if processes.first or not (alike or isinstance(error, PeerError)):
            raise
        raise typer.Exit(2) from None


def _tell_evidence(report: dict[str, Any]) -> None:
    """Say what was estimated and how sure it is."""
    found = report["evidence"]
    tail = "Gaussian" if found["tail"] is None else f"ν = {found['tail']:.0f}"
    choices.out.print(
        f"decides by evidence: {found['coordinates']} coordinates, tails {tail}, variance between classes "
        f"{found['psi_mean']:.2f} of that inside (± {found['psi_uncertainty']:.0%} in any one direction), "
        f"offset {found['offset']:+.1f} nats",
        highlight=False,
        soft_wrap=True,
    )
    if "calibration" in report:
        all_, old, new = (f"{report['calibration']['expected'][part]:.0%}" for part in ("all", "old", "new"))
        choices.out.print(f"right in rehearsals: {all_} of images, {old} of known classes, {new} of new ones")


def _tell(talon: Talon, output: Path) -> None:
    say = choices.out.print
    report = talon.report
    before, after = report["angles_before"], report["angles_after"]
    say(f"[bold]{len(talon.names)}[/] known classes from {report['images']} images in {report['seconds']:.1f} s")
    for name, what in (("own_mean", "sample to prototype"), ("between_mean", "between prototypes")):
        if before[name] is not None:
            say(f"angle {what} {before[name]:.1f}° -> {after[name]:.1f}°")
    if talon.evidence is None:
        say(f"threshold {talon.threshold:.4f}" + (" (rehearsed)" if "calibration" in report else " (constant)"))
    else:
        _tell_evidence(report)
    if report.get("calibration", {}).get("epochs") == 0 and talon.config.offline.epochs:
        say("the pre-trained features were kept: in the rehearsals, training on known classes hurt new ones")
    for skipped in talon.skipped[:20]:
        choices.err.print(f"skipped {skipped.source}: {skipped.reason}", markup=False, soft_wrap=True)
    if len(talon.skipped) > 20:
        choices.err.print(f"... and {len(talon.skipped) - 20} more skipped; config.json of the model lists them")
    single = [name for name, count in report.get("class_sizes", {}).items() if count == 1]
    if single:
        choices.err.print(f"note: one image only: {', '.join(single[:10])}; such a class is a guess.", markup=False)
    say(f"model: {display(output)}", soft_wrap=True, markup=False, highlight=False)
