"""The tables of the papers from rows of grids (layer: evaluation): who is in which table, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from talon_ocd.errors import ConfigError, nearest
from talon_ocd.evaluation.lines import Layout, Line, fill, lines
from talon_ocd.evaluation.published import TITLES, Published, comparable, find, measured
from talon_ocd.evaluation.rows import PARTS, Group, Row, of_dataset, spread
from talon_ocd.evaluation.table import Cell, Figure, Table, percent, scaled
from talon_ocd.methods.registry import REGISTRY

ABLATION = {
    "baseline": "", "mlc": "m", "tta-p": "p", "mlc-tta-p": "mp", "tta-m": "e", "mlc-tta-m": "me",
    "tta-p-m": "pe", "talon": "mpe",
}  # fmt: skip
"""The eight rows in the paper's order, and what is on: margin (m), prototypes (p), encoder (e)."""
ADAPTERS = ("mlc", "tent", "aeo", "ostta", "tta-p-tent", "tta-p-aeo", "tta-p-ostta", "talon")
CODED, CODE_LENGTHS = ("smile", "phe"), (64, 32, 16, 12)
NOT_IN_MAIN = frozenset(ABLATION) - {"baseline", "talon"}
TRIPLE = ("All", "Old", "New")
STAGES = ("encode", "decide", "adapt")
CACHED = (
    "Trunk outputs are cached and part of no time. A dash at encode: features were encoded once for all orders, "
    "outside of the stream and its time."
)


def make_table(name: str, rows: Sequence[Row], only: str | None = None) -> Table:
    """Return a table by its name, of all data sets or of one."""
    if name not in TABLES:
        raise ConfigError(f"table {name!r} is not known; use one of {', '.join(TABLES)}.{nearest(name, TABLES)}")
    return TABLES[name](of_dataset(rows, only))


def main_table(protocol: str, rows: Sequence[Row]) -> Table:
    """Methods x data sets under one protocol."""
    chosen = [row for row in rows if in_main(row)]
    layout = Layout(
        f"main-{protocol}", f"{protocol.capitalize()} accuracy in percent, and categories found",
        (*TRIPLE, "categories"), lambda group: [*accuracies(group, protocol), found_categories(group)],
        lambda row: [*_triple(row), None], protocol,
    )  # fmt: skip
    return fill(layout, lines(chosen))


def ablation(rows: Sequence[Row]) -> Table:
    """The parts of TALON switched on one by one."""
    chosen = [row for row in rows if row.method in ABLATION and not row.variant]
    parts = {method: tuple("yes" if part in on else "" for part in "mpe") for method, on in ABLATION.items()}
    filled = [replace(line, lead=parts[line.method]) for line in _complete(lines(chosen, ABLATION), ABLATION)]
    layout = Layout(
        "ablation", "Ablation of TALON, Strict accuracy in percent", TRIPLE,
        lambda group: accuracies(group, "strict"), _triple, section="8.2", lead=("MLC", "TTA-P", "TTA-M"),
    )  # fmt: skip
    return fill(layout, filled)


def adapters(rows: Sequence[Row]) -> Table:
    """Other test-time adapters in the place of TALON's."""
    chosen = [row for row in rows if row.method in ADAPTERS and not row.variant]
    layout = Layout(
        "adapters", "Test-time adapters on Baseline+MLC, Strict accuracy in percent", TRIPLE,
        lambda group: accuracies(group, "strict"), _triple, section="8.4",
    )  # fmt: skip
    return fill(layout, _complete(lines(chosen, ADAPTERS), ADAPTERS))


def counts(rows: Sequence[Row]) -> Table:
    """Categories found against the length of the code, with TALON, which has none."""
    swept = frozenset(name for row in rows for name in row.variant if name.rpartition(".")[2] == "bits")
    chosen = [row for row in rows if _coder(row.method) and not set(row.variant) - swept]
    filled = [Line("talon", _title("talon"), {}, ("",))] if not any(row.method == "talon" for row in chosen) else []
    there = set()
    for line in lines(chosen, hidden=swept):
        coder, length = _coder(line.method), code_length(next(iter(line.groups.values())).first)
        there.add((coder, length))
        title, label = TITLES[coder], line.label.replace(f", {length} bits", "")
        bits = "" if length is None else str(length)
        filled.append(
            replace(line, method=coder, label=label, lead=(bits,), paper_title=f"{title} {bits} bit" if bits else title)
        )
    for coder in CODED:
        wanted = [length for length in CODE_LENGTHS if (coder, length) not in there]
        filled += [Line(coder, _title(coder), {}, (str(length),)) for length in wanted]
    filled.sort(key=lambda line: ((*CODED, "talon").index(line.method), -int(line.lead[0] or 0)))
    layout = Layout(
        "counts", "Categories found against code length, with Strict accuracy in percent", ("categories", *TRIPLE),
        lambda group: [found_categories(group), *accuracies(group, "strict")],
        lambda row: [None if row.categories is None else Figure(row.categories, digits=0), *_triple(row)],
        section="8.3", lead=("bits",),
    )  # fmt: skip
    return fill(layout, filled)


def backbones(rows: Sequence[Row]) -> Table:
    """Methods by backbone under both protocols."""
    chosen = [row for row in rows if in_main(row)]
    filled = [
        replace(line, lead=(next(iter(line.groups.values())).first.setup.backbone,))
        for line in lines(chosen, hidden=frozenset({"backbone"}))
    ]
    titles = tuple(f"{protocol} {part}" for protocol in ("Strict", "Greedy") for part in TRIPLE)
    layout = Layout(
        "backbones", "Backbones: accuracy in percent under both protocols", titles,
        lambda group: [*accuracies(group, "strict"), *accuracies(group, "greedy")],
        lambda row: [*_triple(row), *_triple(_twin(row))], section="8.5", lead=("backbone",),
    )  # fmt: skip
    return fill(layout, filled)


def timing(rows: Sequence[Row]) -> Table:
    """Time of each stage: a training step, the prototypes, and the stages of the stream."""
    chosen = [row for row in rows if not row.variant]
    columns = (
        "ms a training step",
        "ms for prototypes",
        *(f"ms to {stage} an image" for stage in STAGES),
        "s of stream",
    )
    layout = Layout("timing", "Time of each stage", columns, _stage_times)
    return fill(layout, lines(chosen), [CACHED, *_published_times(chosen, ("training", "prototypes", "stream"))])


def training_time(rows: Sequence[Row]) -> Table:
    """Time of all training."""
    chosen = [row for row in rows if not row.variant]
    layout = Layout(
        "training-time", "Training time in seconds", ("training", "whole fit"),
        lambda group: [scaled(group.spread("timings", f"{name}_seconds")) for name in ("training", "fit")],
    )  # fmt: skip
    return fill(layout, lines(chosen), _published_times(chosen, ("total training",)))


TABLES: dict[str, Callable[[Sequence[Row]], Table]] = {
    "main-strict": lambda rows: main_table("strict", rows),
    "main-greedy": lambda rows: main_table("greedy", rows),
    "ablation": ablation,
    "counts": counts,
    "adapters": adapters,
    "backbones": backbones,
    "timing": timing,
    "training-time": training_time,
}


def accuracies(group: Group, protocol: str) -> list[Cell]:
    """Return All, Old and New in percent."""
    return [percent(group.spread(protocol, part)) for part in PARTS]


def found_categories(group: Group) -> Figure | None:
    """Return how many categories were found."""
    return scaled(group.spread("categories", "found"), digits=0)


def code_length(row: Row) -> int | None:
    """Return the bits of a code, or ``None`` for methods without one."""
    swept = [value for name, value in row.variant.items() if name.rpartition(".")[2] == "bits"]
    found = swept[0] if swept else row.get("settings", "recipe", "bits")
    return found if isinstance(found, int) else None


def in_main(row: Row) -> bool:
    """Switches, adapters, code lengths and sweeps have tables of their own."""
    length = bool(_coder(row.method)) and row.method not in (*CODED, "talon")
    return row.method not in NOT_IN_MAIN and row.group != "adapter" and not length and not row.variant


def _coder(method: str) -> str:
    """Return whose code length a row is about: ``smile`` for ``smile-16``; empty for methods of other tables.

    >>> _coder("smile-16"), _coder("talon"), _coder("phe-legacy")
    ('smile', 'talon', '')
    """
    base, _, length = method.partition("-")
    return base if method in (*CODED, "talon") or (base in CODED and length.isdigit()) else ""


def _complete(entries: Sequence[Line], methods: Iterable[str]) -> list[Line]:
    """Add an empty line for each method without rows, at its place."""
    filled: list[Line] = []
    for method in methods:
        own = [line for line in entries if line.method == method]
        filled += own or [Line(method, _title(method), {})]
    return filled


def _title(method: str) -> str:
    return REGISTRY[method].title if method in REGISTRY else TITLES.get(method, method)


def _triple(row: Published | None) -> list[Cell]:
    if row is None:
        return [None, None, None]
    values = ((row.all, row.all_std), (row.old, row.old_std), (row.new, row.new_std))
    return [None if mean is None else Figure(mean, std) for mean, std in values]


def _twin(row: Published) -> Published | None:
    """Return the Greedy figure that belongs to a Strict one."""
    return find("greedy", row.method, row.dataset, row.split, row.backbone, row.section)


def _stage_times(group: Group) -> list[Cell]:
    def per(name: str, count: tuple[str, ...]) -> Cell:
        pairs = [(row.number("timings", f"{name}_seconds"), row.number(*count)) for row in group.rows]
        return scaled(spread(1000 * seconds / n for seconds, n in pairs if seconds is not None and n), digits=2)

    return [
        per("training", ("timings", "training_steps")),
        scaled(group.spread("timings", "prototype_seconds"), 1000.0),
        *(per(stage, ("sizes", "stream")) for stage in STAGES),
        scaled(group.spread("timings", "stream_seconds")),
    ]


def _published_times(rows: Sequence[Row], what: Sequence[str]) -> list[str]:
    """Return published times of these data sets in words: they were taken on other machines."""
    here = {(row.dataset, comparable(str(row.get("family")), row.setup.backbone)) for row in rows}
    return [
        f"Published, {row.dataset}: {row.method} {row.what} {row.value:g} {row.unit} ({row.note})."
        for row in measured()
        if row.what in what
        and any(row.dataset == name and row.backbone in ("", family) for name, family in here if family)
    ]
