"""Pairs that look like one, against all pairs compared the slow way."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from talon_ocd.catalog import Catalog, pairs
from talon_ocd.durable.journal import Journal
from talon_ocd.errors import CatalogError
from tests.catalog.journals import KNOWN, directions, entries, open_journal

Scored = list[tuple[int, int, float]]


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Journal]:
    """40 categories of 1 to 3 images around 12 directions, so that many look like one."""
    answers = [category for category in range(40) for _ in range(1 + category % 3)]
    around = directions(12, seed=1)[[category % 12 for category in answers]]
    features = F.normalize(around + 0.2 * directions(len(answers), seed=2), dim=1)
    journal = open_journal(tmp_path, answers, features)
    yield journal
    journal.close()


def slowly(journal: Journal, catalog: Catalog) -> Scored:
    """Every pair, one by one."""
    rows = journal.query("SELECT home, feature FROM decisions JOIN features USING (idx) WHERE home >= 0")
    by_home: dict[int, list[np.ndarray]] = {}
    for row in rows:
        by_home.setdefault(row["home"], []).append(np.frombuffer(row["feature"], np.float16).astype(np.float32))
    centres = {home: np.mean(features, axis=0) for home, features in by_home.items()}
    best: dict[tuple[int, int], float] = {}
    for one, first in centres.items():
        for two, second in centres.items():
            ends = sorted((catalog.resolve(one), catalog.resolve(two)))
            states = {catalog.get(end).state for end in ends}
            if ends[0] == ends[1] or ends[1] < len(KNOWN) or states & {"hidden", "retired"}:
                continue
            cosine = float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))
            if (ends[0], ends[1]) not in catalog.refusals() and cosine >= pairs.LEAST_COSINE:
                best[ends[0], ends[1]] = max(best.get((ends[0], ends[1]), -1.0), cosine)
    return sorted(((*pair, score) for pair, score in best.items()), key=lambda found: -found[2])


def suggested(catalog: Catalog, limit: int = 1000) -> Scored:
    found = catalog.suggestions(limit)
    return [(min(s.first.id, s.second.id), max(s.first.id, s.second.id), s.score) for s in found]


def agree(found: Scored, expected: Scored) -> None:
    assert len(found) == len(expected) > 0
    assert [score for *_, score in found] == pytest.approx([score for *_, score in expected], abs=1e-5)
    assert {pair[:2] for pair in found} == {pair[:2] for pair in expected}


def test_all_pairs_are_compared_and_stay_so_whatever_changes(crowd: Journal) -> None:
    catalog = Catalog(crowd)
    agree(suggested(catalog), slowly(crowd, catalog))
    merge = catalog.merge([14], into=2)
    agree(suggested(catalog), slowly(crowd, catalog))
    catalog.hide(3)
    catalog.refuse(4, 16)
    agree(suggested(catalog), slowly(crowd, catalog))
    catalog.move([0], 39)
    crowd.write(entries([5, 40], first=crowd.answered, seen=set(range(40))))
    agree(suggested(catalog), slowly(crowd, catalog))
    catalog.undo(merge.seq)
    refused = next(event for event in catalog.history() if event.kind == "refused")
    catalog.undo(refused.seq)
    agree(suggested(catalog), slowly(crowd, catalog))


def test_few_kept_pairs_give_the_same_ones(crowd: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "KEPT", 10)
    monkeypatch.setattr(pairs, "BLOCK", 7)
    catalog = Catalog(crowd)
    expected = slowly(crowd, catalog)
    for turn in range(12):  # more than are kept
        agree(suggested(catalog, 5), expected[turn : turn + 5])
        catalog.refuse(*expected[turn][:2])
    catalog.move([0], 39)
    agree(suggested(catalog, 5), slowly(crowd, catalog)[:5])


def test_a_pair_has_the_same_score_however_it_was_worked_out(crowd: Journal) -> None:
    catalog = Catalog(crowd)
    before = suggested(catalog)
    catalog.refuse(*before[0][:2])
    assert suggested(catalog) == before[1:] == suggested(Catalog(crowd))
    catalog.undo()
    assert suggested(catalog) == before


def test_many_merged_parts_do_not_hide_other_pairs(crowd: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "KEPT", 200)
    catalog = Catalog(crowd)
    catalog.merge([14, 26, 38], into=2)
    catalog.merge([15, 27, 39], into=3)
    for limit in (1, 2, 5, 1000):
        agree(suggested(catalog, limit), slowly(crowd, catalog)[:limit])


def test_the_one_that_a_merge_would_keep_comes_first(crowd: Journal) -> None:
    catalog = Catalog(crowd)
    catalog.rename(38, "robin")
    asked = [s for s in catalog.suggestions(1000) if 38 in (s.first.id, s.second.id)]
    assert asked and all(s.first.id == 38 and s.unit == "cosine" for s in asked)


def test_log_odds_of_a_running_stream_are_taken_as_they_come(crowd: Journal) -> None:
    catalog = Catalog(crowd)
    catalog.merge([5], into=4)
    catalog.hide(9)
    found = catalog.suggestions(10, lambda most: [(0, 1, 9.0), (4, 5, 8.0), (8, 9, 7.0), (5, 6, 6.0), (4, 6, 5.0)])
    assert [(s.first.id, s.second.id, s.score, s.unit) for s in found] == [(4, 6, 6.0, "log-odds")]


def test_similar_ones_are_nearest_first(crowd: Journal) -> None:
    catalog = Catalog(crowd)
    found = catalog.similar(2, limit=3)
    assert {s.second.id for s in found} == {14, 26, 38} and {s.first.id for s in found} == {2}
    assert [s.score for s in found] == sorted((s.score for s in found), reverse=True)
    catalog.merge([14, 26], into=38)
    assert catalog.similar(2, limit=1)[0].second.id == 38


def test_who_asks_for_similar_ones_first_is_told_all_pairs_too(crowd: Journal) -> None:
    catalog = Catalog(crowd)
    catalog.similar(2)
    agree(suggested(catalog), slowly(crowd, catalog))


def test_a_stream_without_features_suggests_nothing(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, ())
    assert Catalog(journal).suggestions() == [] and Catalog(journal).similar(0) == []
    journal.write(entries([0, 2, 3], features=torch.eye(3)))
    assert Catalog(journal).suggestions() == []
    journal.close()


def test_old_categories_are_compared_by_the_image_that_began_them(crowd: Journal) -> None:
    with crowd.transaction() as connection:
        connection.execute("DELETE FROM features WHERE idx NOT IN (SELECT first_idx FROM categories)")
        crowd.set_meta(tidied={"features": crowd.answered})
    catalog = Catalog(crowd)
    agree(suggested(catalog), slowly(crowd, catalog))
    with pytest.raises(CatalogError, match="features of these images are gone"):
        catalog.split(2, [image.index for image in catalog.members(2).items[:1]])
