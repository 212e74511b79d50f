"""Images that come while somebody looks; images that somebody brings."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from selenium import webdriver

from talon_ocd import Talon
from talon_ocd.online import Bounds
from tests.page.browsing import Page
from tests.service.running import Running, digits, running

SEEN = 12

DROP = """
const done = arguments[arguments.length - 1];
fetch(arguments[0]).then((answer) => answer.blob()).then((blob) => {
  const data = new DataTransfer();
  data.items.add(new File([blob], "dropped.jpg", { type: "image/jpeg" }));
  for (const name of ["dragenter", "dragover", "drop"])
    document.body.dispatchEvent(new DragEvent(name, { dataTransfer: data, bubbles: true, cancelable: true }));
  done();
});
"""

BUSY = r"""
const real = window.fetch;
window.fetch = (url, request) =>
  /images\/\d+\/decision$/.test(url) ? Promise.resolve(new Response("{}", { status: 429 })) : real(url, request);
"""


@pytest.fixture
def served(fitted: Talon, tmp_path: Path) -> Iterator[Running]:
    """A stream that has seen so few images that some of the next ones are new to it."""
    with running(fitted, tmp_path / "stream") as service:
        assert service.client().batch(digits(SEEN)).status == 200
        yield service


def founder(page: Page) -> bytes:
    """Return an image that would found a category."""
    for image in digits(60)[SEEN:]:
        if page.api.decide(image, "?learn=false").json["verdict"] == "new":
            return image
    raise AssertionError("no image of the pool is new to the stream")


def test_counts_and_new_categories_arrive_live(page: Page) -> None:
    before = page.names()
    answer = page.api.decide(digits(60)[SEEN]).json
    count = page.api.get(f"/v1/categories/{answer['resolved']}").json["count"]
    page.until(lambda: f"{count} image" in page.card(answer["name"]).text)
    page.see("#status-text", f"{SEEN + 1} images")
    created = page.api.decide(founder(page)).json
    page.until(lambda: "tentative" in page.card(created["name"]).text)
    assert page.names() == [created["name"], *before]


def test_how_long_a_category_is_tentative_the_stream_says(
    chromium: webdriver.Chrome, fitted: Talon, tmp_path: Path
) -> None:
    bounds = Bounds(tentative_below=3)
    fitted.stream(tmp_path / "stream", threshold=0.9999, bounds=bounds).close()  # everything but a copy is new
    with running(fitted, tmp_path / "stream") as service:
        page = Page(chromium, service)
        page.open()
        name = page.api.decide(digits()[0]).json["name"]
        for count, tentative in ((1, True), (2, True), (3, False)):
            page.until(lambda: f"{count} image" in page.card(name).text)  # noqa: B023
            page.until(lambda: ("tentative" in page.card(name).text) == tentative)  # noqa: B023
            assert page.api.decide(digits()[0]).json["name"] == name
        chromium.get("about:blank")


def test_nothing_jumps_from_under_the_pointer(page: Page) -> None:
    order = page.names()
    card = page.card(order[0])
    page.hover(card)
    place = card.rect
    created = page.api.decide(founder(page)).json
    page.see("button.news", "1 new category")
    assert page.names() == order and card.rect == place
    page.click("button.news")
    page.card(created["name"])
    page.gone("button.news")


def test_what_another_person_does_arrives_live(page: Page) -> None:
    one = page.category("discovered-1")
    other = page.api.get("/v1/categories?state=known&sort=count").json["items"][0]
    page.api("PATCH", f"/v1/categories/{one['id']}", {"name": "four"})
    page.card("four")
    page.api.post("/v1/categories:merge", {"categories": [other["id"]], "into": one["id"]})
    page.until(lambda: other["name"] not in page.names())
    page.until(lambda: f"{one['count'] + other['count']} images" in page.card("four").text)
    page.api.post("/v1/undo", {})
    page.card(other["name"])


def test_upload_explains_the_decision_and_learns_only_if_told(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "a <b>digit.png"
    file.write_bytes(digits(60)[SEEN])
    expected = page.api.decide(file.read_bytes(), f"?learn=false&source={quote(file.name)}").json
    page.open("#/try", ".drop-target")
    page.driver.find_element("id", "chooser").send_keys(str(file))
    article = page.see(".decision")
    assert expected["name"] in article.text and expected["verdict"] in article.text
    assert f"{expected['margin']:.2f}".replace("-", "") in article.text
    assert file.name in article.text
    nearest = article.find_elements("css selector", ".nearest .strip")
    assert len(nearest) in (1, 2)  # a known class that no image has joined yet has nothing to show
    assert page.api.get("/v1/status").json["answered"] == SEEN
    page.click("label.switch", "Learn from it")
    page.driver.find_element("id", "chooser").send_keys(str(file))
    page.until(lambda: len(page.all(".decision")) == 2)
    assert page.api.get("/v1/status").json["answered"] == SEEN + 1


def test_what_was_learned_is_shown_even_if_it_cannot_be_read_once_more(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "digit.png"
    file.write_bytes(digits(60)[SEEN])
    page.open("#/try", ".drop-target")
    page.script(BUSY)
    page.click("label.switch", "Learn from it")
    page.driver.find_element("id", "chooser").send_keys(str(file))
    page.see("#view-try .decision[data-verdict]", "digit.png")
    assert not page.all(".decision.failed")
    assert page.api.get("/v1/status").json["answered"] == SEEN + 1


def test_an_image_may_be_dropped_anywhere(page: Page) -> None:
    page.driver.execute_async_script(DROP, f"{page.base}/v1/images/0/thumbnail")
    page.see("#view-try .decision", "dropped.jpg")
    assert page.api.get("/v1/status").json["answered"] == SEEN


def test_a_file_that_is_no_image_is_refused_kindly(page: Page, tmp_path: Path) -> None:
    page.allowed.append("v1/decide.*status of 4")
    file = tmp_path / "not-a-picture.png"
    file.write_text("plain text")
    page.open("#/try", ".drop-target")
    page.driver.find_element("id", "chooser").send_keys(str(file))
    page.see(".decision.failed", "not-a-picture.png")
