from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from talon_ocd import Talon
from tests.page import browsing
from tests.page.browsing import Page
from tests.service.running import Running, digits, running

IMAGES = 60


@pytest.fixture(scope="session")
def chromium() -> Iterator[webdriver.Chrome]:
    """One browser for all tests of the page."""
    if lack := browsing.missing():
        pytest.skip(lack)
    with browsing.browser() as driver:
        yield driver


@pytest.fixture
def served(fitted: Talon, tmp_path: Path) -> Iterator[Running]:
    """A service of its own for each test, which has answered some images."""
    with running(fitted, tmp_path / "stream") as service:
        assert service.client().batch(digits(IMAGES)).status == 200
        found = service.client().get("/v1/categories?state=discovered").json["items"]
        assert sum(one["count"] > 1 for one in found) >= 2, "the tests need two discovered categories with some images"
        yield service


@pytest.fixture
def page(chromium: webdriver.Chrome, served: Running) -> Iterator[Page]:
    """The page, opened; afterwards the console must have nothing to complain of."""
    page = Page(chromium, served)
    page.forget()
    page.open()
    page.script("localStorage.clear()")
    yield page
    errors = page.console_errors()
    chromium.get("about:blank")
    assert errors == []
