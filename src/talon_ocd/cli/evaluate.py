"""``talon evaluate``: split, fit, stream, score, over seeds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.table import Table

from talon_ocd.cli import choices
from talon_ocd.cli.display import progress_for
from talon_ocd.config import parse_adapt
from talon_ocd.errors import ConfigError, nearest
from talon_ocd.evaluation.datasets import Dataset, load_dataset
from talon_ocd.evaluation.protocol import Run, default_cache_directory, results, run_protocol
from talon_ocd.evaluation.record import Record
from talon_ocd.evaluation.splits import SamplingRule
from talon_ocd.images import display
from talon_ocd.saved import make_folder, write_files
from talon_ocd.talon import cache_for

RESULTS = "results.json"


def evaluate(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for results.json and one folder a seed.")],
    dataset: Annotated[str, typer.Option("--dataset", "-d", help="digits, glyphs or folder.")] = "digits",
    root: Annotated[
        Path | None, typer.Option("--root", help="With --dataset folder: a folder with one folder per class.")
    ] = None,
    known: Annotated[
        str | None,
        typer.Option("--known", help="How many classes (sorted by name) are known, or a file that lists them."),
    ] = None,
    classes: Annotated[int, typer.Option("--classes", min=2, help="With --dataset glyphs: how many classes.")] = 100,
    backbone: choices.BackboneOption = "efficientnet-lite0",
    preset: choices.PresetOption = "default",
    seeds: Annotated[
        str, typer.Option("--seeds", help="Seeds, e.g. 0,1,2; each draws labelled half, training and order.")
    ] = "0,1,2",
    epochs: choices.EpochsOption = None,
    threshold: Annotated[str | None, typer.Option("--threshold", help="auto or a number.")] = None,
    adapt: Annotated[str | None, typer.Option("--adapt", help="prototypes,encoder, one of them, or none.")] = None,
    sampling: Annotated[str, typer.Option("--sampling", help="How the labelled half is drawn: gcd or talon.")] = "gcd",
    image_size: choices.ImageSizeOption = None,
    aspect: choices.AspectOption = None,
    config: choices.ConfigOption = None,
    settings: choices.SetOption = None,
    quiet: choices.QuietOption = False,
) -> None:
    """Measure discovery on a labelled data set under the protocol of the field."""
    data = load_dataset(dataset, root, known, classes)
    encoder = choices.backbone_from(backbone, image_size, aspect)
    full = choices.config_from(
        preset, encoder.family, config, settings,
        epochs=epochs, threshold=choices.number_or_word(threshold), adapt=None if adapt is None else parse_adapt(adapt),
    )  # fmt: skip
    progress = progress_for(choices.err, quiet)
    rule, numbers = _rule(sampling), _seeds(seeds)
    make_folder(output)
    (output / RESULTS).unlink(missing_ok=True)  # of an earlier run: it would not tell of this one
    runs: list[Run] = []
    commit = choices.commit()  # of the code that is loaded now; the checkout may move while this runs
    for seed in numbers:
        progress.note(f"seed {seed}")
        with (
            cache_for(encoder, replace(full, seed=seed), default_cache_directory()) as cache,
            Record(output / f"seed-{seed}", len(data.known)) as record,
        ):
            run = run_protocol(
                data, encoder, full, seed, cache, progress, rule,
                lambda decision, item, stream, record=record: record.add(decision, item),  # type: ignore[misc]
            )  # fmt: skip
            runs.append(run)
            for skipped in run.skipped:
                record.skip(skipped)
            record.known = len(run.talon.names)  # the labelled half may miss a known class that has few images
            record.finish(f"{data.name}, seed {seed}", _facts(run), full.to_dict(), run.scores)
        content = results(data, encoder, full, runs, choices.command_line(), commit)
        text = json.dumps(content, indent=2, ensure_ascii=False)
        write_files(output, {RESULTS: text.encode("utf-8", "backslashreplace")})
    _tell(content, data, output)


def _rule(text: str) -> SamplingRule:
    if text not in get_args(SamplingRule):
        raise ConfigError(f"--sampling {text!r} is not known; use gcd or talon.{nearest(text, get_args(SamplingRule))}")
    return cast(SamplingRule, text)


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text!r}: write whole numbers with commas, e.g. 0,1,2.") from None
    if min(seeds) < 0 or max(seeds) >= 2**32:
        raise ConfigError(f"--seeds {text!r}: seeds are between 0 and 2^32 - 1.")
    return list(dict.fromkeys(seeds))


def _facts(run: Run) -> dict[str, Any]:
    return {
        "seed": run.scores["seed"],
        "threshold": run.scores["threshold"],
        "command": choices.command_line(),
    }


def _tell(content: dict[str, Any], data: Dataset, output: Path) -> None:
    table = Table(title=f"{data.name}, {content['backbone']['name']}, preset {content['preset']}")
    for column in ("", "All", "Old", "New"):
        table.add_column(column, justify="right" if column else "left")
    mean, std = content["mean"], content["std"]
    for protocol in ("strict", "greedy"):
        cells = [
            f"{100 * mean[protocol][part]:.1f} ± {100 * std[protocol][part]:.1f}" for part in ("all", "old", "new")
        ]
        table.add_row(protocol.capitalize(), *cells)
    choices.out.print(table)
    found, true = mean["categories"]["found"], mean["categories"]["true"]
    choices.out.print(
        f"categories found {found:.0f} (true {true:.0f}), threshold {mean['threshold']:.3f}, "
        f"old share of the stream {mean['sizes']['old_share']:.3f}, {len(content['runs'])} seeds"
    )
    choices.out.print(f"results: {display(output / RESULTS)}", soft_wrap=True, markup=False, highlight=False)
