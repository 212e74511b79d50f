"""One exception tree for the whole package. Every message says what was wrong, the value, and what to do.

TalonError                 anything this package refuses; the command line prints it without a traceback
├── ConfigError            a setting is out of range, unknown or contradictory
├── DataError              a data set can't be used (empty folder, one class, missing labels ...)
│   └── ImageError         one image can't be used; streams skip it, count it and list it
├── BackboneError          an encoder is unknown, can't be loaded or has the wrong weights
├── ModelError             a saved model folder is missing, damaged or of another format version
├── StorageError           writing failed (full disk, no permission); says what is already safe
├── StreamError            a stream folder is missing, damaged or belongs to another model
│   └── StreamInUseError   another process has the stream folder open
├── CatalogError           a category or an event is not there, or can't be changed like this
├── NotFittedError         something needs a fitted model and there is none
└── PeerError              another process of the same training failed or is gone
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class TalonError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(TalonError, ValueError):
    """A setting is out of range, unknown or contradictory."""


class DataError(TalonError, ValueError):
    """A data set can't be used as it is."""


class ImageError(DataError):
    """One image can't be used.

    Attributes:
        source: what the image is called in its source (a path, a tar member, ...).
        reason: why it can't be used, without the source.
    """

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {reason}")
        self.source = source
        self.reason = reason


class BackboneError(TalonError):
    """An encoder is unknown, can't be loaded or carries the wrong weights."""


class ModelError(TalonError):
    """A saved model folder is missing, damaged or of another format version."""


class StorageError(TalonError, OSError):
    """Writing failed; the message says what is already safe on disk."""


class StreamError(TalonError):
    """A stream folder is missing, damaged or belongs to another model."""


class StreamInUseError(StreamError):
    """Another process has the stream folder open."""


class CatalogError(TalonError, ValueError):
    """A category or an event is not there, or can't be changed like this."""


class NotFittedError(TalonError, RuntimeError):
    """Something needs a fitted model and there is none."""


class PeerError(TalonError, RuntimeError):
    """Another process of the same training failed or is gone; its own message says why."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the known word closest to ``word``, or an empty string."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


class SupportWarning(UserWarning):
    """What the labelled set is too small, or too odd, to tell; discovery goes on."""
