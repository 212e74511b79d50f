"""Runs ``talon`` inside the test process, and bad pictures for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from typer.testing import CliRunner

from talon_ocd.cli.main import app
from tests.images.pictures import encoded, photo


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def talon(*words: object, stdin: str | bytes | None = None) -> Ended:
    """Run a command; a traceback instead of a message fails the test."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, result.stdout, result.stderr)


def refused(*words: object) -> str:
    """Run a command that must refuse with one line; returns the line without the program's name."""
    ended = talon(*words)
    lines = [line for line in ended.err.splitlines() if line.startswith("talon: ")]
    assert ended.code == 2 and len(lines) == 1 and ended.err.rstrip().endswith(lines[0]), ended
    return lines[0].removeprefix("talon: ")


def bad_folder(root: Path) -> tuple[set[str], set[str]]:
    """Fill a folder with everything that streams meet; returns the names of good and of bad files."""
    root.mkdir()
    whole = encoded(photo(), "JPEG")
    turned = Image.Exif()
    turned[0x0112] = 6
    bomb = bytearray(encoded(Image.new("1", (8, 8))))
    bomb[16:24] = (30_000).to_bytes(4, "big") * 2
    frames = [photo(seed=number) for number in range(3)]
    good = {
        "plain.jpg": whole,
        "cmyk.jpg": encoded(photo().convert("CMYK"), "JPEG"),
        "palette.png": encoded(photo().convert("P")),
        "deep.png": encoded(Image.new("I;16", (9, 9), 40_000)),
        "animated.gif": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "turned.jpg": encoded(photo(), "JPEG", exif=turned),
        "dot.png": encoded(photo(1, 1)),
        "naïve 写真 [1].png": encoded(photo(seed=5)),
    }
    bad = {
        "corrupt.jpg": whole[:200] + b"\0" * 100 + whole[300:350],
        "truncated.jpg": whole[: len(whole) // 2],
        "zero.png": b"",
        "text.png": b"not a picture",
        "bomb.png": bytes(bomb),
    }
    for name, data in {**good, **bad}.items():
        (root / name).write_bytes(data)
    (root / "notes.txt").write_text("no image by its name")
    (root / "loop").symlink_to(root)
    (root / "self.png").symlink_to("self.png")
    (root / "nowhere.png").symlink_to("nothing.png")
    unreadable = root / "locked.png"
    unreadable.write_bytes(whole)
    unreadable.chmod(0)
    (good if os.access(unreadable, os.R_OK) else bad)["locked.png"] = whole  # root may read everything
    return set(good), {*bad, "loop", "self.png", "nowhere.png"}
