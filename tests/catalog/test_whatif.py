"""How many categories there would be."""

from pathlib import Path

from torch.nn import functional as F

from talon_ocd.catalog.whatif import grid, what_if
from talon_ocd.config import OnlineConfig
from talon_ocd.memory import PrototypeMemory
from talon_ocd.online import FeatureStream
from tests.catalog.journals import directions, open_journal


def test_a_stricter_threshold_finds_more_categories_and_the_stream_stays_as_it_is(tmp_path: Path) -> None:
    centres = directions(6, size=8)
    features = F.normalize(centres[[1, 2, 3, 4, 5] * 8] + 0.4 * directions(40, size=8, seed=3), dim=1)
    journal = open_journal(tmp_path, [2] * 40, features)
    memory = PrototypeMemory(centres[:2])

    def stream(value: float) -> FeatureStream:
        return FeatureStream(memory.copy(), OnlineConfig(threshold=value, adapt=()))

    unit, current, values = grid(journal.meta("rule"))
    found = what_if(journal, stream, values, unit, current)
    assert (found.unit, found.current, found.images, len(found.points)) == ("cosine", 0.5, 40, 11)
    discovered = [point.discovered for point in found.points]
    assert discovered == sorted(discovered) and discovered[0] < discovered[-1]
    assert all(point.categories == point.discovered + 2 for point in found.points)
    by_hand = stream(0.6)
    by_hand.observe_many(journal.features(range(40))[1])
    assert by_hand.memory.size == next(point.categories for point in found.points if point.value == 0.6)
    few = what_if(journal, stream, [0.9], unit, current, most=3)
    newest = stream(0.9)
    newest.observe_many(journal.features([37, 38, 39])[1])
    assert few.images == 3 and few.points[0].categories == newest.memory.size
    assert memory.size == 2
    journal.close()


def test_no_images_give_no_discoveries(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, ())
    memory = PrototypeMemory(directions(2))
    found = what_if(journal, lambda v: FeatureStream(memory, OnlineConfig(threshold=v, adapt=())), [0.5], "cosine", 0.5)
    assert found.to_dict()["points"] == ({"value": 0.5, "categories": 2, "discovered": 0},)
    journal.close()


def test_evidence_is_asked_in_nats() -> None:
    unit, current, values = grid({"unit": "log-odds", "threshold": 0.0}, finer=2.5)
    assert (unit, current) == ("nats", 2.5) and values == sorted(values) and {-8.0, 0.0, 2.5, 8.0} <= set(values)
