"""Streams in which second thoughts begin categories: nobody hears of these before an image is answered with them."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from talon_ocd.memory import PrototypeMemory
from talon_ocd.online import Bounds, Decision, EvidenceRule, FeatureStream
from tests import branching
from tests.branching import ADAPT_EVERY, FAR, KNOWN, unheard, vectors, world

NUMBER = 160
KINDS = (5, 6, 7, *FAR)


def until_silent(stream: FeatureStream, seed: int = 0) -> tuple[int, list[int]]:
    """Answer images until there is a category without an answer; returns how many, and which."""
    images = world(NUMBER, seed)
    for number, image in enumerate(images, 1):
        stream.observe(image)
        if found := unheard(stream):
            return number, found
    raise AssertionError("no kind has left a known class")


def in_cuts(stream: FeatureStream, images: Tensor, cuts: list[int]) -> list[Decision]:
    answers: list[Decision] = []
    edges = [0, *sorted(cuts), len(images)]
    for start, end in pairwise(edges):
        answers += stream.observe_many(images[start:end])
    return answers


def told(answers: list[Decision]) -> list[tuple[int, str, int]]:
    """What depends on no rounding: sums of batches differ in their last bits."""
    return [(answer.category, answer.verdict, answer.runner_up) for answer in answers]


def demand_alike(one: FeatureStream, other: FeatureStream) -> None:
    """Sums depend on the cuts in their last bits, nothing else does."""
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], atol=1e-9, rtol=1e-9)  # what is whole is equal


@pytest.mark.parametrize("seed", range(3))
def test_kinds_leave_known_classes_in_these_worlds(seed: int) -> None:
    stream = branching.stream()
    number, begun = until_silent(stream, seed)
    assert number % ADAPT_EVERY == 0 and begun[0] == stream.memory.known
    assert stream.memory.size == stream.rule.beliefs.size  # type: ignore[union-attr]
    assert branching.stream(branch_below=0.0).observe_many(world(NUMBER, seed))[-1].category < KNOWN


@pytest.mark.parametrize("kinds", [(5, 6), KINDS])
@given(st.integers(0, 5), st.lists(st.integers(0, NUMBER), max_size=6))
@settings(max_examples=12, deadline=None)
def test_answers_do_not_depend_on_batches(kinds: tuple[int, ...], seed: int, cuts: list[int]) -> None:
    images = world(NUMBER, seed, kinds)
    alone, together = branching.stream(), branching.stream()
    wanted = [alone.observe(image) for image in images]
    found = in_cuts(together, images, cuts)
    assert told(found) == told(wanted)
    demand_alike(alone, together)


@pytest.mark.parametrize("seed", range(3))
def test_a_stream_goes_on_from_its_state_at_any_answer(seed: int) -> None:
    images = world(96, seed, KINDS)
    whole, silent = branching.stream(), 0
    wanted = whole.observe_many(images)
    for cut in range(0, 96, 3):
        first, second = branching.stream(), branching.stream()
        answers = first.observe_many(images[:cut])
        silent += bool(unheard(first))
        second.load_state_dict({name: value.clone() for name, value in first.state_dict().items()})
        assert unheard(second) == unheard(first)
        assert told(answers + [second.observe(image) for image in images[cut:]]) == told(wanted)
        demand_alike(second, whole)
    assert silent


@pytest.mark.parametrize("kinds", [(5, 6), KINDS])
@pytest.mark.parametrize("seed", range(6))
def test_every_category_is_new_once(seed: int, kinds: tuple[int, ...]) -> None:
    stream, heard = branching.stream(), set(range(KNOWN))
    for image in world(NUMBER, seed, kinds):
        answer = stream.observe(image)
        assert (answer.verdict == "new") == (answer.category not in heard)
        heard.add(answer.category)
        assert answer.runner_up == -1 or answer.runner_up in heard, "nobody has heard of the runner-up"
        assert (answer.runner_up == -1) == (answer.runner_up_similarity == -1000.0)
    assert len(heard) > KNOWN
    assert set(stream.heard_of()) == heard


def test_who_is_looked_at_is_told_what_an_answer_would_tell() -> None:
    stream = branching.stream()
    _, begun = until_silent(stream)
    images = world(64, 20)
    looked = [stream.decide(image) for image in images]
    assert told(stream.decisions(stream.look(images), [""] * 64, stream.answered)) == told(looked)
    state, seen = {name: value.clone() for name, value in stream.state_dict().items()}, 0
    for image, one in zip(images, looked, strict=True):
        stream.load_state_dict(state)
        assert told([stream.observe(image)]) == told([one])
        seen += one.category in begun
        assert one.verdict == "new" if one.category in begun else one.category in stream.heard_of()
    assert seen


def test_second_thoughts_name_nobody_without_an_answer() -> None:
    stream = branching.stream()
    until_silent(stream)
    silent = set(unheard(stream))
    thoughts = stream.second_thoughts()
    assert thoughts is not None
    named = {move.now for move in thoughts.moves} | {move.answered for move in thoughts.moves}
    named |= {category for merge in thoughts.merges for category in (merge.first, merge.second)}
    assert not named & silent
    stream.observe_many(world(64, 20))
    assert not unheard(stream)
    thoughts = stream.second_thoughts()
    assert thoughts is not None and {move.now for move in thoughts.moves} & silent, "these images joined the class"


@pytest.mark.parametrize("ends", [1, ADAPT_EVERY - 1, ADAPT_EVERY])
def test_bounds_leave_what_nobody_could_join_so_far(ends: int) -> None:
    stream = branching.stream(Bounds(tentative_below=3, retire_after=ends))
    number, begun = until_silent(stream)
    kind = [int(image) for image in (5, 6) for _ in range(3)]
    known = vectors([4] * 3 * ADAPT_EVERY, 7)
    stream.observe_many(known)
    assert unheard(stream) == begun
    answers = stream.observe_many(vectors(kind, 8))
    assert set(begun) <= {answer.category for answer in answers if answer.verdict == "new"}
    assert stream.answered == number + len(known) + 6


def test_what_begins_is_not_the_weakest() -> None:
    """It has as many images as left a class, although nobody was answered with it: one that was just founded."""
    memory = PrototypeMemory(torch.eye(6)[:2])
    memory.append(torch.eye(6)[2:5])
    memory.count(torch.tensor([0, 2, 3, 3]))
    assert Bounds(most_categories=2).kept(memory, 4).tolist() == [0, 1, 3]
    memory.count(torch.tensor([2]), 4)
    assert Bounds(most_categories=2).kept(memory, 5).tolist() == [0, 1, 2]
    memory = PrototypeMemory(torch.eye(6)[:2])
    memory.append(torch.eye(6)[2:5])
    memory.count(torch.tensor([2, 3]))
    assert Bounds(most_categories=2).kept(memory, 2).tolist() == [0, 1, 4]


def test_nobody_hears_that_what_nobody_heard_of_is_retired() -> None:
    stream = branching.stream(Bounds(most_categories=1))
    retired: list[int] = []
    keep = stream.retire
    stream.retire = lambda: [*(gone := keep()), *(retired.extend(gone) or [])]  # type: ignore[method-assign,func-returns-value]
    heard: set[int] = set()
    for image in world(NUMBER, 1, KINDS):
        heard.add(stream.observe(image).category)
        assert stream.memory.size == stream.rule.beliefs.size  # type: ignore[union-attr]
        if not stream.answered % ADAPT_EVERY:
            assert stream.memory.size <= KNOWN + 1
    assert retired and set(retired) <= heard
    assert len(set(retired)) == len(retired)


def test_people_have_the_last_word_about_images_that_left() -> None:
    stream = branching.stream()
    number, (begun, *_) = until_silent(stream)
    rule = stream.rule
    assert isinstance(rule, EvidenceRule)
    images = world(NUMBER, 0)
    slot = stream.memory.slot(begun)
    positions, answers, homes = rule.recent.thoughts()
    moved = [int(at) for at in positions[homes == slot]]
    said = {int(at): int(category) for at, category in zip(positions, answers, strict=True)}
    counts = rule.beliefs.counts.copy()
    stream.correct(moved[0], images[moved[0]], said[moved[0]], said[moved[0]])  # confirmed where it was answered
    stream.correct(moved[1], images[moved[1]], said[moved[1]], 4)
    stream.correct(moved[2], images[moved[2]], said[moved[2]], None)
    assert rule.beliefs.counts[slot] == pytest.approx(counts[slot] - 3)
    assert rule.beliefs.counts[4] == pytest.approx(counts[4] + rule.config.answer_weight)
    for at in moved[3:]:  # nobody is left
        stream.correct(at, images[at], said[at], said[at])
    assert rule.beliefs.counts[slot] == 0.0 and unheard(stream) == [begun]
    stream.observe_many(world(NUMBER, 0)[number:])
    assert begun in unheard(stream), "nobody joins it any more"
    assert stream.memory.size == rule.beliefs.size


def test_people_may_bring_an_image_to_it() -> None:
    stream = branching.stream()
    number, (begun, *_) = until_silent(stream)
    image = world(NUMBER, 0)[number - 1]
    stream.correct(number - 1, image, stream.decide(image).category, begun)
    assert begun not in unheard(stream)
    after = [answer for answer in stream.observe_many(vectors([5, 6] * 4, 3)) if answer.category == begun]
    assert after and all(answer.verdict == "discovered" for answer in after)


def test_an_id_that_people_take_is_theirs() -> None:
    stream = branching.stream()
    _, (begun, *_) = until_silent(stream)
    slot, following = stream.memory.slot(begun), stream.memory.next_id
    stream.make_way(begun)
    assert stream.memory.slot(begun) is None and int(stream.memory.ids[slot]) == following
    stream.correct(0, world(NUMBER, 0)[0], None, begun)
    assert stream.memory.slot(begun) == stream.memory.size - 1
    stream.make_way(begun)  # people know it: it stays
    stream.make_way(0)
    assert stream.memory.slot(begun) == stream.memory.size - 1 and stream.memory.slot(0) == 0
    stream.make_way(following + 7)
    assert stream.memory.next_id == following + 8


def test_what_was_silent_then_has_another_id_after_going_back() -> None:
    """Its id may have been answered with since: those answers keep it, and no other image gets it."""
    stream = branching.stream()
    _, begun = until_silent(stream)
    state = {name: value.clone() for name, value in stream.state_dict().items()}
    since = {answer.category for answer in stream.observe_many(world(64, 20))}
    assert since & set(begun)
    newest = stream.memory.next_id
    assert set(stream.go_back(state)) == {category for category in since if category >= KNOWN}
    assert unheard(stream) == [newest + at for at in range(len(begun))]
    after = stream.observe_many(world(64, 21))
    assert not {answer.category for answer in after} & set(begun)
    assert {answer.category for answer in after if answer.verdict == "new"} & set(range(newest, newest + len(begun)))
