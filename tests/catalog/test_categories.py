"""Names, merges, hiding, splits and corrections, one by one."""

from pathlib import Path

import pytest

from talon_ocd.catalog import Catalog, NameTakenError, summary
from talon_ocd.durable.journal import Draft, Event, Journal
from talon_ocd.errors import CatalogError
from tests.catalog.journals import entries, open_journal


def homes(journal: Journal) -> list[int]:
    return [row["home"] for row in journal.query("SELECT home FROM decisions ORDER BY idx")]


def members(journal: Journal) -> dict[int, int]:
    return {row["id"]: row["members"] for row in journal.query("SELECT id, members FROM categories")}


def test_a_fresh_stream_shows_what_was_answered(catalog: Catalog) -> None:
    cat, found = catalog.get(0), catalog.get(2)
    assert (cat.name, cat.kind, cat.state, cat.count, cat.created) == ("cat", "known", "active", 2, None)
    assert cat.verdicts == {"known": 2, "discovered": 0, "new": 0}
    assert (found.name, found.named, found.kind, found.count, found.created) == (
        "discovered-1",
        False,
        "discovered",
        3,
        3,
    )
    assert found.verdicts == {"known": 0, "discovered": 2, "new": 1}
    assert catalog.get(4).state == "tentative"
    assert found.first_seen is not None and found.last_seen is not None and found.first_seen <= found.last_seen


def test_a_name_is_found_and_survives_reopening(journal: Journal, catalog: Catalog) -> None:
    event = catalog.rename(2, "  robin ", actor="Ada")
    assert (event.kind, event.category, event.actor) == ("named", 2, "Ada")
    assert event.data == {"name": "robin", "before": "discovered-1"}
    assert catalog.name(2) == "robin" and catalog.find("robin") == 2 and catalog.get(2).named
    assert catalog.find("discovered-1") is None, "the name is free again"
    assert Catalog(journal).name(2) == "robin"


def test_the_same_name_again_is_no_new_event(catalog: Catalog) -> None:
    assert catalog.rename(2, "robin").seq == catalog.rename(2, "robin ").seq


@pytest.mark.parametrize("name", ["", "   ", "x" * 201, "a\nb", "a\x00b", "\ud800"])
def test_what_is_no_name_is_refused(catalog: Catalog, name: str) -> None:
    with pytest.raises(CatalogError):
        catalog.rename(2, name)
    assert catalog.name(2) == "discovered-1"


def test_html_is_just_text(catalog: Catalog) -> None:
    catalog.rename(2, "<script>alert(1)</script>")
    assert catalog.name(2) == "<script>alert(1)</script>"


def test_a_known_class_keeps_its_first_name_for_searching(catalog: Catalog) -> None:
    catalog.rename(0, "Felis catus")
    assert catalog.name(0) == "Felis catus"
    assert [found.id for found in catalog.list(query="CAT").items] == [0]
    assert [found.id for found in catalog.list(query="felis").items] == [0]


@pytest.mark.parametrize("taken", ["robin", "dog", "discovered-2"])
def test_a_taken_name_offers_a_merge(catalog: Catalog, taken: str) -> None:
    catalog.rename(5, "robin")
    with pytest.raises(NameTakenError) as caught:
        catalog.rename(2, taken)
    existing = {"robin": 5, "dog": 1, "discovered-2": 3}[taken]
    assert (caught.value.existing, caught.value.existing_name) == (existing, taken)
    event = catalog.rename(2, taken, merge=True)
    assert (event.kind, event.data) == ("merged", {"categories": [2], "into": existing, "before": ["discovered-1"]})
    assert catalog.resolve(2) == existing and catalog.name(2) == taken


def test_accents_are_one_name_however_they_are_written(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.set_meta(names=["cafe\u0301", "dog"])
    catalog = Catalog(journal)
    assert catalog.find("caf\u00e9") == catalog.find("cafe\u0301") == 0
    with pytest.raises(NameTakenError):
        catalog.rename(2, "caf\u00e9")
    catalog.rename(2, "te\u0301")
    assert catalog.find("te\u0301") == catalog.find("t\u00e9") == 2
    journal.close()


def test_a_merge_is_an_alias_that_sums_and_comes_apart_again(catalog: Catalog) -> None:
    before = [catalog.get(one) for one in range(6)]
    merge = catalog.merge([3, 4], into=2)
    whole, part = catalog.get(2), catalog.get(3)
    assert (whole.aliases, whole.count, whole.created) == ((3, 4), 6, 3)
    assert whole.verdicts == {"known": 0, "discovered": 3, "new": 3}
    assert (part.state, part.into, part.count) == ("merged", 2, 2)
    assert [image.index for image in catalog.members(2).items] == [8, 7, 6, 5, 4, 3]
    assert [image.index for image in catalog.members(3).items] == [7, 6]
    assert catalog.resolve(4) == 2
    catalog.undo(merge.seq)
    assert [catalog.get(one) for one in range(6)] == before


def test_a_merge_of_a_merge_leads_to_the_end(catalog: Catalog) -> None:
    first = catalog.merge([2], into=3)
    catalog.merge([2], into=4)  # what 2 has become goes along
    assert [catalog.resolve(one) for one in (2, 3, 4)] == [4, 4, 4]
    catalog.undo(first.seq)
    assert [catalog.resolve(one) for one in (2, 3, 4)] == [2, 4, 4]


def test_a_circle_is_refused(catalog: Catalog) -> None:
    event = catalog.merge([2], into=3)
    with pytest.raises(CatalogError, match=f"one already .undo event {event.seq}"):
        catalog.merge([3], into=2)
    with pytest.raises(CatalogError, match="only one given"):
        catalog.merge([4], into=4)


def test_redoing_a_merge_against_the_other_way_round_makes_no_circle(catalog: Catalog) -> None:
    first = catalog.merge([2], into=3)
    undone = catalog.undo(first.seq)
    catalog.merge([3], into=2)
    catalog.undo(undone.seq)
    assert catalog.resolve(2) == catalog.resolve(3) == 3


def test_the_named_then_the_known_then_the_larger_is_kept(catalog: Catalog) -> None:
    assert catalog.preferred([3, 2]) == 2
    assert catalog.preferred([2, 1]) == 1
    catalog.rename(4, "robin")
    assert catalog.preferred([2, 1, 4]) == 4
    assert catalog.merge([2, 3]).data == {"categories": [3], "into": 2, "before": ["discovered-2"]}


def test_a_merge_into_a_nameless_one_keeps_the_name(catalog: Catalog) -> None:
    catalog.rename(3, "robin")
    merge = catalog.merge([3], into=2)
    assert catalog.name(2) == catalog.name(3) == "robin" and catalog.find("robin") == 2
    catalog.undo(merge.seq)
    assert (catalog.name(2), catalog.name(3)) == ("discovered-1", "robin")
    catalog.merge([0], into=2)
    assert catalog.name(2) == "cat"


def test_known_classes_are_merged_only_when_it_is_said_which_stays(catalog: Catalog) -> None:
    with pytest.raises(CatalogError, match="taught to tell apart"):
        catalog.merge([0, 1])
    with pytest.raises(CatalogError, match="taught to tell apart"):
        catalog.rename(0, "dog", merge=True)
    assert catalog.merge([0, 1], into=1).data == {"categories": [0], "into": 1, "before": ["cat"]}


def test_hidden_ones_are_out_of_the_list_until_shown(catalog: Catalog) -> None:
    catalog.hide(2)
    assert catalog.get(2).state == "hidden" and 2 not in [one.id for one in catalog.list().items]
    assert [one.id for one in catalog.list(state="hidden").items] == [2]
    with pytest.raises(CatalogError, match="hidden already"):
        catalog.hide(2)
    catalog.hide(2, hidden=False)
    assert catalog.get(2).state == "active"


def test_a_named_one_is_not_tentative(catalog: Catalog) -> None:
    catalog.rename(4, "heron")
    assert catalog.get(4).state == "active" and not catalog.list(state="tentative").items


def test_a_moved_image_has_another_home_and_the_learner_hears_of_it(journal: Journal) -> None:
    heard: list[Event] = []
    catalog = Catalog(journal, heard.append)
    event = catalog.move([3, 0, 8], 2)  # image 3 is there already
    assert event.data == {"moves": [[0, 0, 2], [8, 4, 2]]} and event.answered == 11
    assert homes(journal)[:9] == [2, 0, 1, 2, 2, 2, 3, 3, 2]
    assert members(journal) == {0: 1, 1: 1, 2: 5, 3: 2, 4: 0, 5: 2}
    assert catalog.get(2).count == 5
    undone = catalog.undo()
    assert undone.data["moves"] == [[0, 2, 0], [8, 2, 4]]
    assert heard == [event, undone]
    assert members(journal) == {0: 2, 1: 1, 2: 3, 3: 2, 4: 1, 5: 2}


def test_moves_are_undone_in_any_order(journal: Journal, catalog: Catalog) -> None:
    first, second = catalog.move([3], 3), catalog.move([3], 5)
    assert "moves" not in catalog.undo(first.seq).data, "the later one still says where it belongs"
    assert homes(journal)[3] == 5
    assert catalog.undo(second.seq).data["moves"] == [[3, 5, 2]]
    assert homes(journal)[3] == 2


def test_a_confirmed_image_counts_once_more_and_once_less_when_undone(journal: Journal, catalog: Catalog) -> None:
    event = catalog.confirm([3, 6])
    assert event.data["moves"] == [[3, 2, 2], [6, 3, 3]]
    undone = catalog.undo(event.seq)
    assert undone.data["moves"] == [[3, 2, -1], [6, 3, -1]]
    assert homes(journal)[3] == 2 and members(journal)[2] == 3
    assert catalog.undo(undone.seq).data["moves"] == [[3, 2, 2], [6, 3, 3]]


def test_a_rejected_image_is_nowhere(journal: Journal, catalog: Catalog) -> None:
    event = catalog.reject([3])
    assert event.data["moves"] == [[3, 2, -1]] and homes(journal)[3] == -1
    assert [image.index for image in catalog.members(2).items] == [5, 4]
    for again in (catalog.reject, catalog.confirm):
        with pytest.raises(CatalogError, match="rejected"):
            again([3])
    assert catalog.move([3], 5).data["moves"] == [[3, -1, 5]]
    catalog.undo(event.seq)
    assert homes(journal)[3] == 5
    catalog.undo()
    assert homes(journal)[3] == 2


def test_a_split_makes_a_new_category(journal: Journal, catalog: Catalog) -> None:
    event = catalog.split(2, [3, 5], name="robin")
    assert (event.category, event.data["into"]) == (2, 6)
    new = catalog.get(6)
    assert (new.name, new.count, new.state, new.kind, new.created) == ("robin", 2, "active", "discovered", 3)
    assert new.verdicts == {"known": 0, "discovered": 0, "new": 0}
    assert catalog.get(2).count == 1 and catalog.next_id() == 7
    journal.write(entries([6], first=11, seen={6}))
    assert catalog.get(6).verdicts == {"known": 0, "discovered": 1, "new": 0}


def test_a_split_that_is_undone_frees_its_name_but_not_its_id(journal: Journal, catalog: Catalog) -> None:
    event = catalog.split(2, [3, 5], name="robin")
    catalog.undo(event.seq)
    assert homes(journal)[3:6] == [2, 2, 2]
    assert (catalog.get(6).state, catalog.find("robin")) == ("retired", None)
    assert catalog.list(state="retired").total == 1
    assert catalog.split(2, [4], name="robin").data["into"] == 7
    catalog.move([0], 6)
    assert catalog.get(6).state == "tentative", "somebody wants it after all"


def test_a_retired_category_lives_again_when_something_comes_to_it(journal: Journal, catalog: Catalog) -> None:
    for category in (3, 4, 5):
        journal.append(Draft("retired", category, {"reason": "policy"}), journal.answered)
    assert [catalog.get(one).state for one in (3, 4, 5)] == ["retired"] * 3
    assert [one.id for one in catalog.list(state="retired", sort="created").items] == [5, 4, 3]
    confirmed = catalog.confirm([6])
    journal.write(entries([5], first=11, seen={5}))
    assert [catalog.get(one).state for one in (3, 4, 5)] == ["active", "retired", "active"]
    assert [one.id for one in catalog.list(state="retired").items] == [4]
    catalog.undo(confirmed.seq)
    assert catalog.get(3).state == "retired"


def test_what_is_tentative_follows_the_bounds_of_the_stream(journal: Journal, catalog: Catalog) -> None:
    assert [one.id for one in catalog.list(state="tentative").items] == [4]
    journal.set_meta(settings={"bounds": {"tentative_below": 3}})
    stricter = Catalog(journal)
    assert sorted(one.id for one in stricter.list(state="tentative").items) == [3, 4, 5]
    assert [stricter.get(one).state for one in (2, 3)] == ["active", "tentative"]


def test_a_merged_category_lives_while_one_of_its_parts_does(journal: Journal, catalog: Catalog) -> None:
    catalog.rename(3, "wren")
    journal.append(Draft("retired", 3, {"reason": "rollback"}), journal.answered)
    merged = catalog.merge([2, 3])
    assert merged.category == 3, "the named one stays"
    assert catalog.get(3).state == "active" and 3 in {one.id for one in catalog.list(limit=50).items}
    journal.append(Draft("retired", 2, {"reason": "policy"}), journal.answered)
    assert catalog.get(3).state == "retired" and [one.id for one in catalog.list(state="retired").items] == [3]
    journal.write(entries([2], first=11, seen={2}))
    assert catalog.get(3).state == "active", "an image came to a part of it"
    catalog.undo(merged.seq)
    assert (catalog.get(2).state, catalog.get(3).state) == ("active", "retired")


def test_a_split_of_a_merged_category_takes_from_all_of_it(journal: Journal, catalog: Catalog) -> None:
    catalog.merge([3], into=2)
    assert catalog.split(3, [3, 6]).data["moves"] == [[3, 2, 6], [6, 3, 6]]


def test_a_split_of_strangers_or_of_everything_is_refused(catalog: Catalog) -> None:
    with pytest.raises(CatalogError, match="image 6 is not in category 2"):
        catalog.split(2, [3, 6])
    with pytest.raises(CatalogError, match="all images"):
        catalog.split(2, [3, 4, 5])
    with pytest.raises(NameTakenError):
        catalog.split(2, [3], name="dog")
    assert catalog.next_id() == 6


@pytest.mark.parametrize("what", [lambda c: c.get(6), lambda c: c.rename(-1, "x"), lambda c: c.merge([2, 99])])
def test_a_category_that_is_not_there_is_said_to_be_missing(catalog: Catalog, what: object) -> None:
    with pytest.raises(CatalogError, match="there is no category"):
        what(catalog)  # type: ignore[operator]


def test_an_image_that_is_not_there_is_said_to_be_missing(catalog: Catalog) -> None:
    with pytest.raises(CatalogError, match="there is no image 11; 11 were answered"):
        catalog.move([0, 11], 2)
    with pytest.raises(CatalogError, match="no images were given"):
        catalog.confirm([])


def test_what_cannot_be_undone_says_why(catalog: Catalog) -> None:
    with pytest.raises(CatalogError, match="nothing to undo"):
        catalog.undo()
    with pytest.raises(CatalogError, match="there is no event 99"):
        catalog.undo(99)
    with pytest.raises(CatalogError, match="made by the stream"):
        catalog.undo(1)
    event = catalog.rename(2, "robin")
    undone = catalog.undo()
    with pytest.raises(CatalogError, match=f"undone already, by event {undone.seq}"):
        catalog.undo(event.seq)


def test_undo_walks_back_and_undo_of_an_undo_is_a_redo(catalog: Catalog) -> None:
    for name in ("a", "b", "c"):
        catalog.rename(2, name)
    last = catalog.undo()
    assert catalog.name(2) == "b"
    catalog.undo()
    assert catalog.name(2) == "a"
    catalog.undo(last.seq)
    assert catalog.name(2) == "c"


def test_history_tells_what_people_did_newest_first(catalog: Catalog) -> None:
    first, second = catalog.rename(2, "robin"), catalog.merge([3], into=2)
    third = catalog.undo(second.seq)
    assert catalog.history() == [third, second, first]
    assert catalog.history(limit=1, before=third.seq) == [second]
    assert [catalog.undone(event.seq) for event in (first, second, third)] == [False, True, False]
    assert [event.kind for event in catalog.history(everything=True)[3:]] == ["created"] * 4
    said = [summary(event, catalog.name) for event in (first, second, third)]
    assert said == [
        "'discovered-1' was named 'robin'",
        "'discovered-2' (3) merged into 'robin' (2)",
        f"event {second.seq} (merged) was undone",
    ]


def test_every_kind_of_event_has_words(catalog: Catalog) -> None:
    catalog.hide(2), catalog.refuse(2, 3), catalog.split(2, [3]), catalog.move([4], 0)
    catalog.confirm([0, 1, 2, 6]), catalog.reject([9])
    said = [summary(event, catalog.name) for event in catalog.history()]
    assert said == [
        "image 9 rejected",
        "4 images confirmed",
        "image 4 moved to 'cat' (0)",
        "image 3 split from 'discovered-1' (2) as 'discovered-5' (6)",
        "'discovered-1' (2) and 'discovered-2' (3) are not the same",
        "'discovered-1' (2) was hidden",
    ]
    assert (
        summary(catalog.history(everything=True)[-1], catalog.name) == "'discovered-1' (2) was discovered with image 3"
    )


def test_a_catalog_for_reading_follows_the_one_that_writes(journal: Journal, catalog: Catalog) -> None:
    reader = Catalog(Journal(journal.folder))
    catalog.rename(2, "robin")
    catalog.merge([3], into=2)
    journal.write(entries([6, 2], first=11, seen={2}))
    assert (reader.name(3), reader.get(2).count, reader.get(6).name) == ("robin", 6, "discovered-5")
    with pytest.raises(CatalogError, match="reading only"):
        reader.rename(2, "wren")
    with pytest.raises(CatalogError, match="reading only"):
        reader.split(2, [3])
    reader.journal.close()


def test_an_empty_stream_has_its_known_classes(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "empty", ())
    catalog = Catalog(journal)
    assert [one.name for one in catalog.list(sort="name").items] == ["cat", "dog"]
    assert catalog.get(1).count == 0 and catalog.next_id() == 2 and not catalog.members(0).items
    journal.write(entries([1]))
    assert catalog.get(1).count == 1
    journal.close()
