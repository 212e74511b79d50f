from collections.abc import Iterator
from pathlib import Path

import pytest

from talon_ocd.catalog import Catalog
from talon_ocd.durable.journal import Journal
from tests.catalog.journals import open_journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = open_journal(tmp_path)
    yield journal
    journal.close()


@pytest.fixture
def catalog(journal: Journal) -> Catalog:
    return Catalog(journal)
