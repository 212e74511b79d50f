"""Folders of streams in which second thoughts begin categories: on the disk there is nothing before an answer."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor

from talon_ocd import Catalog
from talon_ocd.catalog.joining import join
from talon_ocd.durable import DurableStream, Journal
from talon_ocd.durable import stream as durable_stream
from talon_ocd.errors import CatalogError
from talon_ocd.online import Bounds, Decision
from talon_ocd.service.jobs import Outcome
from talon_ocd.service.views import Views
from tests.branching import ADAPT_EVERY, FAR, KNOWN, observe, open_folder, unheard, vectors, world
from tests.durable.worlds import same, state

KINDS = (5, 6, 7, *FAR)
NUMBER = 96


def ids(answers: list[Decision]) -> list[int]:
    return [answer.category for answer in answers]


def two_of_one(stream: DurableStream) -> tuple[int, list[int]]:
    """Return the category with the most images, and its last two."""
    rows = stream.journal.query("SELECT home FROM decisions ORDER BY idx")
    homes = [int(row["home"]) for row in rows]
    most = max(homes, key=homes.count)
    return most, [at for at, home in enumerate(homes) if home == most][-2:]


def until_silent(stream: DurableStream, seed: int = 0) -> list[int]:
    """Answer images until there is a category without an answer; returns those."""
    for batch in world(NUMBER, seed).split(ADAPT_EVERY):
        observe(stream, batch)
        if found := unheard(stream.discovery):
            return found
    raise AssertionError("no kind has left a known class")


def killed(stream: DurableStream) -> None:
    """Leave the folder as a killed process does: no snapshot, no goodbye."""
    stream.wait_until_saved()
    stream.journal.close()


def demand_whole(stream: DurableStream) -> Catalog:
    """Whatever people may read of the catalog can be read, and says what the answers say."""
    catalog, journal = Catalog(stream.journal, stream.apply), stream.journal
    rows = journal.query("SELECT idx, category, home, verdict, runner_up FROM decisions ORDER BY idx")
    heard = {row["category"] for row in rows} | {row["home"] for row in rows} | set(range(KNOWN))
    made = {int(event.data["into"]) for event in journal.events(kinds=("split",))}
    listed = catalog.list("all", limit=1000).items
    assert {one.id for one in listed} == (heard | made) - {-1}
    assert sum(one.count for one in listed if one.into is None) == sum(row["home"] >= 0 for row in rows)
    assert sum(catalog.totals()[one] for one in ("active", "tentative", "hidden", "merged", "retired")) == len(listed)
    created = Counter(event.category for event in journal.events(kinds=("created",)))
    assert set(created.values()) <= {1}, "new once"
    assert set(created) == {row["category"] for row in rows if row["category"] >= KNOWN} - made
    for event in journal.events(kinds=("retired", "revived")):
        assert event.category in heard | made
    for image in catalog.images([row["idx"] for row in rows]):
        assert image.runner_up == -1 or image.runner_up_name
    catalog.suggestions()
    for one in listed:
        catalog.members(one.id)
    return catalog


def test_a_killed_stream_comes_to_the_very_state(tmp_path: Path) -> None:
    images = world(NUMBER, 0, KINDS)
    with open_folder(tmp_path / "whole") as whole:
        wanted = ids(observe(whole, images))
        demand_whole(whole)
    silent = 0
    for cut in (3, 16, 17, 20, 33, 40, 64, 81):
        stream = open_folder(tmp_path / f"{cut}")
        found = [category for part in images[:cut].split(5) for category in ids(observe(stream, part))]
        before = state(stream)
        silent += bool(unheard(stream.discovery))
        killed(stream)
        with open_folder(tmp_path / f"{cut}") as again:
            assert same(state(again), before)
            found += ids(observe(again, images[cut : cut + 7]))
        with open_folder(tmp_path / f"{cut}") as again:  # from the snapshot
            assert found + ids(observe(again, images[cut + 7 :])) == wanted
            demand_whole(again)
    assert silent


def test_snapshots_know_what_nobody_has_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_stream, "SNAPSHOT_EVERY", ADAPT_EVERY)
    stream = open_folder(tmp_path)
    begun = until_silent(stream)
    stream.wait_until_saved()
    assert stream.snapshots.all()[0].answered == stream.answered, "taken when nobody was answered with it"
    before = state(stream)
    killed(stream)
    with open_folder(tmp_path) as again:
        assert same(state(again), before) and unheard(again.discovery) == begun
        answers = observe(again, vectors([5, 6, 5, 6], 3))
        assert set(begun) <= {answer.category for answer in answers if answer.verdict == "new"}
        demand_whole(again)


def test_nothing_is_on_the_disk_before_an_answer(tmp_path: Path) -> None:
    with open_folder(tmp_path) as stream:
        events: list[tuple[str, int | None]] = []
        stream.on_event.append(lambda event: events.append((event.kind, event.category)))
        begun = until_silent(stream)
        catalog = demand_whole(stream)
        assert stream.categories == 0 and not events
        assert catalog.list("discovered").total == 0
        with pytest.raises(CatalogError, match="there is no category"):
            catalog.get(begun[0])
        with pytest.raises(CatalogError, match="there is no category"):
            catalog.move([0], begun[0])
        observe(stream, vectors([5, 6, 5, 6], 3))
        assert set(events) >= {("created", category) for category in begun}
        assert demand_whole(stream).get(begun[0]).verdicts["new"] == 1


def test_the_service_shows_answers_while_nobody_has_heard_of_it(tmp_path: Path) -> None:
    with open_folder(tmp_path) as stream:
        begun = until_silent(stream)
        views = Views(Catalog(stream.journal, stream.apply), stream.journal)
        images = vectors([0, 1, 2, 3, 4, 5, 6], 3)
        looked, features = stream.look_hidden(images, [""] * len(images))
        for answer, feature in zip(looked, features, strict=True):
            shown = views.decision(Outcome(answer, False, 0, feature))
            assert (shown.verdict == "new") == (shown.category in begun) and shown.runner_up not in begun
        assert {answer.category for answer in looked} & set(begun)
        for answer in observe(stream, images):
            assert views.decision(Outcome(answer, True, 0)).resolved == answer.category
            assert views.stored(answer.index) is not None
        assert all(member.runner_up not in begun for member in views.recent(100, None)[0][len(images) :])


def test_images_that_left_can_be_corrected(tmp_path: Path) -> None:
    stream = open_folder(tmp_path)
    begun = until_silent(stream)
    catalog = Catalog(stream.journal, stream.apply)
    rule = stream.discovery.rule
    positions, _, homes = rule.recent.thoughts()  # type: ignore[union-attr]
    first, second, third, fourth = positions[homes == stream.memory.slot(begun[0])][:4].tolist()
    observe(stream, vectors([5, 6, 5, 6], 3))
    catalog.move([first], begun[0])
    catalog.confirm([second])
    catalog.reject([third])
    catalog.undo(catalog.move([fourth], 4).seq)
    assert catalog.get(begun[0]).count == 3
    before = state(stream)
    killed(stream)
    with open_folder(tmp_path) as again:
        assert same(state(again), before)
        demand_whole(again)


@pytest.mark.parametrize("open_then", [True, False])
def test_a_split_makes_a_category_of_its_own(tmp_path: Path, open_then: bool) -> None:
    """Its id follows the journal's, which does not know that second thoughts have taken that one."""
    stream = open_folder(tmp_path)
    begun = until_silent(stream)
    following = stream.memory.next_id
    home, known = two_of_one(stream)
    if not open_then:
        stream.close()
        with closing(Journal(tmp_path, write=True)) as journal:
            into = int(Catalog(journal).split(home, known, "mine").data["into"])
        stream = open_folder(tmp_path)
    else:
        into = int(Catalog(stream.journal, stream.apply).split(home, known, "mine").data["into"])
    assert into == begun[0]
    assert following in unheard(stream.discovery) and into not in unheard(stream.discovery)
    slot = stream.memory.slot(into)
    assert slot == stream.memory.size - 1
    assert stream.discovery.rule.beliefs.counts[slot] == 2  # type: ignore[union-attr]
    answers = observe(stream, vectors([5, 6, 5, 6], 3))
    assert into not in ids(answers) and following in ids(answers)
    assert demand_whole(stream).find("mine") == into
    before = state(stream)
    killed(stream)
    with open_folder(tmp_path) as again:
        assert same(state(again), before)


@pytest.mark.parametrize("splits", [False, True])
def test_going_back_to_what_nobody_had_heard_of(tmp_path: Path, splits: bool) -> None:
    stream = open_folder(tmp_path)
    begun = until_silent(stream)
    stream.close()
    stream = open_folder(tmp_path)
    (snapshot,) = stream.snapshots.all()
    if splits:
        home, known = two_of_one(stream)
        Catalog(stream.journal, stream.apply).split(home, known, "mine")
    since = {answer.category for answer in observe(stream, world(64, 20, KINDS)) if answer.category >= KNOWN}
    retired = stream.roll_back(snapshot.file)
    assert set(retired) == since | ({begun[0]} if splits else set())
    assert unheard(stream.discovery) and not set(unheard(stream.discovery)) & (since | set(begun))
    catalog = demand_whole(stream)
    assert all(catalog.get(category).state == "retired" for category in retired)
    after = observe(stream, world(64, 21))
    assert not set(ids(after)) & set(retired)
    demand_whole(stream)
    before = state(stream)
    killed(stream)
    with open_folder(tmp_path) as again:
        assert same(state(again), before)
        later = next(one for one in again.snapshots.all() if one.answered > snapshot.answered)
        again.roll_back(later.file)
        observe(again, world(40, 22))
        demand_whole(again)


def test_going_back_from_what_nobody_has_heard_of(tmp_path: Path) -> None:
    stream = open_folder(tmp_path)
    stream.close()
    stream = open_folder(tmp_path)
    observe(stream, vectors([0, 1, 2], 4))
    stream.close()
    stream = open_folder(tmp_path)
    (snapshot, *_) = stream.snapshots.all()
    begun = until_silent(stream)
    assert stream.roll_back(snapshot.file) == [], "nobody misses it"
    assert not stream.journal.events(kinds=("retired",))
    assert begun[0] not in ids(observe(stream, world(64, 21)))
    demand_whole(stream)
    before = state(stream)
    killed(stream)
    with open_folder(tmp_path) as again:
        assert same(state(again), before)


def test_bounds_retire_only_what_people_know(tmp_path: Path) -> None:
    bounds = Bounds(most_categories=3, retire_after=20)
    images, retired, silent = world(160, 1, KINDS), 0, 0
    stream = open_folder(tmp_path / "one", bounds)
    for batch in images.split(ADAPT_EVERY):
        observe(stream, batch)
        silent += bool(unheard(stream.discovery))
        catalog = demand_whole(stream)
        retired = catalog.totals()["retired"]
    assert retired and silent
    before = state(stream)
    killed(stream)
    with open_folder(tmp_path / "one", bounds) as again:
        assert same(state(again), before)
        demand_whole(again)


def test_sites_are_joined(tmp_path: Path) -> None:
    for name, seed, kinds in (("a", 8, (5, FAR[0])), ("b", 7, (5, 8))):
        with open_folder(tmp_path / name) as stream:
            observe(stream, world(64, seed, kinds))
            begun = until_silent_of(stream, 7)
            assert begun
    done = join([tmp_path / "a", tmp_path / "b"], tmp_path / "c", lambda folder: open_folder(folder))
    with open_folder(tmp_path / "c") as stream:
        catalog = demand_whole(stream)
        silent = unheard(stream.discovery)
        assert len(silent) >= 2, "each site had one"
        assert any(one.answer == "yes" for one in done.settled), "the kind near class 0 was found by both"
        for one in done.sites:
            with pytest.raises(CatalogError):
                catalog.get(one.until - 1 + one.shift)
        answers = observe(stream, vectors([7] * 12, 3))
        assert {answer.category for answer in answers if answer.verdict == "new"} & set(silent)
        demand_whole(stream)
        before = state(stream)
        killed(stream)
    with open_folder(tmp_path / "c") as again:
        assert same(state(again), before)


def until_silent_of(stream: DurableStream, kind: int) -> list[int]:
    """Answer images of one kind until it has left its class, and nobody was answered with it."""
    for seed in range(40, 60):
        observe(stream, vectors([kind] * 8 + [kind - KNOWN] * 8, seed))
        if found := unheard(stream.discovery):
            return found
    return []


def test_flushes_and_thoughts_are_done_again(tmp_path: Path) -> None:
    stream = open_folder(tmp_path)
    images, silent = world(NUMBER, 1, KINDS), 0
    for batch in images.split(11):
        observe(stream, batch)
        stream.flush()
        silent += bool(unheard(stream.discovery))
        stream.second_thoughts()
    assert silent
    before: dict[str, Tensor] = state(stream)
    killed(stream)
    with open_folder(tmp_path) as again:
        assert same(state(again), before)
        demand_whole(again)
    assert torch.equal(before["discovery.memory.ids"], before["discovery.memory.ids"].unique())
