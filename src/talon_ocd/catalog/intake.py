"""Taking labels in that people made elsewhere: CSV, JSONL, Label Studio (layer: catalog).

``folder_intake`` reads pictures in folders. A file becomes a plan first, which can be shown and not done. What a plan
does are ordinary events, each of which can be undone. Rows that can't be used are told with their line and left out.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from talon_ocd.catalog.categories import Catalog
from talon_ocd.catalog.changes import column_of
from talon_ocd.catalog.corrections import NOWHERE
from talon_ocd.catalog.names import clean_name
from talon_ocd.durable.journal import Event
from talon_ocd.errors import CatalogError
from talon_ocd.saved import reason

ROWS = 50_000
"""Answers that are looked through at once for their sources."""
Groups = dict[str, dict[int, list[int]]]
"""Images by the name that they shall have, and by the category that they are in."""


@dataclass(frozen=True, slots=True)
class Label:
    """What a row says: an image, by index or by source, and the name of its category."""

    line: int
    index: int | None
    source: str | None
    name: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """A row that can't be used, and why."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """One event to be: ``name`` a category, ``split`` images off one under a name, ``move`` or ``confirm`` images."""

    kind: Literal["name", "split", "move", "confirm"]
    name: str
    category: int | None
    images: tuple[int, ...] = ()

    def __str__(self) -> str:
        words = {
            "name": f"name category {self.category} {self.name!r}",
            "split": f"split {_images(self.images)} off category {self.category} as {self.name!r}",
            "move": f"move {_images(self.images)} to {self.name!r}",
            "confirm": f"confirm {_images(self.images)} in {self.name!r}",
        }
        return words[self.kind]


@dataclass(frozen=True, slots=True)
class Plan:
    """What labels would change.

    Attributes:
        steps: in their order.
        troubles: rows that are left out.
        unchanged: images that are where their label says.
    """

    steps: tuple[Step, ...]
    troubles: tuple[Trouble, ...]
    unchanged: int

    def carry_out(self, catalog: Catalog, actor: str = "person", source: str = "") -> list[Event]:
        """Do it: one event a step."""
        note = {"imported": source} if source else None
        return [_carry_out(step, catalog, actor, note) for step in self.steps]


def read_labels(file: Path) -> tuple[list[Label], list[Trouble]]:
    """Read a ``.csv``, a ``.jsonl`` or a ``.json`` of Label Studio; rows need ``index`` or ``source``, and ``name``."""
    readers = {".csv": _csv_rows, ".jsonl": _json_lines, ".json": _tasks}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise CatalogError(
            f"{file}: labels come as .csv, .jsonl, .json (Label Studio) or a folder per category, not as "
            f"{file.suffix!r}."
        )
    labels, troubles = [], []
    try:
        for line, row in reader(file):
            found = _label(line, row)
            if isinstance(found, Label):
                labels.append(found)
            elif found is not None:
                troubles.append(found)
    except OSError as error:
        raise CatalogError(f"{file}: can't be read ({reason(error)}).") from error
    except (UnicodeDecodeError, csv.Error, json.JSONDecodeError) as error:
        raise CatalogError(f"{file}: this is no {file.suffix} file in UTF-8 ({error}).") from error
    return labels, troubles


def plan(catalog: Catalog, labels: Sequence[Label], confirm: bool = False) -> Plan:
    """Work out which events bring every image to the category with its name.

    A name that no category has goes to the nameless category that is mostly made of its images; if there is none, a new
    category is split off. With ``confirm``, images that are in the right place already count once more there.
    """
    wanted, troubles = _wanted(catalog, labels)
    homes = column_of(catalog.journal, "home", list(wanted))
    groups: Groups = defaultdict(lambda: defaultdict(list))
    for image, label in wanted.items():
        home = homes[image]
        groups[label.name][NOWHERE if home == NOWHERE else catalog.resolve(home)].append(image)
    targets = {name: catalog.find(name) for name in groups}
    made = _made_homes(catalog, groups, targets)
    moving, unchanged = list[Step](), 0
    for name, by_end in groups.items():
        target, first = targets[name], made.get(name)
        if target is None and first is None:
            troubles += [Trouble(wanted[i].line, _homeless(i, name)) for images in by_end.values() for i in images]
            continue
        there = tuple(by_end.get(target, ())) if target is not None else ()
        split_off = set(first.images) if first else set()
        away = tuple(i for end, images in by_end.items() for i in images if end != target and i not in split_off)
        unchanged += len(there)
        moving += [Step("move", name, target, away)] if away else []
        moving += [Step("confirm", name, target, there)] if there and confirm else []
    steps = (*made.values(), *moving)
    return Plan(steps, tuple(sorted(troubles, key=lambda trouble: trouble.line)), unchanged)


def _made_homes(catalog: Catalog, groups: Groups, targets: dict[str, int | None]) -> dict[str, Step]:
    """Return how names that no category has get one, in this order; ``targets`` becomes the categories by name.

    A category that gets another name leaves those homeless who go by its present one: their turn comes afterwards.
    The name of a nameless one means the category itself: who goes by it goes along.
    """
    made: dict[str, Step] = {}
    taken: dict[int, int] = {}
    waiting = deque(name for name, target in targets.items() if target is None)
    while waiting:
        name = waiting.popleft()
        step = _new_home(catalog, name, groups[name], taken)
        if step is None:
            continue
        made[name] = step
        if step.kind == "name" and step.category is not None:
            named = catalog.get(step.category, exemplars=0).named
            left = [other for other, target in targets.items() if named and target == step.category]
            targets.update({**dict.fromkeys(left), name: step.category})
            waiting.extend(left)
    return made


def _new_home(catalog: Catalog, name: str, by_end: Mapping[int, Sequence[int]], taken: dict[int, int]) -> Step | None:
    """Return how a name gets a category: that of its images, or one that is split off; ``None``: it has no images.

    ``taken`` counts the images that earlier splits take from each category; all of them if it has got its name.
    """
    ends = [end for end in by_end if end != NOWHERE]
    if not ends:
        return None
    end = max(ends, key=lambda end: (len(by_end[end]), -end))
    category, number = catalog.get(end, exemplars=0), len(by_end[end])
    all_of_it = number == category.count - taken.get(end, 0)
    most_of_it = number > category.count / 2 and not category.named
    if category.kind == "discovered" and (all_of_it or most_of_it) and taken.get(end, 0) < category.count:
        taken[end] = category.count
        return Step("name", name, end)
    taken[end] = min(taken.get(end, 0) + number, category.count)
    return Step("split", name, end, tuple(by_end[end]))


def _carry_out(step: Step, catalog: Catalog, actor: str, note: Mapping[str, Any] | None) -> Event:
    if step.kind == "name" and step.category is not None:
        return catalog.rename(step.category, step.name, actor, note=note)
    if step.kind == "split" and step.category is not None:
        return catalog.split(step.category, step.images, step.name, actor, note)
    if step.kind == "confirm":
        return catalog.confirm(step.images, actor, note)
    target = catalog.find(step.name) if step.category is None else step.category
    if target is None:
        raise CatalogError(f"no category is called {step.name!r} any more; make the plan again.")
    return catalog.move(step.images, target, actor, note)


def _wanted(catalog: Catalog, labels: Iterable[Label]) -> tuple[dict[int, Label], list[Trouble]]:
    """Return what is said of each image, and the rows that speak of none or contradict an earlier one."""
    labels = list(labels)
    answered = catalog.journal.answered
    by_source = _indices_of(catalog, {label.source for label in labels if label.index is None and label.source})
    wanted: dict[int, Label] = {}
    troubles = []
    for label in labels:
        if label.index is not None:
            images, what = ([label.index] if 0 <= label.index < answered else []), f"image {label.index}"
        else:
            images, what = by_source.get(label.source or "", []), f"image {label.source!r}"
        if not images:
            troubles.append(Trouble(label.line, f"{what} is not in this stream"))
        for image in images:
            earlier = wanted.setdefault(image, label)
            if earlier.name != label.name:
                troubles.append(
                    Trouble(label.line, f"line {earlier.line} calls {what} {earlier.name!r}, not {label.name!r}")
                )
                break
    return wanted, troubles


def _indices_of(catalog: Catalog, sources: set[str]) -> dict[str, list[int]]:
    """Return the images with these sources: one look through all answers, however many sources are asked for."""
    found: dict[str, list[int]] = {}
    last = catalog.journal.answered if sources else 0
    for start in range(0, last, ROWS):
        rows = catalog.journal.query(
            "SELECT idx, source FROM decisions WHERE idx >= ? AND idx < ?", (start, start + ROWS)
        )
        for row in rows:
            if row["source"] in sources:
                found.setdefault(row["source"], []).append(row["idx"])
    return found


def _label(line: int, row: object) -> Label | Trouble | None:
    """Return what a row says; nothing if it has an image and no name."""
    if not isinstance(row, Mapping):
        return Trouble(line, "this is no row with columns")
    name, index, source = row.get("name"), row.get("index"), row.get("source")
    if name is None or not str(name).strip():
        return None if "name" in row else Trouble(line, "there is no column 'name'")
    try:
        cleaned = clean_name(str(name))
    except CatalogError as error:
        return Trouble(line, str(error))
    if index is not None and str(index).strip():
        if not str(index).strip().isdecimal():
            return Trouble(line, f"index {index!r} is no whole number")
        return Label(line, int(index), None, cleaned)
    if not isinstance(source, str) or not source:
        return Trouble(line, "there is neither an index nor a source")
    return Label(line, None, source, cleaned)


def _csv_rows(file: Path) -> Iterator[tuple[int, object]]:
    with file.open(encoding="utf-8-sig", newline="") as text:
        reader = csv.DictReader(text)
        for row in reader:
            yield reader.line_num, row


def _json_lines(file: Path) -> Iterator[tuple[int, object]]:
    with file.open(encoding="utf-8-sig") as text:
        for line, content in enumerate(text, 1):
            if content.strip():
                try:
                    yield line, json.loads(content)
                except json.JSONDecodeError as error:
                    yield line, f"no JSON: {error}"


def _tasks(file: Path) -> Iterator[tuple[int, object]]:
    """Yield tasks of Label Studio as rows; their number stands for the line."""
    tasks = json.loads(file.read_text(encoding="utf-8-sig"))
    if not isinstance(tasks, list):
        raise CatalogError(f"{file}: a file of Label Studio is a list of tasks; export it as JSON.")
    for number, task in enumerate(tasks, 1):
        if not isinstance(task, dict) or not isinstance(task.get("data"), dict):
            yield number, None
            continue
        data = task["data"]
        yield (
            number,
            {"index": data.get("index"), "source": data.get("source", data.get("image")), "name": _chosen(task)},
        )


def _chosen(task: Mapping[str, Any]) -> str:
    """Return the choice of the last annotation that was not cancelled; empty if there is none."""
    annotations = task.get("annotations") or []
    for annotation in reversed(annotations if isinstance(annotations, list) else []):
        if not isinstance(annotation, dict) or annotation.get("was_cancelled"):
            continue
        for result in annotation.get("result") or []:
            choices = result.get("value", {}).get("choices") if isinstance(result, dict) else None
            if choices:
                return str(choices[0])
    return ""


def _images(images: Sequence[int]) -> str:
    return f"image {images[0]}" if len(images) == 1 else f"{len(images)} images"


def _homeless(image: int, name: str) -> str:
    return f"image {image} was rejected, and no category is called {name!r} yet; move it to one first"
