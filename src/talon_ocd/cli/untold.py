"""Answers of a stream that are in its journal although nobody was told: what ``talon discover`` reports late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from talon_ocd.cli.engines import Lasting
from talon_ocd.durable import Pictures
from talon_ocd.evaluation.record import Record, last_before_cut_off
from talon_ocd.images import ImageItem
from talon_ocd.online import Decision


def first_untold(kept: Lasting, output: Path) -> int:
    """Return the first answer of the stream that no report tells of, if the last run into ``output`` was killed."""
    last = last_before_cut_off(output)
    if last is None or not isinstance(index := last.get("index"), int):
        return kept.journal.answered
    decision = kept.journal.decision(index)
    if decision is None or (decision.source, decision.category) != (last.get("source"), last.get("category")):
        return kept.journal.answered  # it was a run of another stream
    return index + 1


def add_untold(
    kept: Lasting,
    first: int,
    record: Record,
    name: Callable[[Decision], str],
    truth: list[str | None],
    labels: Mapping[str, str | None],
) -> None:
    """Report what is in the journal although nobody was told: Ctrl-C or a kill came between the two.

    ``labels`` are those of the images at hand, by source: ``truth`` gets them.
    """
    for index in range(first, kept.journal.answered):
        decision = kept.journal.decision(index)
        if decision is not None:
            record.add(replace(decision, name=name(decision)), picture(kept.pictures, index, decision.source))
            truth.append(labels.get(decision.source))


def picture(pictures: Pictures, index: int, source: str) -> ImageItem | None:
    """Return the image of an answer; its thumbnail if it is gone, or lies where nobody finds it again."""
    thumbnail = pictures.thumbnail(index)
    return pictures.item(index) or (None if thumbnail is None else ImageItem(source, None, "", thumbnail))
