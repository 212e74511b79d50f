"""A person at the page: a real Chromium, driven with clicks and keys. Waits are for something, never for a time."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.service.running import Client, Running

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
)  # fmt: skip
WAIT = 20.0
"""Seconds after which a test gives up waiting; nothing is measured by it."""
T = TypeVar("T")


def missing() -> str:
    """Return what is needed for a browser and is not here; empty if all is."""
    if not any(map(shutil.which, BROWSERS)):
        return "no Chromium found; install it (Debian: apt-get install chromium chromium-driver)"
    if not shutil.which("chromedriver"):
        return "Chromium is here, but not chromedriver (Debian: apt-get install chromium-driver)"
    return ""


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """Start a Chromium that logs its console and its requests."""
    options = webdriver.ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, BROWSERS)))
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Driver(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The page of one service in a browser."""

    def __init__(self, driver: webdriver.Chrome, running: Running) -> None:
        self.driver, self.running = driver, running
        self.base = f"http://127.0.0.1:{running.port}"
        self.allowed: list[str] = []
        """Patterns of console messages that a test provokes."""
        self.look(1200, 860)

    @property
    def api(self) -> Client:
        """The service, as a program sees it."""
        return self.running.client(self.running.service.settings.token)

    # Looking

    def open(self, path: str = "", ready: str = "li.card[data-id]") -> None:
        """Load the page anew and wait until something is there."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.base}/{path}")
        self.see(ready)

    def go(self, path: str, ready: str) -> None:
        """Follow a link inside the page."""
        self.script("location.hash = arguments[0]", path)
        self.see(ready)

    def look(self, width: int, height: int, dark: bool = False) -> None:
        """Set the size of the window, and whether the system is dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def until(self, condition: Callable[[], T], what: str = "") -> T:
        """Wait until something is true, and return it."""
        ignored = [NoSuchElementException, StaleElementReferenceException]
        message = what or "what the test waits for did not come"
        return WebDriverWait(self.driver, WAIT, 0.03, ignored).until(lambda _: condition(), message)

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def see(self, css: str, text: str | None = None) -> WebElement:
        """Wait for a visible element, with some text if one is given."""

        def found() -> WebElement | None:
            shown = (element for element in self.all(css) if element.is_displayed())
            return next((element for element in shown if text is None or text in element.text), None)

        element = self.until(found, f"no {css} with {text!r} to be seen")
        assert element is not None
        return element

    def gone(self, css: str) -> None:
        """Wait until nothing of the kind is visible."""
        self.until(lambda: not any(element.is_displayed() for element in self.all(css)), f"{css} is still there")

    def names(self) -> list[str]:
        """Return the names of the cards, in their order."""
        return list(
            self.script("return [...document.querySelectorAll('ul.cards li.card .name')].map(e => e.textContent)")
        )

    def card(self, name: str) -> WebElement:
        """Wait for the card with this name."""

        def found() -> WebElement | None:
            cards = self.all("ul.cards li.card")
            names = self.names()
            return cards[names.index(name)] if name in names and len(cards) == len(names) else None

        element = self.until(found, f"no card {name!r}")
        assert element is not None
        return element

    def script(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    # Doing

    def click(self, css: str, text: str | None = None) -> None:
        """Click on an element as a person does: at its place, so something in front of it gets the click."""
        self.until(lambda: _clicked(self.see(css, text)), f"{css} can't be clicked")

    def keys(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def chord(self, *keys: str) -> None:
        """Press keys together."""
        chain = ActionChains(self.driver)
        for key in keys:
            chain.key_down(key)
        for key in reversed(keys):
            chain.key_up(key)
        chain.perform()

    def hover(self, element: WebElement, x: int = 0, y: int = 0) -> None:
        ActionChains(self.driver).move_to_element_with_offset(element, x, y).perform()

    def pick(self, name: str) -> None:
        """Select a card with its box."""
        card = self.card(name)
        self.hover(card)
        card.find_element(By.CSS_SELECTOR, ".pick input").click()

    def choose(self, name: str) -> None:
        """Click on a category in the dialog that asks for one."""
        path = f"//dialog//button[contains(@class, 'choice')][b[text()='{name}']]"
        self.until(lambda: _clicked(self.driver.find_element(By.XPATH, path)), f"{name!r} can't be chosen")

    def rename(self, before: str, after: str) -> None:
        """Click on the name of a card and type another one."""
        self.card(before).find_element(By.CSS_SELECTOR, "button.name").click()
        self.see(".name-field")
        self.keys(after, Keys.ENTER)

    def undo_by_toast(self) -> None:
        self.click("#toasts .toast:last-child .link", "Undo")

    # The service behind

    def category(self, name: str) -> dict[str, Any]:
        """Return the category that has this name in the service."""
        found = self.api.get("/v1/categories?state=all&limit=200").json["items"]
        return next(one for one in found if one["name"] == name)

    # What must not be

    def forget(self) -> None:
        """Forget requests and complaints of the test before: not every one looks at all that it provoked."""
        for kind in ("performance", "browser"):
            self._log(kind)

    def console_errors(self) -> list[str]:
        """Return what the console complains of, without what the test provokes."""
        lines = [entry["message"] for entry in self._log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        return [line for line in lines if not any(re.search(pattern, line) for pattern in self.allowed)]

    def hosts(self) -> set[str]:
        """Return all hosts that the browser has asked since this was last asked for."""
        asked = set()
        for entry in self._log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = urlsplit(message["params"]["request"]["url"])
                if url.scheme in ("http", "https", "ws", "wss"):
                    asked.add(url.netloc)
        return asked

    def _log(self, kind: str) -> list[dict[str, Any]]:
        return list(self.driver.get_log(kind))  # type: ignore[no-untyped-call]


def _clicked(element: WebElement) -> bool:
    element.click()
    return True
