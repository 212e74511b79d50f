"""What stands below a table or figure (layer: evaluation): how often, how and with what its rows were made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from talon_ocd.evaluation.published import comparable
from talon_ocd.evaluation.rows import Group, Row, spread

MOST_COMMANDS = 4
"""Commands that are printed; further ones are counted."""


def notes(groups: Sequence[Group]) -> tuple[str, ...]:
    """Return samplings x orders, epochs, pipeline, share of old images, commands and commits of all rows."""
    rows = [row for group in groups for row in group.rows]
    found = [
        _runs(groups),
        _by_method("Epochs", rows, lambda row: row.get("epochs")),
        _values("Pipeline", (row.setup.pipeline for row in rows)),
        _values("Backbone", (row.setup.backbone for row in rows)),
        _values("Preset", (row.setup.preset for row in rows)),
        _shares(rows),
        _values("Threads", (row.get("machine", "cpu_threads") for row in rows)),
        _commands(rows),
        _values("Commit", (row.get("commit") for row in rows)),
    ]
    return tuple(note for note in found if note)


def beside(rows: Iterable[Row]) -> str | None:
    """Return why no published figure can stand beside these rows, or ``None`` if some can."""
    names: dict[str, None] = {}
    for row in rows:
        if comparable(str(row.get("family")), row.setup.backbone):
            return None
        names[row.setup.backbone or "unknown"] = None
    return f"No published figures beside these: no paper used the backbone {' or '.join(names)}."


def _runs(groups: Sequence[Group]) -> str:
    """Say how many labelled halves and orders there are; a range where groups differ."""
    samplings = [len({row.get("seed") for row in group.rows}) for group in groups]
    orders = [-(-len(group.rows) // count) for group, count in zip(groups, samplings, strict=True)]
    rules = sorted(
        {f"{row.setup.sampling} sampling, {row.setup.order} order" for group in groups for row in group.rows}
    )
    count = f"{_range(samplings, 'sampling')} x {_range(orders, 'order')}"
    return f"Mean ± sample standard deviation over {count} ({'; '.join(rules)})."


def _range(counts: Sequence[int], word: str) -> str:
    low, high = min(counts), max(counts)
    return f"{low if low == high else f'{low} to {high}'} {word}{'' if high == 1 else 's'}"


def _values(title: str, values: Iterable[object]) -> str | None:
    found = list(dict.fromkeys(str(value) for value in values if value not in (None, "")))
    return f"{title}: {', '.join(found)}." if found else None


def _by_method(title: str, rows: Sequence[Row], ask: Callable[[Row], object]) -> str | None:
    """Say a value once if all rows agree, and otherwise whose it is."""
    owners: dict[str, dict[str, None]] = {}
    for row in rows:
        if (value := ask(row)) is not None:
            owners.setdefault(str(value), {})[row.title] = None
    if len(owners) < 2:
        return _values(title, owners)
    parts = [f"{value} ({', '.join(names)})" for value, names in owners.items()]
    return f"{title}: {'; '.join(parts)}."


def _shares(rows: Sequence[Row]) -> str | None:
    shares: dict[str, list[float]] = {}
    for row in rows:
        if row.old_share is not None:
            shares.setdefault(row.dataset, []).append(row.old_share)
    means = {name: found.mean for name, values in shares.items() if (found := spread(values))}
    return f"Share of old images: {', '.join(f'{name} {mean:.3f}' for name, mean in means.items())}." if means else None


def _commands(rows: Sequence[Row]) -> str | None:
    found = list(dict.fromkeys(str(row.get("command")) for row in rows if row.get("command")))
    if not found:
        return None
    more = f" and {len(found) - MOST_COMMANDS} more" if len(found) > MOST_COMMANDS else ""
    return f"Command: {'; '.join(f'`{command}`' for command in found[:MOST_COMMANDS])}{more}."
