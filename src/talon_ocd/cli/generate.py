"""``talon generate``: pictures of classes that do not exist, for DiffGRE."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from talon_ocd.cli import choices
from talon_ocd.cli.display import progress_for
from talon_ocd.images import display, labelled
from talon_ocd.methods.diffgre.diffusion import CompositionSettings, DiffusionGenerator, load_parts
from talon_ocd.methods.diffgre.generate import BlendGenerator, Generator, generate_folder

MIX = "mix"


def generate(
    photos: Annotated[
        Path,
        typer.Argument(
            metavar="PHOTOS", help="Labelled images: a folder per class, a manifest (path,label), or a tar."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the pictures and their manifest.")],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="Latent diffusion model in diffusers' layout: a folder or hub id; or mix (blends pixels, a stand-in).",
        ),
    ],
    number: Annotated[
        int | None, typer.Option("--number", "-n", min=1, help="Pictures; as many as there are images by default.")
    ] = None,
    lambda_text: Annotated[float, typer.Option(help="Second parent's share in the text embedding.")] = 0.5,
    lambda_latent: Annotated[float, typer.Option(help="Second parent's share in the latent, or in the mix.")] = 0.5,
    strength: Annotated[float, typer.Option(help="Share of the noising that the latent goes through.")] = 0.75,
    steps: Annotated[int, typer.Option(help="Denoising steps of a whole schedule.")] = 50,
    guidance: Annotated[float, typer.Option(help="Weight of the condition; 1 is none.")] = 7.5,
    size: Annotated[int | None, typer.Option(help="Pixels a side; the model's own by default.")] = None,
    device: Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, mps ...")] = "cpu",
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Decides parents and noise.")] = 0,
    quiet: choices.QuietOption = False,
) -> None:
    """Generate virtual images between known classes; a run that was stopped goes on."""
    settings = CompositionSettings(
        lambda_text=lambda_text,
        lambda_latent=lambda_latent,
        strength=strength,
        steps=steps,
        guidance=guidance,
        size=size,
    )
    items = labelled(photos).items
    made_by: Generator
    if model == MIX:
        made_by = BlendGenerator(lambda_latent, size or 256)
    else:
        made_by = DiffusionGenerator(load_parts(model, device), settings, name=model)
    written = generate_folder(items, made_by, number or len(items), output, seed, progress_for(choices.err, quiet))
    for reason in written.skipped[:20]:
        choices.err.print(f"skipped: {reason}", markup=False, soft_wrap=True)
    if model == MIX:
        choices.err.print("note: blended pictures are a stand-in; DiffGRE's own come from a diffusion model.")
    choices.out.print(f"{written.ready} pictures: {display(output)}", soft_wrap=True, markup=False, highlight=False)
