"""Inside a category: its images, why they are there, and correcting it."""

from typing import Any

from selenium.webdriver import Keys
from selenium.webdriver.common.by import By

from tests.page.browsing import Page

BUSY = r"""
const real = window.fetch;
window.fetch = (url, request) => {
  if (!/categories\/0\/images/.test(url)) return real(url, request);
  window.fetch = real;
  return Promise.resolve(new Response("{}", { status: 429 }));
};
"""


def members(page: Page, category: int) -> list[dict[str, Any]]:
    return list(page.api.get(f"/v1/categories/{category}/images?limit=200").json["items"])


def largest(page: Page) -> dict[str, Any]:
    """Open the largest discovered category."""
    found = page.api.get("/v1/categories?state=discovered&sort=count").json["items"][0]
    page.open(f"#/category/{found['id']}", "li.tile")
    page.until(lambda: len(page.all("li.tile")) == found["count"])
    return dict(found)


def choose(page: Page, places: list[int]) -> list[int]:
    """Select some of the images, and return their numbers."""
    tiles = [page.all("li.tile")[place] for place in places]
    for tile in tiles:
        page.hover(tile)
        tile.find_element(By.CSS_SELECTOR, ".pick input").click()
    return [int(tile.get_attribute("data-index") or -1) for tile in tiles]


def test_images_say_why_they_are_here(page: Page) -> None:
    category = largest(page)
    member = members(page, category["id"])[0]
    text = page.see("li.tile").text
    assert f"{member['similarity']:.2f}".replace("-", "−") in text
    assert f"then {member['runner_up_name']}" in text
    page.click("li.tile .picture")
    page.see("dialog .decision h3", category["name"])
    page.see("dialog .nearest", "unner-up" if member["verdict"] != "new" else "not near enough")
    assert page.script("return document.querySelector('dialog img.large').naturalWidth > 0") is True
    page.keys(Keys.ESCAPE)
    page.gone("dialog")


def test_images_that_can_not_be_loaded_are_asked_for_again(page: Page) -> None:
    largest(page)
    page.script(BUSY)
    page.go("#/category/0", "#view-category h1")
    page.see("#view-category .empty", "429")
    assert not page.all("li.tile") and not page.all("#view-category .skeleton")
    page.click("#view-category .empty button", "Try again")
    page.see("li.tile")
    page.gone("#view-category .empty")


def test_a_category_that_is_opened_while_the_service_is_away_comes_when_it_is_back(page: Page) -> None:
    page.allowed += ["ERR_INTERNET_DISCONNECTED", "ERR_NETWORK"]
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**network, "offline": True})
    page.go("#/category/0", "#view-category .empty")
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**network, "offline": False})
    page.until(lambda: tried_again(page))
    page.see("li.tile")
    page.gone("#view-category .empty")


def tried_again(page: Page) -> bool:
    """Click on what offers another try: the banner, or the category if the page found the service by itself before."""
    offers = page.all("#banner button") + page.all("#view-category .empty button")
    shown = [offer for offer in offers if offer.is_displayed() and "Try again" in offer.text]
    if shown:
        shown[0].click()
    return bool(shown)


def test_split_by_selecting_images(page: Page) -> None:
    category = largest(page)
    chosen = choose(page, [0, 2])
    page.click(".image-actions .primary")
    page.see("dialog input")
    page.keys("odd ones", Keys.ENTER)
    page.see(".toast", "Split 2 images off as odd ones")
    page.until(lambda: len(page.all("li.tile")) == category["count"] - 2)
    assert sorted(one["index"] for one in members(page, page.category("odd ones")["id"])) == sorted(chosen)
    page.undo_by_toast()
    page.until(lambda: len(page.all("li.tile")) == category["count"])


def test_move_reject_and_confirm(page: Page) -> None:
    category, target = largest(page), page.category("0")
    (moved,) = choose(page, [1])
    page.click(".image-actions button", "Move…")
    page.choose("0")
    page.see(".toast", "Moved 1 image to 0")
    page.until(lambda: len(page.all("li.tile")) == category["count"] - 1)
    assert moved in [one["index"] for one in members(page, target["id"])]
    (rejected,) = choose(page, [0])
    page.click(".image-actions button", "Reject")
    page.until(lambda: len(page.all("li.tile")) == category["count"] - 2)
    choose(page, [0])
    page.click(".image-actions button", "Confirm")
    page.see(".toast", "Confirmed 1 image")
    kinds = [event["kind"] for event in page.api.get("/v1/history").json["items"]]
    assert kinds == ["confirmed", "rejected", "moved"]
    page.gone(".image-actions")
    page.chord(Keys.CONTROL, "z")
    page.chord(Keys.CONTROL, "z")
    page.until(lambda: len(page.all("li.tile")) == category["count"] - 1)
    assert rejected in [one["index"] for one in members(page, category["id"])]


def test_a_merge_is_taken_apart_from_inside(page: Page) -> None:
    category, other = largest(page), page.category("3")
    page.keys("m")
    page.choose("3")
    page.until(lambda: page.see("dialog .direction").text.split()[-2:] == ["into", "3"])
    page.click("dialog .primary", "Merge into 3")
    page.see("#detail-name", "3")
    page.until(lambda: len(page.all("li.tile")) == category["count"] + other["count"])
    page.click(".aliases .chip", f"#{category['id']}")
    page.until(lambda: len(page.all("li.tile")) == other["count"])
    assert page.category(category["name"])["state"] == "active"


def test_the_address_of_a_merged_category_leads_on(page: Page) -> None:
    source, target = page.category("discovered-1"), page.category("discovered-2")
    page.api.post("/v1/categories:merge", {"categories": [source["id"]], "into": target["id"]})
    page.open(f"#/category/{source['id']}", "li.tile")
    page.see("#detail-name", "discovered-2")
    page.allowed.append("404")
    page.open("#/category/9999", ".empty")
    page.see(".empty", "9999")
