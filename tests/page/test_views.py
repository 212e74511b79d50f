"""Same?, the threshold, the map."""

from selenium.webdriver import ActionChains, Keys

from tests.page.browsing import Page

POINT = """
const [card, canvas] = [document.querySelector(".map-card"), arguments[0]].map((one) => one.getBoundingClientRect());
return [card.left - 14 - canvas.left - canvas.width / 2, card.top - 14 - canvas.top - canvas.height / 2];
"""
"""The point that the card on the map belongs to, from the middle of the canvas."""


def pairs(page: Page) -> list[tuple[int, int]]:
    found = page.api.get("/v1/suggestions?limit=50").json["items"]
    return [(one["first"]["id"], one["second"]["id"]) for one in found]


def sides(page: Page) -> tuple[int, ...]:
    return tuple(int(side.get_attribute("data-id") or -1) for side in page.all(".side"))


def test_same_is_answered_with_keys(page: Page) -> None:
    for category in page.api.get("/v1/categories?state=discovered").json["items"]:  # halves look like one
        images = [one["index"] for one in page.api.get(f"/v1/categories/{category['id']}/images").json["items"]]
        page.api.post(f"/v1/categories/{category['id']}:split", {"images": images[::2]})
    before = pairs(page)
    assert len(before) >= 3
    page.open("#/same", ".side")
    assert sides(page) == before[0]
    page.keys("s")
    page.until(lambda: sides(page) == before[1])
    page.keys("n")
    page.see(".toast", "stay apart")
    assert before[1] not in pairs(page)
    page.until(lambda: sides(page) not in before[:2])
    asked = sides(page)
    target = int(page.see(".side.target").get_attribute("data-id") or -1)
    page.keys("w")
    page.until(lambda: int(page.see(".side.target").get_attribute("data-id") or -1) != target)
    page.keys("w", "y")
    page.see(".toast", "Merged")
    (source,) = set(asked) - {target}
    assert page.api.get(f"/v1/categories/{source}").json["into"] == target
    page.chord(Keys.CONTROL, "z")
    page.see(".toast", "Undone")
    assert page.api.get(f"/v1/categories/{source}").json["into"] is None


def test_the_slider_says_how_many_categories_there_would_be(page: Page) -> None:
    curve = page.api.get("/v1/what-if").json
    page.open("#/threshold", "input[type=range]")
    now = next(point for point in curve["points"] if point["value"] == curve["current"])
    page.see(".answer", f"{now['categories']} categor")
    page.script("document.querySelector('input[type=range]').focus()")
    page.keys(Keys.END)
    last = curve["points"][-1]
    page.see(".answer", f"{last['categories']} categor")
    page.see(".panel .note", f"{last['discovered']} of them discovered")
    page.see(".whatif code", "talon stream replay STREAM -m MODEL -o NEW --finer")
    page.keys(Keys.HOME)
    page.see(".answer", f"{curve['points'][0]['categories']} categor")


def test_a_point_of_the_map_shows_its_image_and_opens_its_category(page: Page) -> None:
    page.open("#/map", ".legend .chip")
    canvas = page.see("canvas")
    page.script("arguments[0].focus()", canvas)
    page.keys(Keys.ARROW_RIGHT)
    shown, name = page.see(".map-card").text, page.see(".map-card b").text
    place = page.script(POINT, canvas)
    page.script("document.activeElement.blur()")
    page.gone(".map-card")
    page.hover(canvas, round(place[0]), round(place[1]))
    assert page.see(".map-card").text == shown
    ActionChains(page.driver).click().perform()
    page.see("#detail-name", name)
