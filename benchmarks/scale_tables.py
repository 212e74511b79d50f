"""The tables of ``docs/scale.md``: ``write_docs.py`` puts them there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from talon_ocd.scale.costs import MANY_LISTED, Costs, plan
from talon_ocd.scale.pool import Pool
from talon_ocd.scale.simulation import simulate

RESULTS = Path(__file__).resolve().parent / "results"
FAST_ENCODER = 2_000.0
"""Images a second of an encoder on a GPU: assumed, never measured by us."""


def scale_table(name: str) -> str:
    """Return one of the tables as Markdown."""
    tables: dict[str, Callable[[], str]] = {
        "owner": owner, "profile": profile, "full": full, "plans": plans, "bounds": bounds, "pool": pool,
        "modes": modes,
    }  # fmt: skip
    return tables[name]()


def owner() -> str:
    """Return the measured rates."""
    found = _measured("owner.json")
    titles = {"talon": "TALON's rule", "journal": "the same with a journal on disk", "evidence": "the evidence rule"}
    lines = []
    for name, title in titles.items():
        row = found["rows"][name]
        rates = [row[who][how] for who in ("owner", "product") for how in ("a_processor_second", "a_second")]
        lines.append([title, *(f"{rate:,.0f}" for rate in rates)])
    head = ["owner", "a processor second", "a second, by the clock"]
    return _markdown([*head, "bare product, a processor second", "by the clock"], lines) + _where(found)


def profile() -> str:
    """Return where the owner's time goes."""
    found = _measured("owner.json")
    rows = {name: found["rows"][name]["microseconds_a_feature"] for name in ("talon", "journal", "evidence")}
    parts = dict.fromkeys(part for row in rows.values() for part in row)
    lines = [[part, *(_with_share(row, part) for row in rows.values())] for part in parts]
    lines.append(["together", *(f"{sum(row.values()):.0f}" for row in rows.values())])
    return _markdown(["µs of one core for a feature", "TALON's rule", "with a journal", "evidence"], lines)


def full() -> str:
    """Return what one owner can take, and with how many prototypes it is full."""
    costs = Costs()
    numbers = (1_000, 10_000, 100_000, 1_000_000)
    lines = [[f"{number:,}", *(f"{costs.owner_rate(number, size):,.0f}" for size in (256, 768))] for number in numbers]
    rates = [f"{rate:,}/s: {_up_to_a_million(costs.full_at(rate, 768))} prototypes" for rate in (500, 1_000, 5_000)]
    table = _markdown(["prototypes", "features/s, D = 256", "features/s, D = 768"], lines)
    return f"{table}\n\nFull (busy 80 % of the time, D = 768, with a journal) at {'; '.join(rates)}."


def plans() -> str:
    """Return what streams of three sizes need."""
    lines = []
    for rate in (1_000, 100_000, 1_000_000):
        for prototypes in (10_000, 1_000_000):
            slow, fast = plan(rate, prototypes), plan(rate, prototypes, encoder_rate=FAST_ENCODER)
            lines.append(
                [
                    f"{rate:,}", f"{prototypes:,}", f"{slow.encoders:,}", f"{fast.encoders:,}", f"{slow.owners:,}",
                    f"{slow.prototypes_each:,}", f"{slow.owner_busy:.0%}", f"{slow.images_gbit:,.1f}",
                    f"{slow.features_gbit:,.2f}", f"{slow.cards:,}", f"{slow.journal_gigabytes_a_day:,.0f}",
                ]
            )  # fmt: skip
    head = ["images/s", "prototypes", "encoders: cores, lite0", f"encoders: {FAST_ENCODER:,.0f}/s each", "owners"]
    head += ["prototypes of each", "fullest owner busy", "images, Gbit/s", "features, Gbit/s", "cards of 25 Gbit/s"]
    return _markdown([*head, "journal for ever, GB a day"], lines)


def bounds() -> str:
    """Return how busy 64 encoders keep an owner, by what goes wrong and by what may wait."""
    base = Pool(
        encoders=64, batches=2_500, owner_seconds=Pool.batch * Costs().owner_seconds(10_000, 768, journal=False),
        jitter=0.2, straggle=4.0, warm_up=256,
    )  # fmt: skip
    base = replace(base, trunk_seconds=64 * base.owner_seconds / 1.25)
    troubles: dict[str, dict[str, float]] = {
        "times vary by 20 %": {},
        "and 1 % of batches take 4 times as long": {"stragglers": 0.01},
        "and at 0.05 % an encoder dies, 10 s until the next": {"stragglers": 0.01, "failures": 0.0005},
        "the same, but another one takes over at once": {
            "stragglers": 0.01,
            "failures": 0.0005,
            "restart_seconds": 0.0,
        },
    }
    lines = []
    for title, trouble in troubles.items():
        cells = []
        for waiting in (4, 64, 256):
            outcome = simulate(replace(base, at_the_owner=waiting, **trouble))  # type: ignore[arg-type]
            cells.append(f"{outcome.owner_busy[0]:.1%} ({outcome.most_under_way}, {outcome.latency['p99']:.0f} s)")
        lines.append([title, *cells])
    return _markdown(["", *(f"{waiting} batches may wait" for waiting in (4, 64, 256))], lines)


def pool() -> str:
    """Return what pretended encoders before a real owner gave."""
    found = _measured("pool.json")
    return (
        f"- the owner worked **{found['owner_busy']:.1%}** of the time, the simulation says "
        f"{found['simulated']['owner_busy']:.1%};\n"
        f"- {found['most_waiting']} batches waited for it at most; with those at the encoders "
        f"{found['most_under_way_allowed']} are allowed;\n"
        f"- {found['owner_in_the_pool_a_second']:,} features/s by the clock, {found['owner_alone_a_second']:,} alone "
        f"just before (others were at work).\n\n"
        f"`{found['command']}`, commit {found['commit']}, load average {found['load_average']:g}."
    )


def modes() -> str:
    """Return images a second of streams that adapt their encoder, by mode and number of encoders."""
    costs, batch = Costs(), 64
    head = batch / _measured("owner.json")["rows"]["encoder"]["head"]["a_processor_second"]
    learning = batch * costs.learning_seconds
    lines = []
    for mode, staleness in (("exact", 0), ("barrier", 0), ("async", 2), ("async", 1_000)):
        cells = []
        for encoders in (2, 4, 8, 16):
            planned = Pool(
                encoders=encoders, batch=batch, batches=400, mode=mode, head_seconds=head,
                trunk_seconds=batch / costs.encoder_rate - head, owner_seconds=0.0, adapt_seconds=learning - head,
                broadcast_seconds=0.01, jitter=0.1, staleness=staleness,
            )  # fmt: skip
            outcome = simulate(planned)
            behind = f", {outcome.encoded_anew / planned.batches:.0%} anew" if mode == "async" else ""
            cells.append(f"{outcome.images_a_second:,.0f} ({outcome.owner_busy[0]:.0%}{behind})")
        lines.append([f"`{mode}`" + (f", staleness {staleness:,}" if mode == "async" else ""), *cells])
    return _markdown(["images/s (owner busy)", *(f"{encoders} encoders" for encoders in (2, 4, 8, 16))], lines)


def _measured(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def _where(found: dict[str, Any]) -> str:
    load = " and ".join(f"{value:g}" for value in found["load_average"])
    return f"\n\n`{found['command']}`, commit {found['commit']}, {found['machine']}, load average {load}."


def _with_share(row: dict[str, float], part: str) -> str:
    return f"{row[part]:.1f} ({row[part] / sum(row.values()):.0%})" if part in row else "–"


def _up_to_a_million(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.0f}" if value <= MANY_LISTED else f"more than {MANY_LISTED:,}"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    cells = [f"| {' | '.join(row)} |" for row in [head, *lines]]
    return "\n".join([cells[0], "|---" * len(head) + "|", *cells[1:]])
