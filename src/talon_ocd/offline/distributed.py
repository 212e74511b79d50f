"""Training on many processes (layer: offline): who holds which image, and how features of a batch come together.

Every image belongs to one process, which alone decodes it, runs the trunk and keeps the output: the expensive part and
its storage are divided. All processes draw the same batches; each encodes the images that it holds, and the losses see
the features of the whole batch on every process. ``torchrun`` starts the processes; see docs/torchrun.md.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from talon_ocd.errors import ConfigError, DataError, PeerError, TalonError
from talon_ocd.offline.features import encode
from talon_ocd.offline.trunk_cache import TrunkOutputs

PATIENCE = timedelta(hours=6)
"""How long a process waits for another one that has more to do; torchrun notices dead ones much earlier."""
FAREWELL = timedelta(seconds=10)
"""How long a process that has failed waits to hear whether the others have, too."""

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Processes:
    """The processes of one training; by default there is only this one.

    They talk through ``torch.distributed``, so that all must make the same calls in the same order.
    """

    rank: int = 0
    size: int = 1
    aside: dist.ProcessGroup | None = None
    """Where they talk when one has failed and the others may wait for something else of it."""

    @property
    def first(self) -> bool:
        """Is this the process that shows progress and writes files?"""
        return self.rank == 0

    def all(self, value: A) -> list[A]:
        """Return the values of all processes, in their order."""
        if self.size == 1:
            return [value]
        found: list[A] = [value] * self.size
        with self._in_touch():
            dist.all_gather_object(found, value)
        return found

    def from_first(self, value: A) -> A:
        """Return the first process's value."""
        if self.size == 1:
            return value
        found = [value]
        with self._in_touch():
            dist.broadcast_object_list(found, src=0)
        return found[0]

    def learn_once(self, module: nn.Module, learn: Callable[[], None]) -> None:
        """Let the first process's ``learn`` change the state of a module, which all others take over.

        Eigenvectors, for one, may turn round from one machine to another.
        """
        if self.first:
            learn()
        state = self.from_first({name: value.cpu() for name, value in module.state_dict().items()})
        module.load_state_dict(state)

    def map(self, work: Callable[[A], B], values: Sequence[A]) -> list[B]:
        """Return ``work`` of every value, in order; the work is shared out."""
        parts = self.all([work(value) for value in values[self.rank :: self.size]])
        return [parts[at % self.size][at // self.size] for at in range(len(values))]

    def check_same(self, facts: object, what: str) -> None:
        """Refuse to go on unless all processes have the same facts."""
        if self.size == 1:
            return
        marks = self.all(hashlib.sha256(repr(facts).encode("utf-8", "backslashreplace")).hexdigest())
        others = [rank for rank, mark in enumerate(marks) if mark != marks[0]]
        if others and not self.first:
            raise PeerError(f"process 1 of {self.size} says why this can't go on.")
        if others:
            raise DataError(
                f"process {others[0] + 1} of {self.size} has other {what} than process 1; give all of them the same "
                "command, and the same data under the same path."
            )

    def check_batch(self, batch_size: int) -> None:
        """Refuse more processes than a batch has images: some would have nothing to do."""
        if self.size > batch_size:
            raise ConfigError(
                f"{self.size} processes can't share batches of {batch_size} images; start fewer, or raise "
                "offline.batch_size."
            )

    @contextmanager
    def together(self) -> Iterator[None]:
        """Fail everywhere if the work inside, which each process does on its own, fails anywhere."""
        if self.size == 1:
            yield
            return
        failure: TalonError | None = None
        try:
            yield
        except TalonError as error:
            failure = error
        failed = [rank for rank, bad in enumerate(self.all(failure is not None)) if bad]
        if failure is not None and failed[0] == self.rank:  # one message, not one a process
            raise failure
        if failed:
            raise PeerError(f"process {failed[0] + 1} of {self.size} failed; its own message says why.")

    def all_say(self, failure: str) -> bool:
        """Say whether all processes have failed with the same words; who is still at work is not waited for long."""
        said = [failure] * self.size
        if self.size > 1:
            try:
                dist.all_gather_object(said, failure, group=self.aside)
            except RuntimeError:
                return False
        return set(said) == {failure}

    def gather(self, rows: Tensor, owner: Tensor) -> Tensor:
        """Return rows ``(B, ...)`` of the images that ``owner`` ``(B,)`` holds, given the own ones in that order.

        The own rows keep their graph, those of others come without.
        """
        counts = torch.bincount(owner, minlength=self.size)
        most = int(counts.max())
        padded = rows.new_zeros(most, *rows.shape[1:])
        padded[: len(rows)] = rows.detach()
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        with self._in_touch():
            dist.all_gather(parts, padded)
        held = [part[:count] for part, count in zip(parts, counts.tolist(), strict=True)]
        held[self.rank] = rows
        places = torch.argsort(torch.argsort(owner, stable=True))
        return torch.cat(held)[places.to(rows.device)]

    def data_parallel(self, module: nn.Module, device: torch.device) -> nn.Module:
        """Return ``module`` with gradients that are the mean over the processes, and the first one's weights."""
        # Gradients of depthwise convolutions come in another layout, which costs a copy of a few kilobytes.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        ids = [device] if device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=ids)

    def own_folder(self, folder: Path | None) -> Path | None:
        """Return where this process may keep files of its own."""
        return folder if folder is None or self.size == 1 else folder / f"process-{self.rank}-of-{self.size}"

    @contextmanager
    def _in_touch(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise PeerError(
                f"process {self.rank + 1} of {self.size} lost touch with the others ({str(error).splitlines()[0]}); "
                "look for the message of the one that ended first, then start the same command again."
            ) from error


ALONE = Processes()


@dataclass(frozen=True)
class Share:
    """Which of N images each process holds.

    Attributes:
        processes: who shares them.
        owner: the process of each image ``(N,)``.
        numbers: where this process keeps an image ``(N,)``; -1 if another one has it.
    """

    processes: Processes
    owner: Tensor
    numbers: Tensor

    @classmethod
    def among(cls, processes: Processes, owner: Tensor) -> Share:
        """Return the share of images that each process keeps in their order."""
        own = owner == processes.rank
        return cls(processes, owner, torch.where(own, own.cumsum(0) - 1, -1))

    def of(self, index: Tensor) -> Share:
        """Return the share of some of the images."""
        return Share(self.processes, self.owner[index], self.numbers[index])

    def gather(self, rows: Tensor, index: Tensor) -> Tensor:
        """Return rows of all images ``index`` ``(B,)``, given those of the ones that are held here."""
        return self.processes.gather(rows, self.owner[index])

    def encode(self, head: nn.Module, outputs: TrunkOutputs, index: Tensor) -> Tensor:
        """Return unit features ``(N, D)`` of the images ``index`` ``(N,)``, on every process."""
        own = self.numbers[index]
        own = own[own >= 0]
        if len(own):
            features = encode(head, outputs, own)
        else:  # only their size is wanted
            with torch.no_grad():
                features = head(outputs.empty(1).zero_().to(_device(head)))[:0].float()
        return self.gather(features, index)

    def take(self, outputs: TrunkOutputs, index: Tensor) -> Tensor:
        """Return trunk outputs ``(B, *hidden_shape)`` of the clean views of images ``index``, on every process."""
        own = self.numbers[index]
        return self.gather(outputs.take(own[own >= 0]), index)


def owners(sources: Sequence[str], size: int) -> Tensor:
    """Return the process of each image ``(N,)``: by its name, so that it stays the same when others come or go."""
    if size == 1:
        return torch.zeros(len(sources), dtype=torch.int64)
    digests = (hashlib.blake2b(source.encode("utf-8", "surrogatepass"), digest_size=8).digest() for source in sources)
    return torch.tensor([int.from_bytes(digest, "big") % size for digest in digests], dtype=torch.int64)


def _all_processes() -> Processes:
    aside = dist.new_group(backend="gloo", timeout=FAREWELL)
    return Processes(dist.get_rank(), dist.get_world_size(), aside)


@contextmanager
def joined(device: str = "cpu") -> Iterator[Processes]:
    """Join the processes that ``torchrun`` started, or those of a caller who has initialised ``torch.distributed``."""
    if dist.is_available() and dist.is_initialized():
        yield _all_processes()
        return
    if not dist.is_available() or not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
        yield ALONE
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(own_device(device))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo", timeout=PATIENCE)
    yield _all_processes()
    dist.barrier()  # whoever leaves while another still talks to it may abort that one
    dist.destroy_process_group()  # not after a failure: it would wait for processes that are gone


def own_device(device: str) -> str:
    """Return the GPU of this process if ``device`` is just ``cuda`` and torchrun started several."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and "LOCAL_RANK" in os.environ else device


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
