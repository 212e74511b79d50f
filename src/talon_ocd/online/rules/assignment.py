"""What a rule answers (layer: online)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Row = tuple[int, bool, float, int, float]


@dataclass(frozen=True)
class Assignment:
    """Answers for B features, in order; arrays of shape ``(B,)``.

    Attributes:
        ids: category of each feature; founded ones are K, K + 1, ... in order.
        founded: whether the feature founds its category.
        similarities: how well the best category that existed before fits, in the rule's unit: a cosine, or the log-odds
            against a new category.
        runner_ups: the category that comes next, -1 if there is none.
        runner_up_similarities: how well that one fits; a cosine of -1, or -1000 nats, if there is none.
    """

    ids: Ints
    founded: npt.NDArray[np.bool_]
    similarities: Floats
    runner_ups: Ints
    runner_up_similarities: Floats

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> Assignment:
        """Return answers that were given one by one."""
        ids, founded, similarities, runner_ups, runner_up_similarities = zip(*rows, strict=True) if rows else [()] * 5
        return cls(
            np.array(ids, np.int64), np.array(founded, np.bool_), np.array(similarities, np.float64),
            np.array(runner_ups, np.int64), np.array(runner_up_similarities, np.float64),
        )  # fmt: skip

    @classmethod
    def joined(cls, parts: Iterable[Assignment]) -> Assignment:
        """Return answers that were given in parts."""
        given = list(parts)
        if not given:
            return cls.from_rows([])
        if len(given) == 1:
            return given[0]
        return cls(*(np.concatenate([getattr(part, field.name) for part in given]) for field in fields(cls)))
