"""The frame: phone, colours, token, lost service, foreign hosts, names for screen readers."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver import Keys

import talon_ocd.service
from talon_ocd import Talon
from tests.page.browsing import Page
from tests.service.running import TOKEN, digits, running

FILES = Path(talon_ocd.service.__file__).parent / "page"
VIEWS = {"#/categories": "li.card[data-id]", "#/category/0": "li.tile", "#/same": "#view-same .side, #view-same .empty",
         "#/map": ".legend .chip", "#/threshold": ".whatif .panel", "#/try": ".drop-target"}  # fmt: skip

NAMELESS = """
const name = (element) => element.getAttribute("aria-label") || element.title || element.textContent.trim()
  || [...(element.labels ?? [])].map((label) => label.textContent.trim()).join("");
return [...document.querySelectorAll("button, a, input, select, canvas, dialog")]
  .filter((element) => element.checkVisibility() && !name(element)).map((element) => element.outerHTML);
"""
CONTRASTS = """
const probe = document.body.appendChild(document.createElement("i"));
const channels = (name) => {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map((value) => value / 255);
};
const light = (name) => channels(name)
  .map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
  .reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0);
const found = arguments[0].map(([text, ground]) => {
  const [a, b] = [light(text), light(ground)].sort((x, y) => y - x);
  return [text, ground, (a + 0.05) / (b + 0.05)];
});
probe.remove();
return found;
"""
PAIRS = [("ink", "page"), ("ink", "paper"), ("muted", "page"), ("muted", "paper"), ("muted", "sunken"),
         ("accent", "page"), ("accent", "paper"), ("on-accent", "accent"), ("danger", "danger-tint"),
         ("danger", "paper"), ("discovered-ink", "tint"), ("page", "ink")]  # fmt: skip


def test_a_phone_is_wide_enough(page: Page) -> None:
    page.look(360, 740)
    for path, ready in VIEWS.items():
        page.go(path, ready)
        assert page.script("return document.documentElement.scrollWidth") <= 360, path
    page.go("#/categories", "li.card[data-id]")
    page.script("document.querySelectorAll('.pick input').forEach((box, place) => place < 3 && box.click())")
    page.click("#selection .primary")
    page.see("dialog .result")
    assert page.script("return document.querySelector('dialog').scrollWidth") <= 360
    bottom = page.script("return document.querySelector('#views').getBoundingClientRect().bottom")
    assert bottom == 740, "the navigation is at the thumb"


@pytest.mark.parametrize("dark", [False, True])
def test_colours_follow_the_system_and_can_be_read(page: Page, dark: bool) -> None:
    page.look(1200, 860, dark)
    ground = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    assert (page.script(ground) < 60) is dark
    weak = [pair for pair in page.script(CONTRASTS, PAIRS) if pair[2] < 4.5]
    assert weak == []
    page.click("#theme-button")
    page.click("#theme-button")
    assert page.script(ground) < 60, "light, then dark, whatever the system has"
    page.driver.refresh()
    assert page.script(ground) < 60
    page.script("localStorage.clear()")


def test_everything_that_can_be_used_has_a_name(page: Page) -> None:
    for path, ready in VIEWS.items():
        page.go(path, ready)
        assert page.script(NAMELESS) == [], path
    for key in ("?", "h"):
        page.keys(key)
        page.see("dialog")
        assert page.script(NAMELESS) == []
        page.keys(Keys.ESCAPE)
        page.gone("dialog")
    landmarks = page.script(
        "return ['header', 'nav', 'main', 'h1'].map((tag) => document.querySelectorAll(tag).length)"
    )
    assert landmarks[:3] == [1, 1, 1] and landmarks[3] >= 1


def test_no_other_host_is_asked(page: Page) -> None:
    for path, ready in VIEWS.items():
        page.go(path, ready)
    assert page.hosts() == {f"127.0.0.1:{page.running.port}"}
    policy = page.api.get("/").headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy


def test_a_lost_service_is_told_and_taken_up_again(page: Page) -> None:
    page.allowed += ["ERR_INTERNET_DISCONNECTED", "ERR_NETWORK"]
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**network, "offline": True})
    page.click(".chip", "Known")
    page.see("#banner", "can't be reached")
    page.see(".empty", "can't be reached")
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**network, "offline": False})
    page.click("#banner button", "Try again")
    page.card("0")
    page.gone("#banner")
    page.until(lambda: page.script("return document.getElementById('live-dot').dataset.state") == "live")


def test_the_token_is_asked_for_once(chromium: webdriver.Chrome, fitted: Talon, tmp_path: Path) -> None:
    with running(fitted, tmp_path / "stream", token=TOKEN) as service:
        service.client(TOKEN).batch(digits(20))
        page = Page(chromium, service)
        page.open(ready="dialog input[type=password]")
        assert page.names() == []
        page.keys("not the token", Keys.ENTER)
        page.see(".complaint", "not the token")
        page.chord(Keys.CONTROL, "a")
        page.keys(TOKEN, Keys.ENTER)
        page.card("0")
        page.gone("dialog")
        page.until(lambda: page.script("return document.getElementById('live-dot').dataset.state") == "live")
        page.open()
        page.until(lambda: page.script("return document.querySelector('img.thumb').naturalWidth") > 0)
        assert TOKEN not in page.script("return document.cookie + JSON.stringify(localStorage)")
        page.click("#status-button")
        page.click("dialog button", "Sign out")
        page.see("dialog input[type=password]")
        chromium.get("about:blank")
        page.console_errors()


def test_an_empty_stream_says_how_to_begin(chromium: webdriver.Chrome, fitted: Talon, tmp_path: Path) -> None:
    with running(fitted, tmp_path / "stream") as service:
        page = Page(chromium, service)
        page.open(ready=".empty")
        page.see(".empty pre", "/v1/decide")
        page.go("#/map", "#view-map .empty")
        page.go("#/same", "#view-same .empty")
        chromium.get("about:blank")
        assert page.console_errors() == []


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not here, which the command is for")
@pytest.mark.parametrize("token", [None, TOKEN], ids=["open", "with a token"])
def test_the_command_that_an_empty_stream_shows_can_be_run(
    chromium: webdriver.Chrome, fitted: Talon, tmp_path: Path, token: str | None
) -> None:
    with running(fitted, tmp_path / "stream", token=token) as service:
        page = Page(chromium, service)
        page.open(ready=".empty pre" if token is None else "dialog input[type=password]")
        if token is not None:
            page.keys(token, Keys.ENTER)
        command = page.see(".empty pre", "/v1/decide").text
        chromium.execute_script("localStorage.clear()")
        (tmp_path / "photo.jpg").write_bytes(digits()[0])
        shell = {**os.environ, "TALON_TOKEN": TOKEN}
        ran = subprocess.run(f"{command} --silent", shell=True, cwd=tmp_path, env=shell, capture_output=True, text=True)
        assert json.loads(ran.stdout)["index"] == 0
        chromium.get("about:blank")


def test_the_files_parse_no_html_and_ask_no_other_host() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc"
    )
    for file in sorted(FILES.iterdir()):
        text = file.read_text(encoding="utf-8")
        assert not forbidden.search(text), file.name
        foreign = [url for url in re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text) if "www.w3.org" not in url]
        assert foreign == [], file.name
    index = (FILES / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", index)


def test_every_file_of_the_page_is_used() -> None:
    index = (FILES / "index.html").read_text(encoding="utf-8")
    used = {"index.html", *re.findall(r'"assets/([^"]+)"', index)}
    waiting = [name for name in used if name.endswith(".js")]
    while waiting:
        text = (FILES / waiting.pop()).read_text(encoding="utf-8")
        fresh = set(re.findall(r'from "\./([^"]+)"', text)) - used
        used |= fresh
        waiting += fresh
    assert used == {file.name for file in FILES.iterdir()}
