"""What a stream leaves on disk: decisions as they are given, then a summary and the report (layer: evaluation)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from talon_ocd.errors import ImageError, StorageError
from talon_ocd.evaluation.report import Exemplars, ReportInput, write_report
from talon_ocd.images import ImageItem, Skipped
from talon_ocd.online import Decision
from talon_ocd.saved import make_folder, reason, write_files

DECISIONS, SUMMARY, REPORT = "decisions.jsonl", "summary.json", "report.html"
THOUGHTS = "second_thoughts.json"
PREVIOUS = "decisions.previous.jsonl"
"""Where the decisions of an earlier run into the same folder go."""
SCORES = ("strict", "greedy", "categories", "fragmentation")
TAIL = 2**16
"""Bytes in which the last decision of a file is for sure."""
MOST_LISTED = 1000
"""Skipped images that the summary lists by name; all are counted."""


class Record:
    """An output folder: every decision is on disk before the next batch is asked for."""

    def __init__(self, folder: Path, known: int) -> None:
        self.folder, self.known = folder, known
        self.decisions: list[Decision] = []
        self.verdicts: Counter[str] = Counter()
        self.skipped: list[Skipped] = []
        self.skipped_count = 0
        self._exemplars = Exemplars()
        self._given: Counter[int] = Counter()
        make_folder(folder)
        try:
            for old in (SUMMARY, REPORT, THOUGHTS):  # of an earlier run: they would not tell of this one
                (folder / old).unlink(missing_ok=True)
            if (folder / DECISIONS).is_file():  # decisions that were given are not lost
                (folder / DECISIONS).replace(folder / PREVIOUS)
            self._file = (folder / DECISIONS).open("w", encoding="utf-8")
        except OSError as error:
            raise StorageError(f"{folder}: can't be written ({reason(error)}).") from error

    def __enter__(self) -> Record:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError as failure:
            if kind is None:
                raise self._full(failure) from failure

    def add(self, decision: Decision, item: ImageItem | None) -> None:
        """Write one decision down; without an item, the gallery does without its picture."""
        try:
            self._file.write(json.dumps(decision.to_dict(), ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise self._full(error) from error
        self.decisions.append(decision)
        self.verdicts[decision.verdict] += 1
        self._given[decision.category] += 1
        if item is not None and self._given[decision.category] <= self._exemplars.per_category:
            self._keep(decision.category, item)

    def skip(self, skipped: Skipped) -> None:
        """Note an image that could not be used."""
        self.skipped_count += 1
        if len(self.skipped) < MOST_LISTED:
            self.skipped.append(skipped)

    def summary(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of ``summary.json``: counts, categories, what was skipped, and ``facts``."""
        names = {decision.category: decision.name for decision in self.decisions}
        return {
            "images": len(self.decisions),
            "verdicts": {name: self.verdicts[name] for name in ("known", "discovered", "new")},
            "known_classes": self.known,
            "known_classes_seen": sum(category < self.known for category in self._given),
            "categories_discovered": self.verdicts["new"],
            "categories": [
                {"category": category, "name": names[category], "images": self._given[category]}
                for category in sorted(self._given)
            ],
            "skipped": {
                "count": self.skipped_count,
                "listed": [{"source": item.source, "reason": item.reason} for item in self.skipped],
            },
            **facts,
        }

    def finish(
        self,
        title: str,
        facts: Mapping[str, Any],
        settings: Mapping[str, Any],
        scores: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Write ``summary.json`` and ``report.html``; returns the summary. ``scores`` are those of ``score``."""
        measured = {"metrics": {name: scores[name] for name in SCORES}} if scores else {}
        summary = self.summary({**facts, **measured})
        text = json.dumps(summary, indent=2, ensure_ascii=False)
        write_files(self.folder, {SUMMARY: text.encode("utf-8", "backslashreplace")})
        shown = {"images": len(self.decisions), **facts, "skipped": self.skipped_count}
        data = ReportInput(
            title=title,
            decisions=[decision.to_dict() for decision in self.decisions],
            known=self.known,
            thumbnails=self._exemplars.thumbnails,
            summary=shown,
            metrics=_shown(scores) if scores else None,
            skipped=[(item.source, item.reason) for item in self.skipped],
            settings=settings,
        )
        write_report(data, self.folder / REPORT)
        return summary

    def _keep(self, category: int, item: ImageItem) -> None:
        try:
            self._exemplars.add(category, item.load(shorter_side=self._exemplars.side))
        except ImageError:  # it was there when it was answered; the gallery does without it
            return

    def _full(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self.folder / DECISIONS}: can't be written ({reason(error)}); "
            f"the first {len(self.decisions)} decisions are safe in it."
        )


def last_before_cut_off(folder: Path) -> dict[str, Any] | None:
    """Return the last decision that a run into this folder wrote before it was cut off.

    ``None`` if there was no such run: one that came to its end has written its summary.
    """
    file = folder / DECISIONS
    if (folder / SUMMARY).exists() or not file.is_file():
        return None
    try:
        with file.open("rb") as decisions:
            decisions.seek(max(file.stat().st_size - TAIL, 0))
            lines = decisions.read().splitlines()
    except OSError as error:
        raise StorageError(f"{file}: can't be read ({reason(error)}).") from error
    for line in reversed(lines):
        with suppress(ValueError):  # half a line
            decision = json.loads(line)
            if isinstance(decision, dict):
                return decision
    return None


def _shown(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return scores as the report shows them: accuracies, categories, and how far true classes are scattered."""
    spread = scores["fragmentation"]
    return {
        **{name: scores[name] for name in ("strict", "greedy", "categories")},
        "ids a true class is spread over": round(spread["ids"], 1),
        "effective number of them": round(spread["effective_ids"], 2),
    }
