"""Write measured tables into the documentation: ``python benchmarks/write_docs.py [--check]``.

Rows come from ``benchmarks/results/grid-*.json``, as ``talon evaluate`` wrote them. A page says where a table goes:

    <!-- table NAME [DATA SET] --> ... <!-- end -->       a table of ``talon tables``
    <!-- measured METHOD,METHOD --> ... <!-- end -->      the rows of some methods
    <!-- sweep METHOD,METHOD [FILE] --> ... <!-- end -->  the same with swept settings, or of another file
    <!-- streams [FILE] --> ... <!-- end -->              rows of ``streams-*.json``: other data, shares and orders
    <!-- scale NAME --> ... <!-- end -->                  costs and simulations of ``scale_tables.py``
    <!-- representation --> ... <!-- end -->              rows of ``representation-*.json``: trainings of the head

``--check`` writes nothing and fails if a page does not hold what it should.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from scale_tables import scale_table

from talon_ocd.evaluation.rows import Group, Row, group_rows, read_rows
from talon_ocd.evaluation.tables import make_table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"<!-- (table|measured|sweep|streams|scale|representation)([^>]*?) -->\n.*?<!-- end -->", re.DOTALL)


def measured(names: list[str], rows: list[Row], swept: bool = False) -> str:
    """Return a table of the rows of some methods, one line for each data set and setup, ``swept`` or not."""
    groups = [group for group in group_rows(rows) if group.first.method in names and bool(group.first.variant) == swept]
    again = any(group.first.get("rethought") for group in groups)
    columns = ["data set", "method", "Strict All", "Old", "New", *(["All after second thoughts"] if again else [])]
    columns += ["Greedy All", "categories (true)", "epochs", "runs"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    order = {name: number for number, name in enumerate(names)}

    def place(group: Group) -> tuple[str, int, str, list[tuple[bool, float, str]]]:
        variant = group.first.variant
        return group.first.dataset, order[group.first.method], str(list(variant)), [*map(_rank, variant.values())]

    for group in sorted(groups, key=place):
        cells = [percent(group, "strict", part) for part in ("all", "old", "new")]
        cells += [percent(group, "rethought", "strict", "all")] if again else []
        cells.append(percent(group, "greedy", "all"))
        found, true = group.spread("categories", "found"), group.spread("categories", "true")
        assert found is not None and true is not None
        preset = _setup(group.first)
        variant = "".join(f", {key} = {value}" for key, value in group.first.variant.items())
        name = f"`{group.first.method}`{preset}{variant}"
        count = f"{found.mean:.0f} ({true.mean:.0f})"
        lines.append(
            f"| {group.first.dataset} | {name} | {' | '.join(cells)} | {count} | "
            f"{group.first.setup.epochs} | {len(group.rows)} |"
        )
    return "\n".join(lines)


def _rank(value: object) -> tuple[bool, float, str]:
    """Return what puts swept values in order: numbers by their size, then words such as ``auto``."""
    text = str(value)
    try:
        return False, float(text), ""
    except ValueError:
        return True, 0.0, text


def _setup(row: Row) -> str:
    """Say what a row was trained with, if not as the preset ``official`` says."""
    if row.get("preset") != "default":
        return ""
    return ", pre-trained features" if row.setup.epochs == "0" else ", default preset"


def streams(rows: list[Row]) -> str:
    """Return a table of one method on other data, other shares of known classes and other orders of the stream."""
    lines = [
        "| data set | known of classes | stream | Strict All | Old | New | All after second thoughts "
        "| categories (true) | old images in new categories | runs |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for group in sorted(group_rows(rows), key=lambda group: (group.first.dataset, str(group.first.get("order")))):
        first = group.first
        found, true = group.spread("categories", "found"), group.spread("categories", "true")
        assert found is not None and true is not None
        share = f"{first.get('known_classes')} of {first.get('classes')}"
        share += str(first.get("sampling")).removeprefix("gcd")  # how many labels a class has at most, if that is told
        accuracy = [percent(group, "strict", part) for part in ("all", "old", "new")]
        cells = [*accuracy, percent(group, "rethought", "strict", "all"), f"{found.mean:.0f} ({true.mean:.0f})"]
        sent = percent(group, "sent_to_new", "old")
        lines.append(
            f"| {first.dataset} | {share} | {first.get('order', 'kind')} | {' | '.join(cells)} | {sent} "
            f"| {len(group.rows)} |"
        )
    return "\n".join(lines)


def representation() -> str:
    """Return a table of trainings of the head: mean average precision on new classes, and two measures beside it."""
    columns = (
        "| data set | training | head alone | beside the others | with its texture | known right | known above new |"
    )
    lines = [columns, "|---|---|---|---|---|---|---|"]
    for file in sorted(RESULTS.glob("representation-*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        rows = {(row["variant"], row["parts"]): row for row in content["rows"]}
        for variant in dict.fromkeys(row["variant"] for row in content["rows"]):
            beside = rows[variant, "beside"]
            found = [rows[variant, part]["precision"] for part in ("alone", "beside", "both")]
            cells = [f"{100 * value:.1f}" for value in (*found, beside["known"], beside["apart"])]
            lines.append(f"| {content['dataset']} | {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def percent(group: Group, *names: str) -> str:
    """Return mean ± standard deviation in percent."""
    found = group.spread(*names)
    if found is None:
        return "–"
    return f"{100 * found.mean:.1f}" + ("" if found.std is None else f" ± {100 * found.std:.1f}")


def filled(text: str, rows: list[Row]) -> str:
    """Return a page with all its tables."""

    def fill(match: re.Match[str]) -> str:
        kind, words = match[1], match[2].split()
        if kind == "streams":
            files = sorted(RESULTS.glob(f"{words[0] if words else 'streams-*'}.json"))
            content = streams([row for row in read_rows(files).rows if not row.variant] if files else [])
        elif kind == "scale":
            content = scale_table(words[0])
        elif kind == "representation":
            content = representation()
        elif kind in ("measured", "sweep"):
            own = read_rows([RESULTS / f"{words[1]}.json"]).rows if len(words) > 1 else rows
            content = measured(words[0].split(","), own, swept=kind == "sweep")
        else:
            plain = [row for row in rows if not row.variant and row.get("preset") == "official"]
            content = make_table(words[0], plain, words[1] if len(words) > 1 else None).markdown()
        return f"<!-- {' '.join([kind, *words])} -->\n\n{content.strip()}\n\n<!-- end -->"

    return BLOCK.sub(fill, text)


def main() -> int:
    """Fill every page, or say which are out of date."""
    rows = read_rows(sorted(RESULTS.glob("grid-*.json"))).rows
    stale = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = filled(before, rows)
        if after != before:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(after, encoding="utf-8")
    print(f"{len(stale)} pages changed: {', '.join(stale) or 'none'}")  # noqa: T201 - a script speaks to a terminal
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
