"""Pages of categories and images."""

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from talon_ocd.catalog import Catalog
from talon_ocd.durable.journal import Journal
from talon_ocd.errors import CatalogError
from tests.catalog.journals import entries, open_journal


def all_pages(catalog: Catalog, limit: int, **choice: str) -> list[int]:
    found: list[int] = []
    page = catalog.list(limit=limit, **choice)  # type: ignore[arg-type]
    while True:
        found += [one.id for one in page.items]
        assert len(page.items) <= limit
        if page.next is None:
            assert page.total == len(found)
            return found
        page = catalog.list(limit=limit, after=page.next, **choice)  # type: ignore[arg-type]


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Catalog]:
    rng = np.random.default_rng(3)
    answers = [*range(2, 24), *rng.integers(0, 24, 80).tolist()]
    catalog = Catalog(open_journal(tmp_path, answers))
    catalog.merge([7, 8], into=9)
    catalog.rename(20, "Wren 10")
    catalog.rename(12, "wren 9")
    catalog.hide(5)
    yield catalog
    catalog.journal.close()


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
@pytest.mark.parametrize("state", ["active", "all", "discovered"])
def test_pages_of_any_size_give_every_category_once_in_order(many: Catalog, limit: int, state: str) -> None:
    categories = {one: many.get(one) for one in range(24)}
    last = {one: max(image.index for image in many.members(one).items) for one in categories}
    keys = {
        "recent": lambda one: (-last[one], -one),
        "count": lambda one: (-categories[one].count, -one),
        "created": lambda one: -one,
    }
    chosen = all_pages(many, 1000, state=state)
    for sort, key in keys.items():
        assert all_pages(many, limit, state=state, sort=sort) == sorted(chosen, key=key), sort
    assert sorted(all_pages(many, limit, state=state, sort="name")) == sorted(chosen)


def test_names_are_sorted_like_people_do(many: Catalog) -> None:
    assert [one.name for one in many.list(sort="name").items][:5] == [
        "cat",
        "discovered-1",
        "discovered-2",
        "discovered-3",
        "discovered-5",
    ]
    assert [one.name for one in many.list(sort="name").items][-2:] == ["wren 9", "Wren 10"]


def test_states_part_all_categories(many: Catalog) -> None:
    by_state = {
        state: set(all_pages(many, 5, state=state)) for state in ("active", "tentative", "hidden", "merged", "retired")
    }
    assert sorted(one for ids in by_state.values() for one in ids) == list(range(24))
    assert by_state["hidden"] == {5} and by_state["merged"] == {7, 8}
    for state, ids in by_state.items():
        assert {many.get(one).state for one in ids} <= {state}
    totals = many.totals()
    assert (totals["all"], totals["merged"], totals["known"]) == (24, 2, 2)
    assert totals["active"] + totals["tentative"] == totals["known"] + totals["discovered"]


def test_a_category_is_found_by_any_of_its_names(many: Catalog) -> None:
    many.rename(12, "goldcrest")
    for words in ("WREN 9", "goldcrest", " discovered-11 "):
        assert [one.id for one in many.list(query=words).items] == [12], words
    many.merge([12], into=20)
    assert [one.id for one in many.list(query="goldcrest").items] == [20]
    assert not many.list(query="heron").items


def test_pages_go_on_where_they_were_while_the_stream_goes_on(many: Catalog) -> None:
    page = many.list(limit=3)
    many.journal.write(entries([24, 25], first=102, seen=set()))
    following = many.list(limit=3, after=page.next)
    assert not {one.id for one in page.items} & {one.id for one in following.items}
    assert [one.id for one in many.list("all", limit=2).items] == [25, 24]


def test_images_come_in_pages_too(many: Catalog) -> None:
    homes = {row["idx"]: row["home"] for row in many.journal.query("SELECT idx, home FROM decisions")}
    expected = sorted((index for index, home in homes.items() if home in (7, 8, 9)), reverse=True)
    found, after = list[int](), None
    while True:
        page = many.members(9, limit=2, after=after)
        assert page.total == len(expected)
        found += [image.index for image in page.items]
        after = page.next
        if after is None:
            break
    assert found == expected


def test_an_image_says_why_it_was_answered_so(catalog: Catalog) -> None:
    catalog.rename(1, "hound")
    image = catalog.members(0).items[0]
    assert (image.index, image.source, image.category, image.verdict) == (1, "photos/001.png", 0, "known")
    assert (image.runner_up, image.runner_up_name, image.runner_up_similarity) == (1, "hound", 0.25)
    assert image.similarity == pytest.approx(0.899) and image.margin == pytest.approx(0.399)
    assert image.to_dict()["index"] == 1


def test_typical_images_are_those_that_fitted_best_and_stay(journal: Journal, catalog: Catalog) -> None:
    assert list(catalog.exemplars(2, 2)) == [3, 4] == list(catalog.get(2, exemplars=2).exemplars)
    catalog.merge([0], into=2)
    assert list(catalog.exemplars(2, 3)) == [0, 1, 3]
    journal.write(entries([3] * 40, first=11, seen={3}))
    faces = catalog.exemplars(3)
    journal.write(entries([3] * 40, first=51, seen={3}))
    assert catalog.exemplars(3) == faces


def test_typical_images_are_such_that_can_still_be_shown(journal: Journal, catalog: Catalog) -> None:
    journal.set_meta(tidied={"thumbnails": 5})
    assert list(catalog.exemplars(2)) == [3, 5], "the founder's thumbnail stays"
    catalog.move([3], 5)
    assert list(catalog.exemplars(2)) == [5] and list(catalog.exemplars(0)) == [0]


def test_the_nearest_images_are_those_of_the_nearest_features(journal: Journal, catalog: Catalog) -> None:
    catalog.merge([3], into=2)
    wanted = [3, 4, 5, 6, 7]
    features = {index: journal.feature(index) for index in wanted}
    for index, feature in features.items():
        assert feature is not None
        cosines = {other: float(feature @ known) for other, known in features.items() if known is not None}
        expected = sorted(wanted, key=lambda other: -cosines[other])
        assert list(catalog.nearest_images(2, feature, 3)) == expected[:3] and expected[0] == index
    journal.set_meta(tidied={"thumbnails": 5})
    found = catalog.nearest_images(2, journal.features([4])[1][0], 9)
    assert sorted(found) == [3, 5, 6, 7], "4 can't be shown any more; founders can"
    with journal.transaction() as connection:
        connection.execute("DELETE FROM features")
    assert list(catalog.nearest_images(2, features[3], 3)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "choice",
    [{"state": "actve"}, {"sort": "size"}, {"limit": 0}, {"limit": 1001}, {"after": "no cursor"}, {"after": "é"}],
)
def test_what_makes_no_list_is_refused(catalog: Catalog, choice: dict[str, object]) -> None:
    with pytest.raises(CatalogError):
        catalog.list(**choice)  # type: ignore[arg-type]


@pytest.mark.parametrize("end", [f'["members",{10**30},0]', f'["members",5,{-(2**63)}]', "[" * 20_000])
def test_a_page_that_nobody_gave_is_refused(catalog: Catalog, end: str) -> None:
    cursor = base64.urlsafe_b64encode(end.encode()).decode()
    with pytest.raises(CatalogError, match="begin"):
        catalog.members(2, after=cursor)


def test_a_page_of_another_list_is_refused(catalog: Catalog) -> None:
    end = catalog.list(limit=1).next
    assert end is not None
    with pytest.raises(CatalogError, match="another list"):
        catalog.list(limit=1, sort="name", after=end)
    with pytest.raises(CatalogError, match="another list"):
        catalog.members(2, after=end)
    with pytest.raises(CatalogError, match="Did you mean 'active'"):
        catalog.list(state="actve")
