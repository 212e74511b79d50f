"""Options of ``talon discover`` and ``talon serve`` that say how much a stream may remember."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from talon_ocd.durable import settings_at
from talon_ocd.online import Bounds

MostCategoriesOption = Annotated[
    int | None,
    typer.Option("--most-categories", help="Discovered categories in memory; beyond it the weakest are retired."),
]
TentativeBelowOption = Annotated[
    int | None, typer.Option("--tentative-below", help="A category with fewer images is tentative.")
]
RetireAfterOption = Annotated[
    int | None,
    typer.Option("--retire-after", help="Answers after which a tentative category nothing joined goes; 0: never."),
]


def bounds_from(
    folder: Path | None, most_categories: int | None, tentative_below: int | None, retire_after: int | None
) -> Bounds | None:
    """Return the bounds that the options ask for, ``None`` if none was given.

    What is left out has the value that the folder's stream was begun with, or the usual one.
    """
    options = {
        "most_categories": most_categories,
        "tentative_below": tentative_below,
        "retire_after": retire_after,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        return None
    begun: dict[str, Any] = {} if folder is None else settings_at(folder).get("bounds", {})
    return Bounds(**{**begun, **given})
