"""Encoder and owner as they are, without Ray: what they give, and that all of it may be asked twice."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from talon_ocd import Talon
from talon_ocd.durable.pictures import thumbnail
from talon_ocd.errors import ConfigError
from talon_ocd.images import ImageItem, ImageSource, stream
from talon_ocd.images.tars import Member
from talon_ocd.scale.batching import Batch, Batching
from talon_ocd.scale.encoder import Encoded, Encoder, Head, Work, shrunk
from talon_ocd.scale.owner import Answers, Owner
from talon_ocd.scale.portable import portable, without_pixels
from talon_ocd.scale.rates import OWNER, Rates
from talon_ocd.scale.settings import RaySettings, Wanted
from tests.cli.running import bad_folder

FEATURES = Wanted(features=True, hidden=False, thumbnails=False)
HIDDEN = Wanted(features=False, hidden=True, thumbnails=True)
BOTH = Wanted(features=True, hidden=True, thumbnails=False)


def encoder(model: Path) -> Encoder:
    return Encoder(str(model), 1, None)


def batch_of(items: list[ImageItem], first: int = 0) -> Batch:
    full = Batching(first, len(items), 64).add(0, items, [None] * len(items))
    return full[0]


def ask(owner: Owner, encoder: Encoder, items: list[ImageItem], wanted: Wanted, head: Head | None = None) -> Answers:
    """Answer items as the next batch, the way that the driver does it."""
    batch = batch_of(items, owner.opened().answered)
    _, centres, small = encoder.decode(items, wanted)
    encoded, _ = encoder.encode(batch.cuts, wanted, head, centres)
    answers = owner.observe(batch, encoded, *([small] if wanted.thumbnails else []))
    assert answers is not None
    return answers


def test_an_encoder_tells_what_it_can_not_use(model: Path, tmp_path: Path) -> None:
    good, _ = bad_folder(tmp_path / "in")
    items = stream(tmp_path / "in").items
    (reasons, work), centres, small = encoder(model).decode(items, HIDDEN)
    assert {Path(item.source).name for item, why in zip(items, reasons, strict=True) if why is None} == good
    assert len(centres) == len(small) == len(good) and (work.stage, work.images) == ("decode", len(items))
    talon = Talon.from_pretrained(model)
    crop = talon.backbone.preprocessing.crop
    assert centres.shape[1:] == (3, crop, crop) and centres.dtype == np.uint8


def test_features_and_trunk_outputs_are_those_of_the_stream(model: Path, incoming_folder: Path) -> None:
    items, alone = stream(incoming_folder).items[:20], Talon.from_pretrained(model).stream()
    worker, batch = encoder(model), batch_of(stream(incoming_folder).items[:20])
    _, centres, small = worker.decode(items, BOTH)
    given, work = worker.encode(batch.cuts, BOTH, None, centres)
    canvases = [alone.backbone.preprocessing.canvas(item.load()) for item in items]
    hidden = alone.encode_loaded(canvases)
    assert given.hidden is not None and given.features is not None and given.version == 0 and small == []
    assert np.array_equal(given.hidden, hidden.numpy())
    assert np.array_equal(given.features, alone.adapter.encode(hidden).numpy())
    assert (work.stage, work.images) == ("encode", 20)


def test_a_feature_carries_the_version_of_its_head(model: Path, incoming_folder: Path) -> None:
    items, worker = stream(incoming_folder).items[:4], encoder(model)
    moved = {
        name: value.numpy() + 1 for name, value in Talon.from_pretrained(model).stream().adapter.state_dict().items()
    }
    _, centres, _ = worker.decode(items, FEATURES)
    cuts = batch_of(items).cuts
    first, again = (
        worker.encode(cuts, FEATURES, None, centres)[0],
        worker.encode(cuts, FEATURES, Head(3, moved), centres)[0],
    )
    assert (first.version, again.version) == (0, 3) and first.hidden is None
    assert not np.array_equal(first.features, again.features)  # type: ignore[arg-type]


def test_an_owner_answers_a_batch_once(model: Path, incoming_folder: Path, tmp_path: Path) -> None:
    """A reply that got lost is read from the journal, by this owner and by one that was started in its place."""
    items, worker = stream(incoming_folder).items[:20], encoder(model)
    owner = Owner(str(model), str(tmp_path / "stream"), {"adapt": "prototypes,encoder"}, 1, None)
    batch = batch_of(items)
    _, centres, small = worker.decode(items, HIDDEN)
    encoded, _ = worker.encode(batch.cuts, HIDDEN, None, centres)
    first, again = (owner.observe(batch, encoded, small) for _ in range(2))
    assert first is not None and again is not None and again.decisions == first.decisions
    assert owner.opened().answered == 20 and owner.close() == ()
    heir = Owner(str(model), str(tmp_path / "stream"), {}, 1, None)
    inherited = heir.observe(batch, encoded, small)
    assert inherited is not None and inherited.decisions == first.decisions
    assert heir.opened().answered == 20 and heir.opened().adapt == ("prototypes", "encoder")
    assert heir.seen([item.key for item in stream(incoming_folder).items]) == {item.key for item in items}
    heir.close()


def test_a_batch_waits_for_its_turn(model: Path, incoming_folder: Path) -> None:
    owner = Owner(str(model), None, {}, 1, None)
    assert owner.observe(batch_of(stream(incoming_folder).items[:2], first=5), Encoded(0, None, None)) is None
    assert owner.opened().answered == 0 and owner.close() == ()


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_head_that_is_too_old_is_run_again(model: Path, incoming_folder: Path, staleness: int) -> None:
    """The encoder never hears of a new head here; with 0 every feature is made anew, and answers are those of one."""
    items = stream(incoming_folder).items
    options: dict[str, Any] = {"threshold": 0.8, "adapt": "prototypes,encoder"}
    talon = Talon.from_pretrained(model)
    every = talon.config.online.adapt_every
    items = (items * 4)[: 5 * every]
    alone = talon.stream(**options)
    wanted = [alone.observe_many(items[start : start + every]) for start in range(0, len(items), every)]
    owner, worker = Owner(str(model), None, options, 1, staleness), encoder(model)
    found = [ask(owner, worker, items[start : start + every], BOTH) for start in range(0, len(items), every)]
    versions = [answers.head.version if answers.head else None for answers in found]
    assert versions[:4] == [None, 1, None, 2], "the guard took the first steps, each at the adaptation after its own"
    behind = [0, 0, 1, 1, 2]
    assert [answers.behind for answers in found] == behind
    assert [answers.encoded_anew for answers in found] == [at > staleness for at in behind]
    same = [answers.decisions for answers in found] == wanted
    assert same == (staleness == 0)


def test_small_pictures_become_the_thumbnails_of_one_process() -> None:
    canvas = torch.randint(0, 256, (3, 256, 320), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    assert thumbnail(torch.from_numpy(shrunk(canvas))) == thumbnail(canvas)


def test_images_of_compressed_archives_travel_with_their_bytes(packed: ImageSource) -> None:
    item = packed.items[0]
    assert isinstance(item.payload, Member) and isinstance(portable(item).payload, bytes)
    assert portable(item).load().tobytes() == item.load().tobytes() and portable(item).key == item.key
    assert not isinstance(without_pixels(item).payload, bytes | Member)
    plain = ImageItem("a", None, "key", b"bytes")
    assert portable(plain) is plain and without_pixels(plain) is plain


def test_relative_paths_are_found_from_anywhere(
    incoming_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ray that was started elsewhere has another working folder than the command; names stay as they were given."""
    shutil.copytree(incoming_folder, tmp_path / "photos")
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        archive.add(tmp_path / "photos", "photos")
    monkeypatch.chdir(tmp_path)
    items = [stream("photos").items[0], stream("photos.tar").items[0]]
    sent = [portable(item) for item in items]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert sent == items and all(item.source.startswith("photos") for item in sent)
    assert sent[0].load().tobytes() == sent[1].load().tobytes()


def test_encoders_give_what_an_owner_needs() -> None:
    exact, late = RaySettings(), RaySettings(mode="async")
    assert exact.wanted(("prototypes",), lasting=True) == Wanted(features=True, hidden=False, thumbnails=True)
    assert exact.wanted(("prototypes", "encoder"), lasting=False) == Wanted(False, True, False)
    assert late.wanted(("encoder",), lasting=False) == Wanted(True, True, False)
    assert late.wanted((), lasting=True) == Wanted(True, False, True)
    with pytest.raises(ConfigError, match="keeps no journal"):
        late.wanted(("encoder",), lasting=True)


def test_restarts_are_counted_by_who_was_started_again() -> None:
    """Of three encoders one had nothing to do and one died: the idle one does not hide that."""
    rates = Rates(encoders=3)
    for life, actor in (("a", 0), ("b", 1), ("c", 1), ("owner", OWNER)):
        rates.add(Work("encode", life, 1, 0.1), actor)
    assert (rates.facts()["encoder_restarts"], rates.facts()["owner_restarts"]) == (1, 0)
    rates.begun("d", 2)
    rates.add(Work("encode", "e", 1, 0.1), 2)
    assert rates.facts()["encoder_restarts"] == 2, "it died before it had done anything"


def test_an_encoder_reserves_what_is_counted() -> None:
    assert (RaySettings().cpus_per_encoder, RaySettings(gpus_per_encoder=0.5).cpus_per_encoder) == (1, 0)
