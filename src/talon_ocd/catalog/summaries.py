"""Events in words (layer: catalog)."""

from __future__ import annotations

from collections.abc import Callable

from talon_ocd.durable.journal import Event

SHOWN = 3
"""Categories or images that a sentence lists before it counts the rest."""


def summary(event: Event, name: Callable[[int], str]) -> str:
    """Return what happened, in one sentence; ``name`` tells what a category is called now."""
    sentences: dict[str, Callable[[], str]] = {
        "created": lambda: f"{_called(event.category, name)} was discovered with image {event.data.get('image')}",
        "retired": lambda: f"{_called(event.category, name)} was retired{_because(event)}",
        "revived": lambda: f"{_called(event.category, name)} is back, as it was in the snapshot gone back to",
        "rolled_back": lambda: f"rolled back to {event.data['snapshot'].removesuffix('.safetensors')}",
        "named": lambda: f"{event.data['before']!r} was named {event.data['name']!r}",
        "merged": lambda: (
            f"{_all(event.data['categories'], _before(event, name))} merged into {_called(event.data['into'], name)}"
        ),
        "split": lambda: (
            f"{_images(event)} split from {_called(event.category, name)} as {_called(event.data['into'], name)}"
        ),
        "hidden": lambda: f"{_called(event.category, name)} was {'hidden' if event.data['hidden'] else 'shown again'}",
        "moved": lambda: f"{_images(event)} moved to {_called(event.category, name)}",
        "confirmed": lambda: f"{_images(event)} confirmed",
        "rejected": lambda: f"{_images(event)} rejected",
        "suggested": lambda: f"{_all(event.data['pair'], name)} may be the same",
        "held": lambda: f"images were grouped anew, but for those of {_all(event.data['categories'], name)}",
        "joined": lambda: f"{event.data['answers']} answers of {event.data['site']!r} were taken in",
        "refused": lambda: f"{_all(event.data['pair'], name)} are not the same",
        "undone": lambda: f"event {event.undoes} ({event.data.get('kind', 'a fact')}) was undone",
    }
    sentence = sentences.get(event.kind)
    return f"{event.kind.replace('_', ' ')}{_because(event)}" if sentence is None else sentence()


def _called(category: int | None, name: Callable[[int], str]) -> str:
    return "nothing" if category is None else f"{name(category)!r} ({category})"


def _before(event: Event, name: Callable[[int], str]) -> Callable[[int], str]:
    """Return what tells the names that categories had before a merge; early events have not kept them."""
    names = dict(zip(event.data["categories"], event.data.get("before", []), strict=False))
    return lambda category: names[category] if category in names else name(category)


def _all(categories: list[int], name: Callable[[int], str]) -> str:
    shown = " and ".join(_called(category, name) for category in categories[:SHOWN])
    return shown if len(categories) <= SHOWN else f"{shown} and {len(categories) - SHOWN} more"


def _images(event: Event) -> str:
    images = [move[0] for move in event.data["moves"]]
    if len(images) <= SHOWN:
        return f"image{'s' if len(images) > 1 else ''} {', '.join(map(str, images))}"
    return f"{len(images)} images"


def _because(event: Event) -> str:
    reason = event.data.get("reason")
    return f": {reason}" if reason else ""
