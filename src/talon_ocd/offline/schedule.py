"""Learning rate of each epoch (layer: offline): linear warm-up, then a cosine that counts from epoch 0."""

from __future__ import annotations

import math

OFFICIAL_EPOCHS = 100


def learning_rate(
    epoch: int,
    base: float,
    epochs: int,
    warmup_epochs: int = 0,
    warmup_start: float = 1e-4,
    floor: float = 0.0,
) -> float:
    """Return the learning rate of ``epoch`` (0-based) in a run of ``epochs`` with peak ``base``.

    Warm-up: ``w0 + e (b - w0) / W``, the same ``w0`` for every parameter group. After it:
    ``m + (b - m) (1 + cos(π e / T)) / 2``. The cosine does not restart at ``W``, so the rate jumps there, as
    in the released code. A warm-up longer than the run is shortened: see ``effective_warmup``.

    >>> [f"{learning_rate(e, 1e-3, 100, 50):.2e}" for e in (0, 49, 50, 99)]
    ['1.00e-04', '9.82e-04', '5.00e-04', '2.47e-07']
    """
    warmup = effective_warmup(epochs, warmup_epochs)
    if epoch < warmup:
        return warmup_start + epoch * (base - warmup_start) / warmup
    return floor + (base - floor) * (1.0 + math.cos(math.pi * epoch / max(1, epochs))) / 2.0


def effective_warmup(epochs: int, warmup_epochs: int) -> int:
    """Return the warm-up of a run of ``epochs``: ``warmup_epochs`` if that is shorter than the run.

    Otherwise it is read as a share of the official 100 epochs, at most half the run, in whole epochs: the
    official warm-up of 50 becomes 10 in a run of 20, so that a shortened preset still rises to its peak and
    comes down again.

    >>> effective_warmup(100, 50), effective_warmup(20, 50), effective_warmup(1, 50)
    (50, 10, 0)
    """
    if warmup_epochs < epochs:
        return warmup_epochs
    return int(min(warmup_epochs / OFFICIAL_EPOCHS, 0.5) * epochs)
