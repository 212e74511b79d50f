"""``talon evaluate``: data sets x methods x labelled halves x stream orders under the protocol of the field."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.table import Table

from talon_ocd.cli import choices
from talon_ocd.cli.display import progress_for
from talon_ocd.config import Adaptation, TalonConfig, parse_adapt
from talon_ocd.errors import ConfigError, nearest
from talon_ocd.evaluation.datasets import Dataset, load_dataset
from talon_ocd.evaluation.grid import Grid, folder_name
from talon_ocd.evaluation.plan import Cell, Plan
from talon_ocd.evaluation.protocol import Answers, Experiment, default_cache_directory
from talon_ocd.evaluation.record import Record
from talon_ocd.evaluation.rows import Row, Spread, group_rows
from talon_ocd.evaluation.splits import SamplingRule, Scenario, StreamOrder
from talon_ocd.images import ImageItem, VectorFacts, display
from talon_ocd.images.sources import stream as image_stream
from talon_ocd.methods import get_method, list_methods, register_file
from talon_ocd.methods.registry import REGISTRY, with_setting
from talon_ocd.methods.talon import TalonMethod
from talon_ocd.saved import make_folder, write_files

RESULTS = "results.json"


def evaluate(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for rows/ and results.json; resumable.")],
    dataset: Annotated[
        str, typer.Option("--dataset", "-d", help="Names with commas, e.g. digits or pets,cub.")
    ] = "digits",
    root: Annotated[
        list[str] | None,
        typer.Option("--root", help="Where data sets are: a folder, or NAME=FOLDER for each. Default: $TALON_DATA."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="Methods, groups or Python files with commas: talon,phe,ablation,./my.py; all. "
            "Default: the one that the settings are for, evidence or talon.",
        ),
    ] = None,
    known: Annotated[
        str | None, typer.Option("--known", help="How many classes are known, or a file that lists them.")
    ] = None,
    classes: Annotated[int, typer.Option("--classes", min=2, help="With --dataset glyphs: how many classes.")] = 100,
    backbone: choices.BackboneOption = "efficientnet-lite0",
    preset: choices.PresetOption = "default",
    seeds: Annotated[str, typer.Option("--seeds", help="Labelled halves, e.g. 0,1,2; a seed also trains.")] = "0,1,2",
    orders: Annotated[int, typer.Option("--orders", min=1, help="Stream orders of each labelled half.")] = 1,
    order: Annotated[
        str,
        typer.Option(
            "--order",
            help="shuffled (seeded), dataset (sorted by class in most), bursty, long-tailed or known (nothing new).",
        ),
    ] = "shuffled",
    sampling: Annotated[str, typer.Option("--sampling", help="How the labelled half is drawn: gcd or talon.")] = "gcd",
    labelled: Annotated[
        int | None,
        typer.Option("--labelled", min=1, help="Label at most so many images of each known class; same stream."),
    ] = None,
    epochs: choices.EpochsOption = None,
    threshold: Annotated[str | None, typer.Option("--threshold", help="Of TALON's rows: auto or a cosine.")] = None,
    adapt: Annotated[
        str | None, typer.Option("--adapt", help="Of talon and evidence: prototypes,encoder, one of them, none.")
    ] = None,
    image_size: choices.ImageSizeOption = None,
    aspect: choices.AspectOption = None,
    config: choices.ConfigOption = None,
    settings: choices.SetOption = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep", help="NAME=V1,V2,...: every method once for each value, e.g. online.threshold=0.5,0.6."
        ),
    ] = None,
    virtual: Annotated[
        Path | None,
        typer.Option("--virtual", help="For DiffGRE: a folder of generated images (see talon generate); one data set."),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Also write decisions and a page of pictures a row.")
    ] = False,
    quiet: choices.QuietOption = False,
) -> None:
    """Measure discovery on labelled data sets: every method under exactly the same protocol."""
    names = [] if method is None else _methods(method)
    data = [load_dataset(name, _root(name, root or []), known, classes) for name in _words(dataset)]
    encoder = choices.backbone_from(backbone, image_size, aspect, _vectors(data))
    shared, own = choices.split_settings(settings, REGISTRY)
    adaptation = None if adapt is None else parse_adapt(adapt)
    full = choices.config_from(
        preset, encoder.family, config, shared,
        epochs=epochs, threshold=choices.number_or_word(threshold), adapt=adaptation,
    )  # fmt: skip
    names = names or ["evidence" if full.online.by_evidence else "talon"]  # a preset or a number may mean TALON's rule
    _refuse_unused(threshold, names)
    cells = [cell for name in names for cell in _cells(name, full, epochs, adaptation, own, sweep or [])]
    stream = cast(StreamOrder | Scenario, _one_of("--order", order, StreamOrder, Scenario))
    rule = cast(SamplingRule, _one_of("--sampling", sampling, SamplingRule))
    plan = Plan(cells, full, _seeds(seeds), orders, stream, rule, labelled, _virtual(virtual, dataset, names))
    progress = progress_for(choices.err, quiet)
    for note in (f"{found.name}: {note}" for found in data for note in found.notes):
        progress.note(note)
    make_folder(output)
    (output / RESULTS).unlink(missing_ok=True)  # of an earlier run: it would not tell of this one
    about = {"command": choices.command_line(), "commit": choices.commit()}
    grid = Grid(plan, encoder, output, about, default_cache_directory(), progress)
    if report:
        grid.on_stream = lambda *told: _report(output, *told)
    rows = grid.run(data)
    text = json.dumps(rows, ensure_ascii=False)
    write_files(output, {RESULTS: text.encode("utf-8", "backslashreplace")})
    _tell(rows, output)


def _vectors(data: list[Dataset]) -> VectorFacts | None:
    """Return what is known of the embeddings that stand for images; pictures and embeddings don't mix."""
    found = [dataset.vectors for dataset in data]
    if any(vectors != found[0] for vectors in found):
        raise ConfigError("--dataset: embeddings of one encoder can be measured together; give others on their own.")
    return found[0]


def _methods(text: str) -> list[str]:
    """Return the names that are meant; a group stands for its methods, a Python file for those it defines."""
    names = [register_file(Path(word)) if word.endswith(".py") else list_methods(word) for word in _words(text)]
    return list(dict.fromkeys(name for part in names for name in part))


def _refuse_unused(threshold: str | None, names: list[str]) -> None:
    """Refuse a number for a threshold that no method would look at."""
    if threshold not in (None, "auto") and all(REGISTRY[name].group == "ours" for name in names):
        raise ConfigError(
            f"--threshold {threshold}: {', '.join(names)} decides by evidence and has no threshold; leave it out, set "
            "evidence.offset, or use --method talon."
        )


def _cells(
    name: str,
    config: TalonConfig,
    epochs: int | None,
    adapt: tuple[Adaptation, ...] | None,
    own: dict[str, dict[str, Any]],
    sweep: list[str],
) -> list[Cell]:
    """Return a method with the settings asked for, once for every combination of swept values."""
    swept = [choices.sweep_values(text) for text in sweep]
    cells = []
    for values in itertools.product(*(choice for _, choice in swept)):
        variant = dict(zip((key for key, _ in swept), values, strict=True))
        shared, mine = choices.split_settings([f"{key}={value}" for key, value in variant.items()], REGISTRY)
        if any(other != name for other in mine):
            continue
        values_of = dict(choices.setting(text) for text in shared)
        threshold = values_of.pop("online.threshold", None)
        built = get_method(name, config.override(**values_of))
        if epochs is not None:
            built = replace(built, recipe=built.recipe.with_epochs(epochs))
        if adapt is not None and isinstance(built, TalonMethod) and built.adapt is None:
            built = replace(built, adapt=adapt)  # asked for, even where it is what another rule would do by default
        if threshold is not None and isinstance(built, TalonMethod):
            built = replace(built, threshold=float(threshold))  # of the stream, not of the recipe: it shares the fit
        for key, value in {**own.get(name, {}), **mine.get(name, {})}.items():
            built = with_setting(built, key, value)
        cells.append(Cell(name, built, variant))
    return cells


def _virtual(folder: Path | None, dataset: str, methods: list[str]) -> list[ImageItem]:
    """Return generated images; they are made from one data set and used by some methods only."""
    if folder is None:
        return []
    if len(_words(dataset)) > 1:
        raise ConfigError(f"--virtual {folder}: generated images belong to one data set; evaluate one at a time.")
    if not any(REGISTRY[name].group == "diffgre" for name in methods):
        raise ConfigError(f"--virtual {folder}: none of {', '.join(methods)} trains on generated images; add diffgre.")
    return image_stream(folder).items


def _root(name: str, roots: list[str]) -> Path | None:
    """Return where a data set is: ``NAME=FOLDER`` goes before ``FOLDER``, that before ``$TALON_DATA``."""
    pairs = dict(text.split("=", 1) for text in roots if "=" in text and not Path(text).exists())
    plain = [text for text in roots if "=" not in text or Path(text).exists()]
    if len(plain) > 1:
        raise ConfigError(f"--root is given {len(plain)} times; write --root NAME=FOLDER for each data set.")
    if name in pairs:
        return Path(pairs[name])
    if plain:
        return Path(plain[0])
    usual = os.environ.get("TALON_DATA")
    return Path(usual) if usual and name not in ("digits", "glyphs", "folder") else None


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigError(f"{text!r}: give at least one name; several are separated by commas.")
    return list(dict.fromkeys(words))


def _one_of(option: str, text: str, *kinds: Any) -> str:
    words = [word for kind in kinds for word in get_args(kind)]
    if text not in words:
        raise ConfigError(f"{option} {text!r} is not known; use {' or '.join(words)}.{nearest(text, words)}")
    return text


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text!r}: write whole numbers with commas, e.g. 0,1,2.") from None
    if min(seeds) < 0 or max(seeds) >= 2**32:
        raise ConfigError(f"--seeds {text!r}: seeds are between 0 and 2^32 - 1.")
    return list(dict.fromkeys(seeds))


def _report(
    output: Path, experiment: Experiment, cell: Cell, number: int, answers: Answers, row: dict[str, Any]
) -> None:
    """Write decisions, summary and report of one stream."""
    folder = output / "reports" / folder_name(experiment.dataset) / cell.label
    with Record(folder / f"seed-{experiment.seed}-{number}", len(experiment.labelled.names)) as record:
        made = experiment.decisions(answers.assignment, answers.order, 0, answers.threshold, answers.unit)
        for decision, position in zip(made, answers.order, strict=True):
            record.add(decision, experiment.items[position])
        for skipped in experiment.skipped:
            record.skip(skipped)
        facts = {name: row[name] for name in ("method", "seed", "threshold", "command")} | {"unit": answers.unit}
        title = f"{row['dataset']}, {row['title']}, seed {row['seed']}, order {number}"
        record.finish(title, facts, row["settings"], row)


def _tell(rows: list[dict[str, Any]], output: Path) -> None:
    """Print mean and spread for each data set and method; ``talon tables`` has the tables of the paper."""
    table = Table(title=f"{rows[0]['backbone']}, preset {rows[0]['preset']}")
    columns = ("data set", "method", "Strict All", "Old", "New", "Greedy All", "categories", "old share", "runs")
    for column in columns:
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    for group in group_rows(Row(row) for row in rows):
        swept = (f"{name}={value}" for name, value in group.first.variant.items())
        cells = [
            _percent(group.spread(protocol, part))
            for protocol, part in (("strict", "all"), ("strict", "old"), ("strict", "new"), ("greedy", "all"))
        ]
        found, true = group.spread("categories", "found"), group.spread("categories", "true")
        count = f"{found.mean:.0f} of {true.mean:.0f}" if found and true else "-"
        name = " ".join([group.first.method, *swept])
        table.add_row(
            group.first.dataset, name, *cells, count, f"{group.first.old_share:.3f}", str(len(group.rows))
        )  # fmt: skip
    choices.out.print(table)
    choices.out.print(f"results: {display(output / RESULTS)}", soft_wrap=True, markup=False, highlight=False)


def _percent(found: Spread | None) -> str:
    if found is None:
        return "-"
    return f"{100 * found.mean:.1f}" + ("" if found.std is None else f" ± {100 * found.std:.1f}")
