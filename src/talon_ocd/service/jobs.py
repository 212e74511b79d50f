"""What waits for an answer (layer: service)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from talon_ocd.durable import Request
from talon_ocd.errors import ImageError
from talon_ocd.images import ImageItem
from talon_ocd.online import Decision


@dataclass(frozen=True)
class Outcome:
    """An answer, whether the stream learned from it, and how many encoder steps it had taken.

    ``feature`` is the image's, ``(D,)``, if somebody wants to know what it is nearest to.
    """

    decision: Decision
    learned: bool
    steps: int
    feature: Tensor | None = field(default=None, repr=False, compare=False)


Answer = Outcome | ImageError


@dataclass(eq=False)
class Job:
    """One request: its images, what became of them, and who waits for it.

    Attributes:
        items: its images.
        learn: whether they are learned from.
        requests: under which key each of them may come again.
        answers: what somebody waits for.
        loaded: the canvas of each, or why it can't be used; empty as long as they are not encoded.
    """

    items: Sequence[ImageItem]
    learn: bool
    requests: Sequence[Request | None]
    answers: Future[list[Answer]] = field(default_factory=Future)
    loaded: Sequence[Tensor | ImageError] = ()

    @property
    def good(self) -> list[GoodImage]:
        """The images that can be answered."""
        columns = zip(self.items, self.requests, self.loaded, strict=True)
        return [GoodImage(item, request, canvas) for item, request, canvas in columns if isinstance(canvas, Tensor)]

    def begin(self) -> bool:
        """Take it in hand: it can't be cancelled any more; tells whether somebody still waits for it."""
        return self.answers.running() or (not self.answers.done() and self.answers.set_running_or_notify_cancel())

    def fail(self, error: BaseException) -> None:
        """Say that there will be no answer, unless there is one or nobody waits."""
        if self.begin():
            self.answers.set_exception(error)

    def finish(self, coming: Iterator[Outcome]) -> None:
        """Hand out the answers, each in the place of its image."""
        self.answers.set_result([bad if isinstance(bad, ImageError) else next(coming) for bad in self.loaded])


class GoodImage(NamedTuple):
    """An image that can be answered."""

    item: ImageItem
    request: Request | None
    canvas: Tensor


@dataclass(frozen=True)
class Encoded:
    """Jobs whose images went through the trunk together, with as many rows of ``hidden`` as they have good images."""

    jobs: Sequence[Job]
    hidden: Tensor
