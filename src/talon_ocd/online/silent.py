"""Categories that second thoughts began and no image was answered with so far (layer: online).

They have an id, but nobody has heard of it: no answer's runner-up is one of them, the first image that is answered with
one is told that it is new, and until then their ids may change.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from talon_ocd.memory import PrototypeMemory
from talon_ocd.online.rules import Assignment
from talon_ocd.online.rules.in_turn import NOBODY

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


def heard_of(memory: PrototypeMemory) -> Bools:
    """Return which slots ``(K,)`` people have heard of: known classes, and what images came to."""
    heard: Bools = ((memory.counts > 0) | (memory.last >= 0)).numpy()
    heard[: memory.known] = True
    return heard


def told_in_turn(memory: PrototypeMemory, answers: Assignment) -> Assignment:
    """Return answers, which are in the memory but not counted yet, as people hear them one after another."""
    first = dict[int, int]()
    for place in np.flatnonzero(_silent(memory, answers.ids)).tolist():
        first.setdefault(int(answers.ids[place]), place)
    founded = np.zeros(len(answers), np.bool_)
    founded[list(first.values())] = True
    silent = _silent(memory, answers.runner_ups)
    for place in np.flatnonzero(silent).tolist():
        silent[place] = first.get(int(answers.runner_ups[place]), len(answers)) >= place
    return _without_runner_ups(replace(answers, founded=founded), silent)


def told_alone(memory: PrototypeMemory, answers: Assignment) -> Assignment:
    """Return answers as people hear them if each image came next."""
    founded = answers.founded | _silent(memory, answers.ids)
    return _without_runner_ups(replace(answers, founded=founded), _silent(memory, answers.runner_ups))


def name_anew(memory: PrototypeMemory, slots: Ints) -> None:
    """Give slots ``(L,)`` that nobody has heard of the next ids."""
    memory.ids[torch.from_numpy(slots)] = memory.next_id + torch.arange(len(slots))
    memory.next_id += len(slots)


def _silent(memory: PrototypeMemory, slots: Ints) -> Bools:
    """Return which slots ``(B,)`` nobody has heard of; nobody (-1) and what is past the end are not meant."""
    silent = np.zeros(len(slots), np.bool_)
    there = (slots >= 0) & (slots < memory.size)
    silent[there] = ~heard_of(memory)[slots[there]]
    return silent


def _without_runner_ups(answers: Assignment, gone: Bools) -> Assignment:
    """Return answers that have no runner-up at places ``(B,)``."""
    if not gone.any():
        return answers
    similarities = np.where(gone, NOBODY, answers.runner_up_similarities)
    return replace(answers, runner_ups=np.where(gone, -1, answers.runner_ups), runner_up_similarities=similarities)
