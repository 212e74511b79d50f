"""Streams that learned apart become one: nothing is lost, what is one is found, and every match can be undone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from talon_ocd.catalog import Catalog
from talon_ocd.catalog.joining import ACTOR, Joined, join
from talon_ocd.catalog.sites import Sites
from talon_ocd.durable import DurableStream, Journal
from talon_ocd.errors import CatalogError, StreamError
from talon_ocd.online import EvidenceRule
from tests.catalog.worlds import KNOWN, classes_of, members, observe, open_world

Open = Callable[[Path], DurableStream]
AT_A, AT_B = (0, 1, 2, 12, 13, 14, 15), (0, 1, 3, 14, 15, 16, 17)
BOTH = {14, 15}
"""New classes that both sites see."""


@pytest.fixture(params=["evidence", "cosine"])
def opened(request: pytest.FixtureRequest) -> Open:
    return lambda folder: open_world(folder, request.param)


def site(folder: Path, opened: Open, classes: Sequence[int], seed: int, number: int = 90) -> list[int]:
    """Fill a stream; returns the classes of its images."""
    chosen = classes_of(number, classes, seed)
    with opened(folder) as stream:
        observe(stream, chosen, seed)
    return chosen


@pytest.fixture
def sites(tmp_path: Path, opened: Open) -> dict[str, list[int]]:
    return {
        name: site(tmp_path / name, opened, classes, seed) for name, classes, seed in (("a", AT_A, 1), ("b", AT_B, 2))
    }


def joined(tmp_path: Path, opened: Open, names: str = "ab", output: str = "c") -> Joined:
    return join([tmp_path / name for name in names], tmp_path / output, opened)


def rows(folder: Path) -> list[tuple[object, ...]]:
    journal = Journal(folder)
    found = journal.query("SELECT category, home, at, source, key, verdict, similarity FROM decisions ORDER BY idx")
    journal.close()
    return [tuple(row) for row in found]


def pairs(done: Joined, classes: Sequence[int], folder: Path) -> list[tuple[int, int]]:
    """Return the true classes of all pairs that were merged."""
    answers = [row[0] for row in rows(folder)]
    of = {category: classes[answers.index(category)] for category in set(answers)}
    return [(of[one.match.first], of[one.match.second]) for one in done.settled if one.answer == "yes"]


def test_what_is_one_is_found(tmp_path: Path, opened: Open, sites: dict[str, list[int]]) -> None:
    done = joined(tmp_path, opened)
    assert sorted(pairs(done, sites["a"] + sites["b"], tmp_path / "c")) == [(one, one) for one in sorted(BOTH)]


def test_every_answer_of_every_site_is_there(tmp_path: Path, opened: Open, sites: dict[str, list[int]]) -> None:
    (_, other) = joined(tmp_path, opened).sites
    first, second, together = (rows(tmp_path / name) for name in "abc")
    assert together[: len(first)] == first
    assert [row[2:] for row in together[len(first) :]] == [row[2:] for row in second]
    moved = [int(str(row[0])) for row in second]
    assert [row[0] for row in together[len(first) :]] == [
        category + (other.shift if category >= KNOWN else 0) for category in moved
    ]
    journals = [Journal(tmp_path / name) for name in "abc"]
    for index in (0, 40, 89):
        assert torch.equal(journals[2].feature(index), journals[0].feature(index))  # type: ignore[arg-type]
        assert torch.equal(journals[2].feature(90 + index), journals[1].feature(index))  # type: ignore[arg-type]
    counted = journals[2].query("SELECT id, answers, members FROM categories")
    answers = [row[0] for row in together]
    assert all(row["answers"] == row["members"] == answers.count(row["id"]) for row in counted)
    for journal in journals:
        journal.close()


def test_sites_stay_as_they_were(tmp_path: Path, opened: Open, sites: dict[str, list[int]]) -> None:
    def digests() -> dict[str, str]:
        files = [file for name in "ab" for file in (tmp_path / name).rglob("*") if file.is_file()]
        return {
            str(file): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in files
            if not file.name.endswith(("-shm", "-wal"))
        }

    before = digests()
    joined(tmp_path, opened)
    assert digests() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"], "no scratch is left"


def test_an_old_id_is_found_by_its_site(tmp_path: Path, opened: Open, sites: dict[str, list[int]]) -> None:
    joined(tmp_path, opened)
    journal = Journal(tmp_path / "c")
    found = Sites(journal)
    first, second = (rows(tmp_path / name) for name in "ab")
    for index, row in enumerate(second):
        category = int(str(rows(tmp_path / "c")[len(first) + index][0]))
        assert found.category(f"b:{row[0]}") == category
        assert found.of_image(len(first) + index) == ("b", index)
        if category >= KNOWN:
            assert found.origin(category) == ("b", row[0])
    assert found.category("a:12") == 12 and found.category("a name: 12") is None
    with pytest.raises(CatalogError, match="no site of this stream; there are a, b"):
        found.category("z:3")
    with pytest.raises(CatalogError, match="had no category 99"):
        found.category("b:99")
    journal.close()


def test_what_people_said_survives(tmp_path: Path, opened: Open, sites: dict[str, list[int]]) -> None:
    own = {}
    for name in "ab":
        journal = Journal(tmp_path / name, write=True)
        catalog = Catalog(journal)
        ids = sorted({int(str(row[0])) for row in rows(tmp_path / name)} - set(range(KNOWN)))
        catalog.rename(ids[0], f"first of {name}")
        catalog.merge([ids[2]], into=ids[1])
        catalog.hide(ids[3])
        catalog.refuse(ids[0], ids[1])
        catalog.rename(0, f"zero of {name}")
        images = [index for index, row in enumerate(rows(tmp_path / name)) if row[0] == ids[0]]
        catalog.move(images[:1], 1)
        catalog.undo(catalog.confirm(images[1:2]).seq)
        own[name] = (ids, images)
        journal.close()
    done = joined(tmp_path, opened)
    shift = done.sites[1].shift
    journal = Journal(tmp_path / "c", write=True)
    catalog = Catalog(journal)
    for name, more, first in (("a", 0, 0), ("b", shift, 90)):
        ids, images = [category + more for category in own[name][0]], own[name][1]
        assert f"first of {name}" in {one.data["name"] for one in catalog.history(200) if one.kind == "named"}
        assert catalog.resolve(ids[2]) == catalog.resolve(ids[1])
        assert (min(catalog.resolve(ids[0]), catalog.resolve(ids[1])),
                max(catalog.resolve(ids[0]), catalog.resolve(ids[1]))) in catalog.refusals()  # fmt: skip
        assert catalog.get(ids[3]).state in ("hidden", "merged")
        assert journal.query("SELECT home FROM decisions WHERE idx = ?", (images[0] + first,))[0]["home"] == 1
    assert catalog.name(0) == "zero of a", "the first site's name of a class stays"
    catalog.undo(done.renamed[0].seq)
    assert catalog.name(0) == "zero of b"
    moved = next(event for event in catalog.history(200) if event.kind == "moved" and event.data["moves"][0][0] >= 90)
    catalog.undo(moved.seq)
    home = journal.query("SELECT category, home FROM decisions WHERE idx = ?", (moved.data["moves"][0][0],))[0]
    assert home["home"] == home["category"]
    journal.close()
    with opened(tmp_path / "c") as stream:
        assert stream.answered == 180


def test_the_joined_stream_knows_how_common_known_classes_were(
    tmp_path: Path, opened: Open, sites: dict[str, list[int]]
) -> None:
    joined(tmp_path, opened)
    answers = [int(str(row[0])) for name in "ab" for row in rows(tmp_path / name)]
    with opened(tmp_path / "c") as stream:
        rule = stream.discovery.rule
        if isinstance(rule, EvidenceRule):
            assert rule.discovered == sum(category >= KNOWN for category in answers) > 0
            newest = rule.state_dict()["lately"].tolist()
            assert newest == [category >= KNOWN for category in answers][-rule.config.share_window :]


def test_undo_parts_what_was_matched(tmp_path: Path, opened: Open, sites: dict[str, list[int]]) -> None:
    done = joined(tmp_path, opened)
    with opened(tmp_path / "c") as stream:
        catalog = Catalog(stream.journal, stream.apply)
        learned = {name: value.clone() for name, value in stream.state_dict().items()}
        for one in (one for one in done.settled if one.answer == "yes"):
            match = one.match
            (event,) = [event for event in catalog.history(200) if event.seq == one.event]
            assert (event.kind, event.actor) == ("merged", ACTOR)
            assert event.data["match"]["score"] == match.score and event.data["match"]["votes"] == list(match.votes)
            assert catalog.resolve(match.second) == match.first, "the first site's id stays"
            catalog.undo(one.event)
            assert catalog.resolve(match.second) == match.second
        assert all(torch.equal(learned[name], value) for name, value in stream.state_dict().items())


def test_it_goes_on_and_comes_back(tmp_path: Path, opened: Open, sites: dict[str, list[int]]) -> None:
    done = joined(tmp_path, opened)
    more = classes_of(60, (2, 3, 12, 14, 16, 20), 7)
    with opened(tmp_path / "c") as stream:
        answers = observe(stream, more, 7)
    given = zip(rows(tmp_path / "c")[:180], sites["a"] + sites["b"], strict=True)
    answered = {row[0]: chosen for row, chosen in given}
    newest = max(site.until + site.shift for site in done.sites)
    for category, chosen in zip(answers, more, strict=True):
        assert (answered[category] == chosen) if chosen != 20 else (category == newest)
    stream = opened(tmp_path / "c")
    observe(stream, more, 8)
    wanted = {name: value.clone() for name, value in stream.state_dict().items()}
    stream.journal.close()  # as a killed process leaves it
    with opened(tmp_path / "c") as again:
        assert again.answered == 300
        found = again.state_dict()
        assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in found)


def test_known_classes_learn_from_all_sites_and_labelled_images_count_once(tmp_path: Path) -> None:
    opened = open_world
    site(tmp_path / "a", opened, (0, 1), 1, number=20)
    site(tmp_path / "b", opened, (0, 1), 2, number=30)
    joined(tmp_path, opened)
    with opened(tmp_path / "new") as fresh, opened(tmp_path / "c") as stream:
        begun, beliefs = fresh.discovery.rule.beliefs, stream.discovery.rule.beliefs  # type: ignore[union-attr]
        assert (beliefs.counts[:2] - begun.counts[:2]).sum() == 50 * beliefs.answer_weight
        assert (beliefs.counts[2:KNOWN] == begun.counts[2:KNOWN]).all()
        seen = torch.cat([members(classes_of(number, (0, 1), seed), seed) for number, seed in ((20, 1), (30, 2))])
        added = beliefs.answer_weight * beliefs.model.coordinates(seen).sum(axis=0)
        assert torch.allclose(
            torch.from_numpy((beliefs.sums - begun.sums)[:KNOWN].sum(axis=0)), torch.from_numpy(added)
        )
        assert int(stream.memory.counts[:2].sum()) == 50


def test_prototypes_in_half_precision_stay_so(tmp_path: Path) -> None:
    def opened(folder: Path) -> DurableStream:
        return open_world(folder, "cosine", half=True)

    classes = [site(tmp_path / name, opened, AT_A, seed) for name, seed in (("a", 1), ("b", 2))]
    done = joined(tmp_path, opened)
    assert sorted(set(pairs(done, classes[0] + classes[1], tmp_path / "c"))) == [(one, one) for one in AT_A[3:]]
    with opened(tmp_path / "c") as stream:
        assert stream.state_dict()["discovery.memory.prototypes"].dtype == torch.float16


def test_with_an_empty_stream_everything_stays(tmp_path: Path, opened: Open, sites: dict[str, list[int]]) -> None:
    opened(tmp_path / "e").close()
    for number, names in enumerate(("ae", "ea")):
        done = joined(tmp_path, opened, names, f"c{number}")
        assert [one.answers for one in done.sites] == ([90, 0] if names == "ae" else [0, 90])
        assert rows(tmp_path / f"c{number}") == rows(tmp_path / "a") and not done.settled
        with opened(tmp_path / "a") as alone, opened(tmp_path / f"c{number}") as stream:
            alone.flush()
            wanted, found = alone.state_dict(), stream.state_dict()
            assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_three_sites_and_one_that_was_joined_before(tmp_path: Path, opened: Open, sites: dict[str, list[int]]) -> None:
    third = site(tmp_path / "d", opened, (0, 14, 16, 18), 3)
    at_once = joined(tmp_path, opened, "abd", "once")
    joined(tmp_path, opened, "ab", "c")
    later = joined(tmp_path, opened, "cd", "twice")
    assert rows(tmp_path / "once") == rows(tmp_path / "twice")
    classes = sites["a"] + sites["b"] + third
    assert sorted(pairs(at_once, classes, tmp_path / "once")) == [(14, 14), (14, 14), (15, 15), (16, 16)]
    assert sorted(pairs(later, classes, tmp_path / "twice")) == [(14, 14), (16, 16)]
    joined(tmp_path, opened, "dc", "turned")
    journal = Journal(tmp_path / "turned")
    found = Sites(journal)
    assert [one.site for one in found.all] == ["d", "c/a", "c/b", "c"]
    category = int(str(rows(tmp_path / "b")[0][0]))
    assert found.category(f"b:{category}") == found.category(f"c/b:{category}") == rows(tmp_path / "turned")[180][0]
    assert found.of_image(180) == ("c/b", 0)
    journal.close()


def test_equal_keys(tmp_path: Path, opened: Open) -> None:
    same, other = members([0, 12, 13, 12], 5), members([0, 14, 15, 12], 6)
    names = [f"photo-{number}" for number in range(4)]
    for name, features in (("a", same), ("b", torch.cat([same[:1], other[1:]])), ("d", same[:2])):
        with opened(tmp_path / name) as stream:
            stream.observe_hidden(features, names[: len(features)])
    done = joined(tmp_path, opened, "abd")
    assert done.keys["b"].same == 1
    assert done.keys["b"].renamed == ((5, "photo-1"), (6, "photo-2"), (7, "photo-3"))
    assert (done.keys["d"].same, done.keys["d"].renamed) == (2, ())
    keys = [row[4] for row in rows(tmp_path / "c")]
    assert keys == [*names, "photo-0", "b:photo-1", "b:photo-2", "b:photo-3", "photo-0", "photo-1"]


def test_a_site_at_work_is_read_as_it_is_and_not_disturbed(
    tmp_path: Path, opened: Open, sites: dict[str, list[int]]
) -> None:
    with opened(tmp_path / "a") as stream:
        observe(stream, [12, 13, 14], 30)
        done = joined(tmp_path, opened)
        assert done.busy == ("a",) and done.sites[0].answers == 93
        observe(stream, [12, 13, 14], 31)
        assert stream.answered == 96
    assert len(rows(tmp_path / "c")) == 93 + 90


def test_a_snapshot_that_a_site_has_dropped_is_not_missed(
    tmp_path: Path, opened: Open, sites: dict[str, list[int]]
) -> None:
    with opened(tmp_path / "a") as stream:
        observe(stream, [12, 13, 14], 30)
    kept = sorted((tmp_path / "a" / "snapshots").glob("*.safetensors"))
    assert len(kept) > 1
    kept[0].unlink()  # as if it were thinned out after the journal was copied
    (tmp_path / "a" / "snapshots" / "unlisted.safetensors").write_bytes(b"of the next save")
    joined(tmp_path, opened)
    assert len(rows(tmp_path / "c")) == 93 + 90


def test_what_is_refused(tmp_path: Path, opened: Open, sites: dict[str, list[int]]) -> None:
    with pytest.raises(StreamError, match="the same stream was given twice"):
        joined(tmp_path, opened, "aa")
    with pytest.raises(StreamError, match="two streams or more"):
        joined(tmp_path, opened, "a")
    with pytest.raises(StreamError, match="no stream here"):
        joined(tmp_path, opened, "ax")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("something")
    with pytest.raises(StreamError, match="there is something already"):
        joined(tmp_path, opened, "ab", "full")
    with pytest.raises(StreamError, match="as many different names"):
        join([tmp_path / "a", tmp_path / "b"], tmp_path / "c", opened, names=["x", "x"])
    open_world(tmp_path / "m", model="another model").close()
    with pytest.raises(StreamError, match=r"different models .*`talon stream replay`"):
        joined(tmp_path, opened, "am")
    other = "cosine" if "log-odds" in str(Journal(tmp_path / "a").meta("rule")) else "evidence"
    open_world(tmp_path / "r", other).close()
    with pytest.raises(StreamError, match="was begun with rule="):
        joined(tmp_path, opened, "ar")
    assert not (tmp_path / "c").exists()
    (tmp_path / "empty").mkdir()
    joined(tmp_path, opened, "ab", "empty")
    assert len(rows(tmp_path / "empty")) == 180


def test_sites_are_called_by_what_tells_them_apart(tmp_path: Path) -> None:
    opened = open_world
    for name in ("north", "south"):
        site(tmp_path / name / "stream", opened, AT_A, 1, number=4)
    done = join([tmp_path / "north" / "stream", tmp_path / "south" / "stream"], tmp_path / "c", opened)
    assert [one.site for one in done.sites] == ["north/stream", "south/stream"]
