"""How the page feels with ten thousand categories: a real service, a real stream, a real Chromium.

    python benchmarks/page_many.py                       # 10,000 categories, 30,000 answers
    python benchmarks/page_many.py --categories 1000

Run it in a checkout with the extras ``serve`` and ``dev``: it walks the page with the tests' own hands. Images are made
up (every category a colour), so that each is answered as it should be; journal, catalog, service and page are real.
Times are seconds until a person sees it, with whatever else runs on the machine.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import tiny
from tests.page.browsing import Keys, Page, browser
from tests.service.running import running

from talon_ocd import Talon
from talon_ocd.cli import choices
from talon_ocd.images import ImageItem

BATCH = 64
TIMES = 3
"""Images of every category."""
SCROLLED = 300
ONLY_ITSELF = 0.9999
"""A cosine that nothing but the same image reaches."""
PICTURES = """
const seen = [...document.querySelectorAll("ul.cards img.thumb")].filter((one) => {
  const { top, bottom } = one.getBoundingClientRect();
  return bottom > 0 && top < innerHeight;
});
return seen.length > 4 && seen.every((one) => one.complete && one.naturalWidth);
"""
"""Are there pictures in sight, and are all of them loaded?"""


def main() -> None:
    """Build a stream, walk its page, print how long everything took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--categories", type=int, default=10_000)
    parser.add_argument("--output", "-o", type=Path)
    chosen = parser.parse_args()
    talon = tiny.tiny_talon()
    talon.fit(tiny.labelled())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "stream"
        fill(talon, folder, chosen.categories)
        with running(talon, folder) as served, browser() as chromium:
            page = Page(chromium, served)
            facts = {"totals": page.api.get("/v1/status").json["totals"]}
            facts["seconds"] = walk(page, f"discovered-{chosen.categories - 1}")
    facts |= {"command": shlex.join(["python", *sys.argv]), "commit": choices.commit()}
    sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    if chosen.output:
        chosen.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def fill(talon: Talon, folder: Path, categories: int) -> None:
    """Answer every made-up image some times; the first time founds its category."""
    random = np.random.default_rng(0)
    hidden = torch.from_numpy(random.normal(size=(categories, *talon.backbone.hidden_shape)).astype(np.float32))
    colours = torch.from_numpy(random.integers(0, 256, (categories, 3, 1, 1), dtype=np.uint8))
    with talon.stream(folder, threshold=ONLY_ITSELF, adapt="none") as stream:
        for turn in range(TIMES):
            for start in range(0, categories, BATCH):
                numbers = range(start, min(start + BATCH, categories))
                items = [ImageItem(f"{at}-{turn}", None, f"made-up/{at}-{turn}", b"") for at in numbers]
                canvases = [colours[at].expand(3, 96, 96) for at in numbers]
                stream.observe_loaded(items, canvases, hidden=hidden[list(numbers)])


def walk(page: Page, wanted: str) -> dict[str, float]:
    """Do what people do, and return how long each took; ``wanted`` is the name of a category."""
    took: dict[str, float] = {}

    @contextmanager
    def timed(what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        took[what] = round(time.perf_counter() - began, 2)

    def pictures() -> None:
        page.until(lambda: bool(page.script(PICTURES)), "pictures in sight")

    with timed("open the page, all pictures in sight"):
        page.open()
        pictures()
    with timed(f"scroll past {SCROLLED} cards, all pictures in sight"):
        seen: set[str] = set()

        def further() -> bool:
            page.script("scrollBy(0, innerHeight)")
            seen.update(page.names())
            return len(seen) >= SCROLLED

        page.until(further, "more cards")
        pictures()
    took["cards that are elements afterwards"] = len(page.names())
    with timed("search a name"):
        page.keys("/")
        page.keys(wanted)
        page.card(wanted)
        page.until(lambda: len(page.names()) == 1, "only what was searched for")
    with timed("name it"):
        page.rename(wanted, "lapwing")
        page.see(".toast", "lapwing")
    with timed("undo with a key"):
        page.chord(Keys.CONTROL, "z")
        page.card(wanted)
    with timed("order by count, from the top"):
        page.open("#/?sort=count")
        pictures()
    with timed("the queue of pairs that look like one"):
        page.go("#/same", ".pair")
    with timed("the map"):
        page.go("#/map", "canvas")
    return took


if __name__ == "__main__":
    main()
