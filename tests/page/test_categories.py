"""Seeing categories, naming them, merging them, taking it back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By

from talon_ocd import Talon
from talon_ocd.durable import Draft
from tests.page.browsing import Page
from tests.page.conftest import IMAGES
from tests.service.running import Running, digits, running

SMALL_PAGES = r"""
const real = window.fetch;
window.fetch = (url, request) => {
  if (/v1\/categories\?/.test(url)) url.searchParams.set("limit", 1);
  return real(url, request);
};
"""
SITE = {"site": "garden", "folder": "", "first": 0, "answers": 3, "known": 5, "until": 5, "shift": 0}
HOSTILE = "<img src=x onerror=\"window.hacked='yes'\"><b>bold</b>"


@pytest.fixture
def served(fitted: Talon, tmp_path: Path) -> Iterator[Running]:
    """A stream by TALON's rule: its first discovered categories have several images, whatever evidence thinks."""
    with running(fitted, tmp_path / "stream", threshold=0.5) as service:
        assert service.client().batch(digits(IMAGES)).status == 200
        yield service


def test_cards_show_what_the_stream_has_found(page: Page) -> None:
    found = {one["name"]: one for one in page.api.get("/v1/categories?state=all").json["items"]}
    assert sorted(page.names()) == sorted(found)
    one = page.card("discovered-1")
    assert f"{found['discovered-1']['count']} images" in one.text
    assert f"#{found['discovered-1']['id']}" in one.text
    pictures = one.find_elements(By.CSS_SELECTOR, "img.thumb")
    assert len(pictures) == min(4, found["discovered-1"]["count"])
    page.until(lambda: all(page.script("return arguments[0].naturalWidth", picture) for picture in pictures))
    mix = one.find_element(By.CSS_SELECTOR, ".mix").get_attribute("aria-label")
    assert mix == f"answers: {found['discovered-1']['count'] - 1} discovered, 1 new"


def test_filter_search_and_order(page: Page) -> None:
    everything = page.names()
    known = [name for name in everything if not name.startswith("discovered")]
    page.click(".chip", "Known")
    page.until(lambda: sorted(page.names()) == sorted(known))
    page.click(".chip", "All")
    page.until(lambda: len(page.names()) == len(everything))
    page.keys("/")
    page.keys("discovered-1")
    found = sorted(name for name in everything if "discovered-1" in name)  # there may be a discovered-10
    page.until(lambda: sorted(page.names()) == found)
    page.driver.refresh()
    page.until(lambda: sorted(page.names()) == found, "the address keeps what was searched for")
    page.keys("/")
    page.chord(Keys.CONTROL, "a")
    page.keys("no such thing")
    page.see(".empty", "Nothing here")
    page.chord(Keys.CONTROL, "a")
    page.keys(Keys.BACKSPACE)
    page.until(lambda: len(page.names()) == len(everything))
    page.script(
        "const s = document.querySelector('.filters select'); s.value = 'name'; s.dispatchEvent(new Event('change'))"
    )
    in_order = sorted(everything, key=lambda name: (len(name), name))  # discovered-10 comes after discovered-9
    page.until(lambda: page.names() == in_order)


def test_name_by_typing(page: Page) -> None:
    page.rename("discovered-1", "four")
    page.see(".toast", "discovered-1 is now called four")
    page.card("four")
    assert page.category("four")["named"] is True
    page.open()
    page.card("four")


def test_escape_gives_a_name_up(page: Page) -> None:
    page.card("discovered-1").find_element(By.CSS_SELECTOR, "button.name").click()
    page.see(".name-field")
    page.keys("never", Keys.ESCAPE)
    page.gone(".name-field")
    page.card("discovered-1")
    assert page.api.get("/v1/history").json["items"] == []


def test_a_name_that_is_taken_offers_a_merge(page: Page) -> None:
    page.allowed.append("409")
    source, target = page.category("discovered-1"), page.category("0")
    page.rename("discovered-1", "0")
    page.see("dialog", "This name is taken")
    page.click("dialog button", "Choose another name")
    page.gone("dialog")
    page.card("discovered-1")
    page.rename("discovered-1", "0")
    page.click("dialog .primary", "Merge into 0")
    page.until(lambda: "discovered-1" not in page.names())
    merged = page.api.get(f"/v1/categories/{source['id']}").json
    assert (merged["state"], merged["into"]) == ("merged", target["id"])
    page.undo_by_toast()
    page.card("discovered-1")
    assert page.category("0")["count"] == target["count"]


def test_merge_shows_its_direction_and_can_be_turned_round(page: Page) -> None:
    first, second = page.category("discovered-1"), page.category("discovered-2")
    page.pick("discovered-1")
    page.pick("discovered-2")
    page.click("#selection .primary")
    small, large = sorted((first, second), key=lambda one: (one["count"], -one["id"]))
    said = page.see("dialog .direction").text.split()
    assert (said[0], said[-1]) == (small["name"], large["name"])
    page.click("dialog .versus-arrow")
    page.until(lambda: page.see("dialog .direction").text.split()[-1] == small["name"])
    assert f"{first['count'] + second['count']} images" in page.see("dialog .result").text
    page.click("dialog .primary", f"Merge into {small['name']}")
    page.until(lambda: large["name"] not in page.names())
    assert f"{first['count'] + second['count']} images" in page.card(small["name"]).text
    assert page.category(large["name"])["into"] == small["id"]
    page.gone("#selection")
    page.undo_by_toast()
    page.until(lambda: f"{small['count']} image" in page.card(small["name"]).text)
    assert f"{large['count']} images" in page.card(large["name"]).text


def test_what_is_gone_leaves_room_for_what_can_be_chosen(page: Page) -> None:
    """Categories that were merged are found as well, and may fill whole pages of the largest ones."""
    one, two = page.category("discovered-1")["id"], page.category("discovered-2")["id"]
    assert page.api.post("/v1/categories:merge", {"categories": [one], "into": two}).status == 200
    page.script(SMALL_PAGES)
    page.go(f"#/category/{two}", "li.tile")
    page.click("#detail-merge")
    page.see("dialog .choice", "0")
    living = page.api.get("/v1/status").json["categories"]
    page.until(lambda: len(page.all("dialog .choice")) == living - 1)
    page.keys(Keys.ESCAPE)
    page.gone("dialog")


def test_undo_and_redo_with_keys(page: Page) -> None:
    page.rename("discovered-1", "four")
    page.card("four")
    page.rename("four", "vier")
    page.card("vier")
    page.chord(Keys.CONTROL, "z")
    page.card("four")
    page.chord(Keys.CONTROL, "z")
    page.card("discovered-1")
    page.chord(Keys.CONTROL, Keys.SHIFT, "z")
    page.card("four")


def test_any_event_of_the_history_can_be_undone(page: Page) -> None:
    page.rename("discovered-1", "four")
    page.card("four")
    page.rename("discovered-2", "five")
    page.card("five")
    page.keys("h")
    page.see(".events .event", "'four'")
    assert len(page.all(".event")) == 2
    page.see(".events .event", "'four'").find_element(By.CSS_SELECTOR, "button").click()
    page.see(".events .taken-back", "'four'")
    page.see("dialog .toast", "Undone")
    page.keys(Keys.ESCAPE)
    page.card("discovered-1")
    page.card("five")


def test_only_what_people_said_offers_an_undo(page: Page) -> None:
    """Every kind of event that a ledger may have, also that of merged streams."""
    page.api("PATCH", "/v1/categories/0", {"name": "none"})
    journal = page.running.service.journal
    for draft in (Draft("flushed"), Draft("suggested", None, {"pair": [0, 5]}), Draft("joined", None, SITE)):
        journal.append(draft, journal.answered)
    page.keys("h")
    page.click("dialog .switch", "Only what people did")
    page.see(".event[data-kind=joined]", "were taken in")
    buttons = page.all(".event button")
    assert [button.get_attribute("aria-label") for button in buttons] == ["Undo: '0' was named 'none'"]
    page.keys(Keys.ESCAPE)


def test_hide_and_show_again(page: Page) -> None:
    page.pick("discovered-1")
    page.click("#selection button", "Hide")
    page.until(lambda: "discovered-1" not in page.names())
    assert page.category("discovered-1")["state"] == "hidden"
    page.click(".chip", "Hidden")
    page.until(lambda: page.names() == ["discovered-1"])
    page.card("discovered-1").find_element(By.CSS_SELECTOR, "a.open").click()
    page.click("#detail-hide", "Show again")
    page.see("#detail-hide", "Hide")
    assert page.category("discovered-1")["state"] == "active"


def test_a_hostile_name_is_only_text(page: Page) -> None:
    page.rename("discovered-1", HOSTILE)
    page.see(".toast", HOSTILE)
    page.card(HOSTILE).find_element(By.CSS_SELECTOR, "a.open").click()
    page.see("#detail-name", HOSTILE)
    page.keys(Keys.ESCAPE)
    page.pick(HOSTILE)
    page.pick("discovered-2")
    page.click("#selection .primary")
    page.see("dialog .direction", HOSTILE)
    page.keys(Keys.ESCAPE)
    page.gone("dialog")
    page.keys("h")
    page.see(".event", "<img src=x")
    page.keys(Keys.ESCAPE)
    page.open("#/map", "canvas")
    page.see(".legend .chip", HOSTILE)
    assert page.script("return window.hacked ?? null") is None
    assert page.all("b img, .name img, .name b, .toast b, .event img") == []


def test_the_grid_is_walked_with_keys(page: Page) -> None:
    order = page.names()
    focused = "return document.activeElement.closest('li.card')?.querySelector('.name').textContent"
    page.script("document.querySelector('a.open').focus()")
    page.keys(Keys.ARROW_RIGHT)
    assert page.script(focused) == order[1]
    page.keys(Keys.END)
    assert page.script(focused) == order[-1]
    page.keys(Keys.HOME, Keys.SPACE, Keys.ARROW_RIGHT, Keys.SPACE)
    page.see("#selection", "2 selected")
    page.keys(Keys.ESCAPE)
    page.gone("#selection")
    page.keys(Keys.F2)
    page.keys("by keys", Keys.ENTER)
    page.card("by keys")
    page.until(lambda: page.script(focused) == "by keys", "the focus is back on the card")
    page.keys(Keys.ENTER)
    page.see("#detail-name", "by keys")
    page.keys(Keys.ESCAPE)
    page.card("by keys")
    page.keys("?")
    page.see("dialog .keys", "Undo my last edit")


def test_many_categories_come_as_one_scrolls(page: Page) -> None:
    page.api.batch(digits(20))
    for image in page.api.get("/v1/images?limit=200").json["items"]:  # each becomes a category: more than one page
        page.api.post(f"/v1/categories/{image['home']}:split", {"images": [image["index"]]})
    page.open()
    totals = page.api.get("/v1/status").json["totals"]
    total = int(totals["known"] + totals["discovered"])
    assert total > 80
    page.see(".total", f"{total} categories")
    seen: set[str] = set()
    page.script("document.querySelector('a.open').focus()")

    def walk() -> bool:
        seen.update(page.names())
        page.keys(Keys.ARROW_DOWN)
        return len(seen) == total

    page.until(walk, "the arrow keys lead to the last card")
    assert len(page.names()) < total, "those far above are no elements any more"
    page.keys(Keys.HOME)
    page.until(lambda: bool(page.script("return scrollY === 0")))
