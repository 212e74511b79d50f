"""Writes snapshots while answers go on (layer: durable).

A snapshot of a large stream takes a while to write, and nobody's answer shall wait for a disk. One thread writes one
state at a time; what it has not finished is no worse than a snapshot that was never begun.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from torch import Tensor

from talon_ocd.durable.journal import Journal
from talon_ocd.durable.pictures import Pictures
from talon_ocd.durable.snapshots import Snapshots
from talon_ocd.durable.tidy import Keep, tidy


class Saver:
    """Writes states of a stream, and lets go of what they make needless; its owner is one thread."""

    def __init__(self, journal: Journal, pictures: Pictures, snapshots: Snapshots) -> None:
        self._journal, self._pictures, self._snapshots = journal, pictures, snapshots
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Is a state still being written?"""
        return self._thread is not None and self._thread.is_alive()

    def start(self, state: Mapping[str, Tensor], answered: int, event: int, keep: Keep) -> None:
        """Write a copy of ``state``; waits if an earlier one is not written yet."""
        self.wait()
        copies = {name: value.detach().clone() for name, value in state.items()}
        work = (copies, answered, event, keep)
        self._thread = threading.Thread(target=self._save, args=work, name="talon-save", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until what was begun is on the disk; raises ``StorageError`` if it could not be written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _save(self, state: dict[str, Tensor], answered: int, event: int, keep: Keep) -> None:
        try:
            self._snapshots.take(state, answered, event)
            tidy(self._journal, self._pictures, self._snapshots.thin(), keep)
        except BaseException as error:
            self._error = error
