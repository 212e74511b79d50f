"""Make docs/images/page.png: the page over a real stream of drawn characters.

Fits the default model on 34 characters, streams others over HTTP, names some of the discovered categories as a person
would, and takes the picture. Needs the extras ``serve`` and ``dev``, Chromium and chromedriver; takes some minutes.

    python benchmarks/page_screenshot.py [--out docs/images/page.png] [--dark]
"""

from __future__ import annotations

import argparse
import io
import json
import random
import shutil
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.support.ui import WebDriverWait

from talon_ocd import Talon
from talon_ocd.images import ImageItem
from talon_ocd.images.glyphs import glyphs
from talon_ocd.service.server import Server, listen, url_of
from talon_ocd.service.service import Service
from talon_ocd.service.settings import ServiceSettings

KNOWN, ALL, PER_CLASS = 34, 56, 28
"""Characters that the model learns, all of them, and pictures of each: half to learn from, half to come."""
SHOWN_KNOWN = 6
"""Known characters that come in the stream."""
FINER = 2.0
"""Nats: rather too many categories than mixed ones."""
NAMED = 8
"""Discovered categories that get a name."""
GREYS, COLOURS = 28, 60
"""Shades of grey for noisy pictures, which would be large otherwise, and colours for the page itself."""
WIDTH, HEIGHT = 1280, 840
READY = """
const cards = [...document.querySelectorAll("ul.cards img.thumb")];
const seen = cards.filter((one) => one.getBoundingClientRect().top < innerHeight);
return seen.length > 20 && seen.every((one) => one.complete && one.naturalWidth);
"""
"""Pictures further down are not loaded before somebody scrolls there."""


def main() -> None:
    """Make the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images/page.png"))
    parser.add_argument("--dark", action="store_true")
    arguments = parser.parse_args()
    learned, coming = characters()
    talon = Talon()
    talon.fit(learned)
    with tempfile.TemporaryDirectory() as folder, served(talon, Path(folder) / "stream") as url:
        name_some(url, feed(url, coming))
        picture = photographed(url, arguments.dark)
    fewer_colours(picture).save(arguments.out, optimize=True)


def characters() -> tuple[list[ImageItem], list[ImageItem]]:
    """Return labelled pictures, and those that come: of some known characters and of all others, in random order."""
    drawn = glyphs(ALL, PER_CLASS, seed=5, size=96)
    items = [replace(item, label=chr(int(str(item.label)[2:], 16))) for item in drawn]
    halves = [(place // PER_CLASS, place % PER_CLASS < PER_CLASS // 2, item) for place, item in enumerate(items)]
    learned = [item for kind, first, item in halves if first and kind < KNOWN]
    coming = [item for kind, first, item in halves if not first and (kind < SHOWN_KNOWN or kind >= KNOWN)]
    random.Random(5).shuffle(coming)
    return learned, coming


@contextmanager
def served(talon: Talon, folder: Path) -> Iterator[str]:
    """Serve a stream in a thread."""
    settings = ServiceSettings(port=0, rate=0.0)
    with listen(settings) as listener, Service(talon, folder, settings, finer=FINER) as service:
        server = Server(service)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield url_of(listener, settings.host)
        finally:
            server.should_exit = True
            thread.join()


def feed(url: str, items: list[ImageItem]) -> dict[int, Counter[str]]:
    """Send images; returns what each discovered category really holds."""
    held: dict[int, Counter[str]] = defaultdict(Counter)
    for item in items:
        data = io.BytesIO()
        item.load().save(data, "PNG")
        answer = call(url, "POST", f"/v1/decide?source={item.key}", data.getvalue(), "image/png")
        if answer["verdict"] != "known":
            held[answer["resolved"]][str(item.label)] += 1
    return held


def name_some(url: str, held: dict[int, Counter[str]]) -> None:
    """Give the largest categories the name of what most of their images are; the first with a name keeps it."""
    named: set[str] = set()
    for category, labels in sorted(held.items(), key=lambda pair: -pair[1].total()):
        label = labels.most_common(1)[0][0]
        if label.isalpha() and label not in named and len(named) < NAMED:
            named.add(label)
            body = json.dumps({"name": f"small {label}" if label.islower() else f"capital {label}"}).encode()
            call(url, "PATCH", f"/v1/categories/{category}", body, "application/json")


def call(url: str, method: str, path: str, body: bytes, kind: str) -> dict[str, Any]:
    """Ask the service."""
    with urlopen(Request(f"{url}{path}", body, {"Content-Type": kind}, method=method)) as answer:
        return dict(json.load(answer))


def photographed(url: str, dark: bool) -> Image.Image:
    """Return the page as Chromium shows it."""
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    # A mouse, as at a desk: boxes to select show only under the pointer.
    options.add_argument("--blink-settings=primaryHoverType=2,availableHoverTypes=2")
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    driver = webdriver.Chrome(options, Driver(shutil.which("chromedriver")))
    try:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        driver.get(url)
        WebDriverWait(driver, 60).until(lambda chrome: chrome.execute_script(READY))
        return Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    finally:
        driver.quit()


def fewer_colours(picture: Image.Image) -> Image.Image:
    """Return the picture with a palette: even greys, and the colours that are most frequent."""
    counted = Counter(zip(*(band.tobytes() for band in picture.split()), strict=True))
    frequent = [colour for colour, _ in counted.most_common()]
    bright = [colour for colour in frequent if max(colour) - min(colour) > 12]
    shades = [(round(255 * place / (GREYS - 1)),) * 3 for place in range(GREYS)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for colour in (*frequent[:8], *bright[:COLOURS], *shades) for value in colour])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


if __name__ == "__main__":
    main()
