"""How long people wait for the catalog of a long stream.

    python benchmarks/catalog.py                      # 10,000 categories, a million answers
    python benchmarks/catalog.py --answers 100000     # a shorter one

It writes a journal with plain SQL into a temporary folder (about 600 MB), folds it, and times each operation some
times. Times are milliseconds on this machine with whatever else runs on it; the slowest of all calls is shown beside
the median, because that is what somebody waits for now and then.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np

from talon_ocd.catalog import Catalog
from talon_ocd.durable.journal import Journal

KNOWN = 100
EVENTS = 2000
"""Names and merges that people have made before."""
CHUNK = 20_000


def build(folder: Path, answers: int, categories: int, features: int, size: int) -> None:
    """Write the journal of a stream with some large and many small categories; only the newest features are left."""
    rng = np.random.default_rng(0)
    weights = 1.0 / np.arange(1, categories + 1) ** 0.7
    answered = rng.permutation(categories)[rng.choice(categories, answers, p=weights / weights.sum())]
    answered[:categories] = np.arange(categories)
    centres = rng.standard_normal((categories, size)).astype(np.float32)
    journal = Journal(folder, write=True, purpose="a benchmark")
    journal.set_meta(names=[f"class {at}" for at in range(KNOWN)], rule={"unit": "cosine", "threshold": 0.5})
    journal.set_meta(tidied={"features": answers - features, "thumbnails": answers - features})
    with journal.transaction() as connection:
        for start in range(0, answers, CHUNK):
            part = answered[start : start + CHUNK]
            rows = _decisions(start, part)
            connection.executemany("INSERT INTO decisions VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)", rows)
            if start + CHUNK > answers - features:
                noise = rng.standard_normal((len(part), size), dtype=np.float32)
                vectors = centres[part] + 1.2 * noise
                vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
                blobs = [(start + at, row.tobytes()) for at, row in enumerate(vectors.astype(np.float16))]
                connection.executemany("INSERT INTO features VALUES (?, ?)", blobs)
        connection.execute(
            "INSERT INTO categories SELECT category, category < ?, count(*), count(*), min(idx), min(at), max(idx), "
            "max(at) FROM decisions GROUP BY category",
            (KNOWN,),
        )
        connection.execute(
            "INSERT INTO events (at, answered, kind, category, data, actor) "
            "SELECT first_at, first_idx, 'created', id, json_object('image', first_idx), 'stream' FROM categories "
            "WHERE id >= ? ORDER BY first_idx",
            (KNOWN,),
        )
    journal.close()


def _decisions(start: int, part: np.ndarray) -> Iterator[tuple[object, ...]]:
    for at, category in enumerate(part.tolist(), start):
        verdict = "known" if category < KNOWN else "discovered"
        similarity = 0.5 + (at * 7919 % 1000) / 2000
        yield (
            at, 1.7e9 + at, f"photos/{at:07d}.jpg", f"key-{at}", category, category, verdict, similarity,
            (category + 1) % 100, 0.3, at, 0, None,
        )  # fmt: skip


def timed(call: Callable[[int], object], times: int) -> list[float]:
    """Return the milliseconds of each call; it is given its number."""
    found = []
    for number in range(times):
        started = time.perf_counter()
        call(number)
        found.append(1000 * (time.perf_counter() - started))
    return found


def measure(journal: Journal, catalog: Catalog, categories: int, answers: int) -> Iterator[tuple[str, list[float]]]:
    """Yield what is done, and the milliseconds of every time that it is done."""
    rng = np.random.default_rng(1)
    some = [int(category) for category in rng.permutation(np.arange(KNOWN, categories))]
    large = catalog.list(sort="count", limit=1).items[0].id
    images = [int(image) for image in rng.permutation(answers)]
    yield "name a category", timed(lambda at: catalog.rename(some[at], f"species {at}"), 50)
    yield "merge two", timed(lambda at: catalog.merge([some[1000 + at]], into=some[2000 + at]), 50)
    yield "hide", timed(lambda at: catalog.hide(some[3000 + at]), 50)
    yield "undo the last event", timed(lambda at: catalog.undo(), 100)
    yield "move one image", timed(lambda at: catalog.move([images[at]], some[4000 + at]), 50)
    yield "move 1,000 images", timed(lambda at: catalog.move(images[1000 * at + 100 :][:1000], some[5000 + at]), 5)
    yield "undo the move of 1,000 images", timed(lambda at: catalog.undo(), 5)
    yield "split 10 images off", timed(lambda at: _split(catalog, large), 10)
    yield "resolve an id", timed(lambda at: catalog.resolve(some[at]), 200)
    yield "get a category", timed(lambda at: catalog.get(some[at]), 200)
    yield "list 50, last seen first", timed(lambda at: catalog.list(), 20)
    yield "list 50, largest first", timed(lambda at: catalog.list(sort="count"), 20)
    yield "list 50, by name", timed(lambda at: catalog.list(sort="name"), 20)
    tenth, down = _tenth(catalog), _down(catalog, large)
    yield "list 50, tenth page", timed(lambda at: catalog.list(after=tenth), 20)
    yield "search a name", timed(lambda at: catalog.list("all", query="species 7"), 20)
    yield "50 images of the largest", timed(lambda at: catalog.members(large), 50)
    yield "50 images of it, 5,000 further down", timed(lambda at: catalog.members(large, after=down), 50)
    yield "history, 50 events", timed(lambda at: catalog.history(), 50)
    yield "suggestions, the first time", timed(lambda at: catalog.suggestions(20), 1)
    yield "suggestions, again", timed(lambda at: catalog.suggestions(20), 10)
    yield "suggestions after a merge", timed(lambda at: _merge_and_suggest(catalog, some[6000 + 2 * at :][:2]), 10)
    yield "fold the ledger when opening", timed(lambda at: Catalog(journal), 3)


def _split(catalog: Catalog, category: int) -> None:
    page = catalog.members(category, limit=10)
    catalog.split(category, [image.index for image in page.items])


def _tenth(catalog: Catalog) -> str | None:
    page = None
    for _ in range(9):
        page = catalog.list(after=page).next
    return page


def _down(catalog: Catalog, category: int) -> str | None:
    page = None
    for _ in range(5):
        page = catalog.members(category, limit=1000, after=page).next
    return page


def _merge_and_suggest(catalog: Catalog, pair: list[int]) -> None:
    catalog.merge(pair)
    catalog.suggestions(20)


def main() -> None:
    """Build, measure, and print a table in Markdown."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--answers", type=int, default=1_000_000)
    words.add_argument("--categories", type=int, default=10_000)
    words.add_argument("--features", type=int, default=200_000, help="newest features that are still there")
    words.add_argument("--size", type=int, default=1280, help="numbers of a feature")
    asked = words.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = time.perf_counter()
        build(folder, asked.answers, asked.categories, asked.features, asked.size)
        print(f"journal written in {time.perf_counter() - started:.0f} s, {_megabytes(folder)} MB", file=sys.stderr)  # noqa: T201
        journal = Journal(folder, write=True, purpose="a benchmark")
        catalog = Catalog(journal)
        for number in range(EVENTS):
            catalog.rename(KNOWN + number, f"bird {number}")
        print(f"| {asked.categories:,} categories, {asked.answers:,} answers | median ms | slowest ms |\n|---|---|---|")  # noqa: T201
        for what, times in measure(journal, catalog, asked.categories, asked.answers):
            print(f"| {what} | {median(times):.3g} | {max(times):.1f} |", flush=True)  # noqa: T201
        journal.close()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg()) if hasattr(os, "getloadavg") else "unknown"
    print(f"load {load} on {os.cpu_count()} cores", file=sys.stderr)  # noqa: T201


def _megabytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir()) // 2**20


if __name__ == "__main__":
    main()
