"""Catalog: what people say about categories: names, merges, splits, and undo of all of it."""

from talon_ocd.catalog.categories import Catalog
from talon_ocd.catalog.names import NameTakenError
from talon_ocd.catalog.summaries import summary
from talon_ocd.catalog.views import SUPPORT, Category, Member, Page, Suggestion
from talon_ocd.catalog.whatif import Point, WhatIf, grid, what_if

__all__ = [
    "SUPPORT",
    "Catalog",
    "Category",
    "Member",
    "NameTakenError",
    "Page",
    "Point",
    "Suggestion",
    "WhatIf",
    "grid",
    "summary",
    "what_if",
]
