"""What every registered method must keep to; a new one is tested by being in the registry."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from talon_ocd.config import TalonConfig
from talon_ocd.evaluation.datasets import Dataset
from talon_ocd.evaluation.protocol import Experiment
from talon_ocd.images import ImageItem
from talon_ocd.methods import Method, MethodStream, Trained, get_method, list_methods
from talon_ocd.offline import TrunkCache
from talon_ocd.online import Assignment
from tests import tiny
from tests.offline.standin import StandIn

CONFIG = TalonConfig().override(
    epochs=1, views=2, rounds=1, orders=1, grid=5, try_untrained=False, batch_size=32, adapt_every=16
)
KNOWN = tuple("01234")
ITEMS = list(tiny.part(0, 16, tuple("01234567")))
EVERY = pytest.mark.parametrize("name", list_methods())


def method(name: str) -> Method:
    built = get_method(name, CONFIG)
    return replace(built, recipe=built.recipe.with_epochs(1))


def experiment(items: list[ImageItem], seed: int = 0) -> Experiment:
    backbone = StandIn()
    cache = TrunkCache(backbone, memory_bytes=10**9, disk_bytes=0)
    return Experiment(Dataset("digits", items, KNOWN), backbone, CONFIG.offline, seed, cache)


@lru_cache
def shared() -> Experiment:
    return experiment(ITEMS)


@lru_cache
def fitted(key: str, name: str) -> Trained:
    return shared().fit(method(name).recipe)


def trained(name: str) -> Trained:
    """Rows that share a recipe share a fit, here as in the grid."""
    key = method(name).recipe.key
    first = next(other for other in list_methods() if method(other).recipe.key == key)
    return fitted(key, first)


def opened(name: str) -> MethodStream:
    return method(name).stream(trained(name))


@lru_cache
def hidden(novel_only: bool = False) -> Tensor:
    order = shared().order()
    wanted = [i for i in order if not novel_only or shared().truth[i] not in KNOWN]
    return shared()._outputs.take(torch.tensor(wanted))


def ids_of(stream: MethodStream, images: Tensor, parts: tuple[int, ...] = (16,)) -> npt.NDArray[np.int64]:
    """Answer images in parts of these sizes, over and over; the parts fit the adaptation interval."""
    given, start, turn = [], 0, 0
    while start < len(images):
        size = parts[turn % len(parts)]
        given.append(stream.observe(images[start : start + size]).ids)
        start, turn = start + size, turn + 1
    return np.concatenate(given)


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return set(first) == set(second) and all(torch.equal(first[key], second[key]) for key in first)


@EVERY
def test_an_empty_stream(name: str) -> None:
    stream = opened(name)
    before = stream.state_dict()
    answers = stream.observe(hidden()[:0])
    stream.flush()
    assert isinstance(answers, Assignment) and len(answers) == 0
    assert stream.size >= stream.known == len(KNOWN) and same(before, stream.state_dict())


@EVERY
def test_one_image(name: str) -> None:
    stream = opened(name)
    expected, answer = stream.decide(hidden()[:1]), stream.observe(hidden()[:1])
    stream.flush()
    assert answer.ids.tolist() == expected.ids.tolist() and answer.founded.tolist() == expected.founded.tolist()
    assert 0 <= answer.ids[0] < stream.size


@EVERY
def test_all_novel(name: str) -> None:
    stream = opened(name)
    ids = ids_of(stream, hidden(novel_only=True))
    assert ids.min() >= 0 and ids.max() < stream.size <= len(KNOWN) + len(ids)


@EVERY
def test_new_ids_follow_each_other_and_are_never_reused(name: str) -> None:
    stream = opened(name)
    size = stream.size
    for start in range(0, len(hidden()), 16):
        answers = stream.observe(hidden()[start : start + 16])
        for category, founded in zip(answers.ids.tolist(), answers.founded.tolist(), strict=True):
            assert category == size if founded else category < size
            size += founded
        assert stream.size == size


@EVERY
def test_deciding_changes_nothing(name: str) -> None:
    stream = opened(name)
    ids_of(stream, hidden()[:40])
    before = {key: value.clone() for key, value in stream.state_dict().items()}
    first, again = stream.decide(hidden()[40:60]), stream.decide(hidden()[40:60])
    assert same(before, stream.state_dict()) and first.ids.tolist() == again.ids.tolist()
    assert first.ids[0] == stream.observe(hidden()[40:41]).ids[0]


@EVERY
def test_the_same_seed_gives_the_same_ids(name: str) -> None:
    built = method(name)
    again = built.stream(experiment(ITEMS).fit(built.recipe))
    assert ids_of(opened(name), hidden()).tolist() == ids_of(again, hidden()).tolist()


@EVERY
def test_streams_never_meet(name: str) -> None:
    first = ids_of(opened(name), hidden())
    assert first.tolist() == ids_of(opened(name), hidden()).tolist()


@EVERY
def test_a_stream_goes_on_after_a_stop(name: str) -> None:
    whole, stopped, resumed = opened(name), opened(name), opened(name)
    expected = ids_of(whole, hidden(), (8,))
    first = ids_of(stopped, hidden()[:56], (8,))
    resumed.load_state_dict(load(save({key: value.contiguous() for key, value in stopped.state_dict().items()})))
    rest = ids_of(resumed, hidden()[56:], (8,))
    assert [*first, *rest] == expected.tolist() and same(whole.state_dict(), resumed.state_dict())


@EVERY
def test_labels_and_names_of_the_stream_are_out_of_reach(name: str) -> None:
    order = shared().order()
    streamed = set(order.tolist())
    lied = [
        replace(item, label="7", source=f"x{at}") if at in streamed and item.label not in KNOWN else item
        for at, item in enumerate(ITEMS)
    ]
    built = method(name)
    other = experiment(lied)
    assert other.rest.tolist() == shared().rest.tolist()
    assert "7" not in other.labelled.names and len(other.labelled) == len(shared().labelled)
    answers = other.run(built, other.fit(built.recipe), order)
    assert answers.assignment.ids.tolist() == shared().run(built, trained(name), order).assignment.ids.tolist()
