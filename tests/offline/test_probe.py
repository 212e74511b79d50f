from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from talon_ocd.config import OfflineConfig
from talon_ocd.offline import Labelled, TrunkCache, choose_probe
from talon_ocd.offline import probe as module
from talon_ocd.offline.probe import MOST_A_CLASS, spread
from tests.offline.standin import CLASSES, StandIn, some_digits


@pytest.fixture
def labelled() -> Iterator[Labelled]:
    backbone = StandIn()
    with TrunkCache(backbone, memory_bytes=10**8, disk_bytes=0) as cache:
        yield Labelled.from_items(some_digits()[0], backbone, OfflineConfig(views=0), cache)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=200), st.integers(1, 60))
def test_no_class_has_more_than_its_share(classes: list[int], most: int) -> None:
    index = spread(torch.tensor(classes), most).tolist()
    assert index == sorted(set(index)) and 1 <= len(index) <= most
    there, chosen = Counter(classes), Counter(classes[at] for at in index)
    if len(there) > most:
        assert set(chosen.values()) == {1} and len(chosen) == most
        return
    quota = max(chosen.values())
    assert all(chosen[label] == min(count, quota) for label, count in there.items())
    one_more = sum(min(count, quota + 1) for count in there.values())
    assert one_more > most or quota in (MOST_A_CLASS, max(there.values()))


def test_the_probe_is_the_trunk_output_of_some_labelled_images(labelled: Labelled) -> None:
    probe = choose_probe(labelled, 3 * CLASSES)
    index = spread(labelled.labels, 3 * CLASSES)
    assert probe.hidden.dtype == torch.float16 and torch.bincount(probe.labels).tolist() == [3] * CLASSES
    torch.testing.assert_close(probe.hidden.float(), labelled.outputs.take(index), atol=1e-3, rtol=1e-3)
    assert torch.equal(probe.labels, labelled.labels[index])


def test_large_trunk_outputs_leave_room_for_fewer_images(labelled: Labelled, monkeypatch: pytest.MonkeyPatch) -> None:
    image = 2 * labelled.outputs.empty(1).numel()
    for room, images in ((8 * image + 1, 8), (2 * image, 2), (1, 1)):
        monkeypatch.setattr(module, "MOST_BYTES", room)
        probe = choose_probe(labelled, 100)
        assert len(probe) == images and (images == 1 or probe.hidden.nbytes <= room)


def test_what_half_precision_can_not_hold_keeps_its_size() -> None:
    backbone = StandIn()
    with torch.no_grad():
        backbone.counter.patches.weight *= 1e6
    with TrunkCache(backbone, memory_bytes=10**8, disk_bytes=0) as cache:
        labelled = Labelled.from_items(some_digits()[0], backbone, OfflineConfig(views=0), cache)
        probe = choose_probe(labelled, 8)
    assert probe.hidden.dtype == torch.bfloat16 and torch.isfinite(probe.hidden).all()
    assert float(probe.hidden.abs().max()) > 65504
