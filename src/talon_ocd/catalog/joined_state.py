"""What streams that learned apart have learned together (layer: catalog).

Statistics add up. Each site began with the same labelled images, so that these are counted once: what a site has added
is what it has less the model's own. Discovered categories stay beside each other; matching them is a later step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from talon_ocd.durable.appending import Renumbering
from talon_ocd.errors import StreamError
from talon_ocd.online.feature_stream import section

State = Mapping[str, Tensor]
NO_ANSWERS = torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True)
class Learned:
    """What one site has learned.

    Attributes:
        site: its name.
        state: of its stream, with nothing waiting for the next adaptation.
        numbers: what its ids and indices become.
        answered: how many answers it had given.
    """

    site: str
    state: State
    numbers: Renumbering
    answered: int

    def part(self, name: str) -> dict[str, Tensor]:
        """Return the part of the state whose names start with ``discovery.name.``."""
        return section(section(self.state, "discovery"), name)


def joined_state(fresh: State, sites: Sequence[Learned], labelled_weight: float) -> dict[str, Tensor]:
    """Return the state of a stream that has all categories of the sites.

    ``fresh`` is the state of a stream of the same model that has answered nothing. A known prototype counts as the mean
    of ``labelled_weight`` labelled images and of what was answered with it, as it does for corrections.
    """
    begun = section(fresh, "discovery")
    total = sum(site.answered for site in sites)
    parts = {"memory": _memory(section(begun, "memory"), sites, labelled_weight), "groups": _groups(sites)}
    if "rule.answered" in begun:
        parts["rule"] = _rule(section(begun, "rule"), sites, total)
    discovery = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
    discovery |= {"answered": torch.tensor(total), "since_adaptation": torch.tensor(0)}
    return {**{f"discovery.{name}": value for name, value in discovery.items()}, **_adapter(fresh, sites)}


def _adapter(fresh: State, sites: Sequence[Learned]) -> dict[str, Tensor]:
    """Return the head's state; sites whose encoders differ have features that can't be compared."""
    taught = [site for site in sites if site.answered]
    heads = [section(site.state, "adapter") for site in taught] or [section(fresh, "adapter")]
    for site, head in zip(taught[1:], heads[1:], strict=False):
        moved = [name for name in head if name.startswith("parameters") and not torch.equal(head[name], heads[0][name])]
        if moved:
            raise StreamError(
                f"the encoders of {taught[0].site!r} and {site.site!r} have adapted in different directions: their "
                "features can't be compared, and no mean of encoders answers like either. Answer the images of all "
                "sites with one stream instead (talon discover), or let sites adapt prototypes only (--adapt)."
            )
    steps = {name: sum((head[name] for head in heads), torch.tensor(0)) for name in ("steps", "refused")}
    return {f"adapter.{name}": value for name, value in {**heads[0], **steps}.items()}


def _memory(begun: State, sites: Sequence[Learned], labelled_weight: float) -> dict[str, Tensor]:
    known = int(begun["known"])
    parts = [(site, site.part("memory")) for site in sites]
    lasts = [torch.where(part["last"] >= 0, part["last"] + site.numbers.first, -1) for site, part in parts]
    counts = torch.stack([part["counts"][:known] for _, part in parts])
    means = [part["prototypes"][:known].double() for _, part in parts]
    weights = [(labelled_weight + row.double())[:, None] for row in counts]
    labelled = begun["prototypes"].double()
    added = sum(weight * mean - labelled_weight * labelled for weight, mean in zip(weights, means, strict=True))
    together = labelled_weight * labelled + added
    together = torch.where(together.norm(dim=1, keepdim=True) > 1e-6, F.normalize(together, dim=1), labelled)
    prototypes = _unless_one_moved(labelled, means, together).to(begun["prototypes"].dtype)
    return {
        "prototypes": torch.cat([prototypes, *(part["prototypes"][known:] for _, part in parts)]),
        "counts": torch.cat([counts.sum(dim=0), *(part["counts"][known:] for _, part in parts)]),
        "last": torch.cat([torch.stack([last[:known] for last in lasts]).amax(dim=0), *(one[known:] for one in lasts)]),
        "ids": torch.cat([torch.arange(known), *(part["ids"][known:] + site.numbers.shift for site, part in parts)]),
        "next_id": torch.stack([part["next_id"] + site.numbers.shift for site, part in parts]).amax(),
        "known": begun["known"],
    }


def _groups(sites: Sequence[Learned]) -> dict[str, Tensor]:
    """Return the groups that last as long as the stream, where the settings have such."""
    found: dict[int, tuple[Tensor, int]] = {}
    for site, slots in zip(sites, _slots(sites), strict=True):
        part = site.part("groups")
        for row, slot in enumerate(part["kept_ids"].tolist() if "kept_ids" in part else ()):
            place = int(slots[slot])
            total, number = found.get(place, (torch.zeros_like(part["kept_sums"][row]), 0))
            found[place] = total + part["kept_sums"][row], number + int(part["kept_sizes"][row])
    if not found:
        return {}
    return {
        "kept_ids": torch.tensor(list(found)),
        "kept_sums": torch.stack([total for total, _ in found.values()]),
        "kept_sizes": torch.tensor([number for _, number in found.values()]),
    }


def _rule(begun: State, sites: Sequence[Learned], total: int) -> dict[str, Tensor]:
    parts = [site.part("rule") for site in sites]
    known = int(begun["beliefs.known"])
    beliefs = {}
    for name in ("beliefs.counts", "beliefs.sums"):
        labelled, rows = begun[name], [part[name][:known] for part in parts]
        together = labelled + sum((row - labelled for row in rows), torch.zeros_like(labelled))
        beliefs[name] = _unless_one_moved(labelled, rows, together)
    gone = beliefs["beliefs.counts"] <= 0.0  # every site's people took labelled images out
    beliefs["beliefs.counts"][gone], beliefs["beliefs.sums"][gone] = 0.0, 0.0
    for name, value in beliefs.items():
        beliefs[name] = torch.cat([value, *(part[name][known:] for part in parts)])
    return {
        **beliefs,
        "beliefs.known": begun["beliefs.known"],
        **_recent(sites, total),
        "answered": torch.tensor(sum(int(part["answered"]) for part in parts)),
        "discovered": torch.tensor(sum(int(part.get("discovered", 0)) for part in parts)),
        "lately": torch.cat([part["lately"] for part in parts if "lately" in part] or [NO_ANSWERS]),
        "adaptations": torch.tensor(sum(int(part["adaptations"]) for part in parts)),
    }


def _recent(sites: Sequence[Learned], total: int) -> dict[str, Tensor]:
    """Return the images that may still move: of the last sites, as far back as no image is missing in between."""
    kept: dict[str, list[Tensor]] = {"coordinates": [], "answers": [], "homes": []}
    for site, slots in reversed(list(zip(sites, _slots(sites), strict=True))):
        part = site.part("rule.recent")
        for name, values in kept.items():
            row = part[name]
            if name != "coordinates":
                row = torch.where(row >= 0, slots[row.clamp(min=0)], -1)
            values.insert(0, row)
        if len(part["answers"]) != site.answered:
            break
    recent = {f"recent.{name}": torch.cat(values) for name, values in kept.items()}
    return {**recent, "recent.pushed_out": torch.tensor(total - len(recent["recent.answers"]))}


def _slots(sites: Sequence[Learned]) -> list[Tensor]:
    """Return for every site what its slots ``(K,)`` become: known classes, then the categories site by site."""
    found, size = [], 0
    for site in sites:
        known, slots = site.numbers.known, torch.arange(len(site.part("memory")["ids"]))
        found.append(torch.where(slots < known, slots, slots + size))
        size += len(slots) - known
    return found


def _unless_one_moved(labelled: Tensor, rows: Sequence[Tensor], together: Tensor) -> Tensor:
    """Return ``together``, but where one site alone has learned something, its very rows: sums would round them."""
    moved = torch.stack([(row != labelled).reshape(len(row), -1).any(dim=1) for row in rows])
    result, number = together.clone(), moved.sum(dim=0)
    result[number == 0] = labelled[number == 0]
    for row, changed in zip(rows, moved, strict=True):
        alone = changed & (number == 1)
        result[alone] = row[alone]
    return result
