"""Streams and archives on a Ray of two CPUs, which this file starts and stops; all tests that need one are here."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tarfile
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from talon_ocd import Talon
from talon_ocd.backbones import get_backbone
from talon_ocd.durable import Journal
from talon_ocd.embeddings import archive, write_archive
from talon_ocd.errors import ConfigError, StreamError
from talon_ocd.images import ImageItem, Skipped, file_item, in_memory, stream
from talon_ocd.online import Decision
from talon_ocd.scale.chunks import Chunk
from talon_ocd.scale.portable import BYTES, bytes_to_send
from talon_ocd.scale.settings import RaySettings
from tests import tiny
from tests.cli.running import refused, talon
from tests.scale.mortal import Deadly
from tests.scale.store import BUCKET, KEYS, store_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of Ray's own models
    ray = pytest.importorskip("ray", reason="streams on Ray need the extra ray")
    pytest.importorskip("ray.data", reason="archives on Ray need the extra ray")
    from talon_ocd.scale import embed, flow, reading
    from talon_ocd.scale import stream as stream_module
    from talon_ocd.scale.connection import connected
    from talon_ocd.scale.embed import RayEmbedder
    from talon_ocd.scale.reading import ReadAhead
    from talon_ocd.scale.storage import stored
    from talon_ocd.scale.stream import RayStream

BOTH: dict[str, Any] = {"threshold": 0.8, "adapt": "prototypes,encoder"}
TWO = RaySettings(encoders=2)


kills = pytest.mark.skipif(sys.platform == "win32", reason="processes are killed with SIGKILL")


@pytest.fixture(scope="module", autouse=True)
def on_ray() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():  # readers have the environment that Ray was started with
            patch.setenv(name, value)
        with connected(TWO) as encoders:
            assert encoders == 2
            yield
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def often(fitted: Talon, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose streams adapt every 16 answers, so that a short stream has many boundaries."""
    folder = tmp_path_factory.mktemp("often") / "model"
    fitted.save_pretrained(folder)
    eager = Talon.from_pretrained(folder)
    eager.config = eager.config.override(adapt_every=16)
    assert eager.probe is not None
    eager.probe = tiny.some_of(eager.probe, 32)
    eager.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def items(incoming_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[ImageItem]:
    """Digits, and two files between them that are no pictures."""
    found = stream(incoming_folder).items
    for at in (5, 40):
        broken = tmp_path_factory.mktemp("broken") / f"{at}.png"
        broken.write_bytes(b"no picture")
        found.insert(at, stream(broken).items[0])
    return found


def of_all_kinds(folder: Path, beside: Path) -> list[ImageItem]:
    """Return images of a folder, of a manifest and of a tar shard."""
    files = [Path(item.source) for item in stream(folder).items[:60]]
    (beside / "some.csv").write_text("\n".join(["path", *map(str, files[20:40])]))
    with tarfile.open(beside / "some.tar", "w") as shard:
        for at, file in enumerate(files[40:]):
            shard.add(file, f"{at}.png")
    return [*map(file_item, files[:20]), *stream(beside / "some.csv").items, *stream(beside / "some.tar").items]


def alone(model: Path, items: list[ImageItem], **options: Any) -> tuple[list[Decision], list[Skipped]]:
    """Answer items in this process."""
    skipped: list[Skipped] = []
    return list(Talon.from_pretrained(model).stream(**options).run(items, skipped.append)), skipped


def written(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return what a journal says, but for the times."""
    journal = Journal(folder)
    try:
        tables = {
            "decisions": "idx, source, key, category, verdict, similarity, runner_up, batch, steps FROM decisions",
            "features": "idx, feature FROM features",
            "events": "seq, answered, kind, category, data FROM events",
            "skipped": "source, reason FROM skipped",
        }
        return {
            name: [tuple(row) for row in journal.query(f"SELECT {what} ORDER BY 1")] for name, what in tables.items()
        }
    finally:
        journal.close()


def test_exact_gives_the_answers_of_one_process(often: Path, items: list[ImageItem]) -> None:
    skipped: list[Skipped] = []
    with RayStream(often, settings=TWO, **BOTH) as spread:
        answers = list(spread.run_items(items, skipped.append))
        facts = spread.rates.facts()
    assert ([decision for decision, _ in answers], skipped) == alone(often, items, **BOTH)
    assert [item for _, item in answers] == [item for item in items if item.source not in {s.source for s in skipped}]
    assert facts["encoder_restarts"] == facts["owner_restarts"] == facts["batches_encoded_anew"] == 0
    assert set(facts["images_per_second_at_work"]) == {"decode", "encode", "decide"}


@kills
def test_async_keeps_its_bound_and_an_owner_in_memory_can_not_be_replaced(often: Path, items: list[ImageItem]) -> None:
    with RayStream(often, settings=RaySettings(encoders=1, mode="async", staleness=1), **BOTH) as spread:
        answers = list(spread.run_items(items))
        assert spread.rates.most_behind <= 1 and spread.categories > 0
        assert [decision.index for decision, _ in answers] == list(range(100)) and spread.answered == 100
        os.kill(spread.processes()[-1], signal.SIGKILL)
        with pytest.raises(StreamError, match="give --stream FOLDER"):
            list(spread.run_items(items))


@kills
def test_killed_processes_change_nothing(often: Path, items: list[ImageItem], tmp_path: Path) -> None:
    """Both encoders and the owner die on the way; then, at an adaptation, one process goes on with the folder."""
    model, half = Talon.from_pretrained(often), items[:66]
    with model.stream(tmp_path / "alone", **BOTH) as one:
        wanted = list(one.run(items))
    with RayStream(often, tmp_path / "spread", TWO, **BOTH) as spread:
        first, second, owner = spread.processes()
        victims = {1: first, 20: owner, 40: second}
        found = []
        for decision, _ in spread.run_items(half):
            found.append(decision)
            if decision.index in victims:
                os.kill(victims[decision.index], signal.SIGKILL)
        assert len({first, second, owner, *spread.processes()}) == 6, "all of them are other processes now"
        assert [item for item in spread.unseen(items) if item.label] == items[66:], "all others were answered"
        assert spread.journal is not None and spread.journal.answered == len(found) == 64
    assert found == wanted[:64]
    with model.stream(tmp_path / "spread") as one:
        assert [decision for decision in one.run(items)] == wanted[64:]
    assert written(tmp_path / "spread") == written(tmp_path / "alone")


@kills
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray Data's context, about itself
def test_images_of_a_store_come_through_ray_data(often: Path, incoming_folder: Path, tmp_path: Path) -> None:
    """An encoder dies over what was read for it, an image is gone, and what was answered is not read a second time."""
    store = Path(shutil.copytree(incoming_folder, tmp_path / "store"))
    items = stored(store.as_uri()).items
    gone, missing = items[20], items[20].source.removeprefix("file://")
    Path(missing).unlink()
    wanted, _ = alone(often, items, **BOTH)
    found: list[Decision] = []
    skipped: list[Skipped] = []
    with RayStream(often, tmp_path / "spread", TWO, **BOTH) as spread:
        victim = spread.processes()[0]
        os.kill(victim, signal.SIGKILL)  # the first chunks go to it
        found += [decision for decision, _ in spread.run_items(items[:49], skipped.append)]
        assert victim not in spread.processes()
        assert spread.rates.facts()["encoder_restarts"] == 1, "also of one that had done nothing yet"
        assert [one.source for one in skipped] == [gone.source] and "is it still there?" in skipped[0].reason
        for item in items[:49]:
            Path(item.source.removeprefix("file://")).unlink(missing_ok=True)
        found += [decision for decision, _ in spread.run_items(items[:20] + items[21:], skipped.append)]
    assert found == wanted and len(skipped) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray Data's context, about itself
def test_what_is_read_ahead_are_the_bytes_in_order(incoming_folder: Path, tmp_path: Path) -> None:
    items = stored(incoming_folder.as_uri()).items[:30]
    empty, odd = tmp_path / "0.png", tmp_path / os.fsdecode(b"\xff.png")
    empty.touch()
    shutil.copy(items[0].source.removeprefix("file://"), odd)
    local = [file_item(odd), file_item(tmp_path / "gone.png"), *of_all_kinds(incoming_folder, tmp_path)]
    items[3:3] = [*stored(empty.as_uri()).items, *in_memory([np.zeros((8, 8, 3), np.uint8)]).items, *local]
    ahead, read = ReadAhead(items, 8, 2), []
    with closing(ahead):
        while not ahead.over:
            if chunk := ahead.take():
                read += list(zip(chunk.items, ray.get(chunk.block)[BYTES].to_pylist(), strict=True))
    assert [item for item, _ in read] == items
    assert [at for at, (_, data) in enumerate(read) if data is None] == [3, 4, 5, 6], (
        "the encoder says why, or reads it"
    )
    for item, data in read:
        if data:
            assert replace(item, payload=data).load().tobytes() == item.load().tobytes()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray Data's context, about itself
def test_files_go_through_ray_data_if_asked_for(
    often: Path, incoming_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of folders, manifests and tar shards; a file that can't be used is told as ever."""
    items = of_all_kinds(incoming_folder, tmp_path)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    items.insert(10, file_item(tmp_path / "broken.png"))
    read: list[ImageItem] = []
    skipped: list[Skipped] = []

    class Heard(ReadAhead):
        def take(self) -> Chunk | None:
            taken = super().take()
            read.extend(taken.items if taken else [])
            return taken

    monkeypatch.setattr(reading, "ReadAhead", Heard)
    with RayStream(often, settings=RaySettings(encoders=2, read_ahead=True), **BOTH) as spread:
        found = [decision for decision, _ in spread.run_items(items, skipped.append)]
    assert (found, skipped) == alone(often, items, **BOTH)
    assert read == items


def test_a_stream_takes_its_room_and_says_that_it_was_left_early(
    often: Path, items: list[ImageItem], monkeypatch: pytest.MonkeyPatch
) -> None:
    with RayStream(often, settings=TWO, **BOTH) as spread:
        with monkeypatch.context() as soon:
            soon.setattr(stream_module, "LONGEST_START", 0.5)
            with pytest.raises(ConfigError, match="0 of 1 encoders could start"):
                RayStream(often, settings=RaySettings(encoders=1), **BOTH).__enter__()
        answers = spread.run_items(items)
        monkeypatch.setattr(flow, "SILENCE", 1e-3)
        with pytest.warns(UserWarning, match=r"nothing has come from encoders or owner; .* The stream waits"):
            next(answers)
        answers.close()  # type: ignore[attr-defined]  # a generator
        with pytest.raises(StreamError, match="open it again"):
            list(spread.run_items(items))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray Data's context, about itself
def test_an_archive_is_the_file_of_one_process(
    known_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="embeddings need the extra parquet")
    """Also if the images must be sent, and go in two turns."""
    monkeypatch.setattr(archive, "CHUNK", 15)
    data = Path(shutil.copytree(known_folder, tmp_path / "data"))
    (data / "2" / "broken.png").write_bytes(b"no picture")
    with tarfile.open(tmp_path / "data.tar.gz", "w:gz") as packed:
        packed.add(data, "data")
    source, backbone = stream(tmp_path / "data.tar.gz"), get_backbone("tiny-vit", image_size=16)
    monkeypatch.setattr(embed, "MOST_SENT", sum(map(bytes_to_send, source.items)) // 2)
    alone = write_archive(tmp_path / "alone.parquet", source, backbone)
    spread = RayEmbedder(backbone, TWO)
    done = write_archive(tmp_path / "ray.parquet", source, backbone, engine=spread.all)
    assert done.images == alone.images == 80 and done.skipped == alone.skipped
    assert pq.read_table(tmp_path / "ray.parquet").equals(pq.read_table(tmp_path / "alone.parquet"))


@kills
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray Data's context, about itself
def test_a_chunk_that_kills_every_encoder_ends_the_archive(
    known_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "CHUNK", 15)
    monkeypatch.setattr(embed, "MOST_RETRIES", 1)
    source, backbone = stream(known_folder), get_backbone("tiny-vit", image_size=16)
    source.items[20] = replace(source.items[20], payload=Deadly(tmp_path / "deaths"))
    with pytest.raises(StreamError, match=r"died 1 times over the same images .* goes on from there"):
        write_archive(tmp_path / "ray.parquet", source, backbone, engine=RayEmbedder(backbone, TWO).all)
    assert (tmp_path / "deaths").read_text() == "xx", "once more, and no further"


def test_the_command_answers_an_address_on_ray(often: Path, incoming_folder: Path, tmp_path: Path) -> None:
    words = ("-m", often, "--quiet", "--adapt", "prototypes")
    with store_of(incoming_folder) as store:
        done = talon(
            "discover", store.address, "-o", tmp_path / "spread", *words, *("--engine", "ray", "--encoders", 1)
        )
    assert done.code == 0 and "Ray: 1 encoder (" in done.out
    talon("discover", incoming_folder, "-o", tmp_path / "alone", *words)
    spread, one = ((tmp_path / name / "decisions.jsonl").read_text() for name in ("spread", "alone"))
    assert spread.replace(f"s3://{BUCKET}", str(incoming_folder)) == one
    assert (tmp_path / "spread" / "second_thoughts.json").exists()


def test_options_that_do_not_fit_are_refused(often: Path, incoming_folder: Path, tmp_path: Path) -> None:
    words = ("discover", incoming_folder, "-m", often, "-o", tmp_path / "out")
    assert "are for --engine ray" in refused(*words, "--encoders", 2)
    assert "are for --engine ray" in refused(*words, "--read-ahead")
    assert "exact or async" in refused(*words, "--engine", "ray", "--mode", "sync")
    assert "at least 1" in refused(*words, "--engine", "ray", "--encoders", 0)
    assert "this Ray has 2" in refused(*words, "--engine", "ray", "--encoders", 3)
    assert "not standard input" in refused("discover", "-", *words[2:], "--engine", "ray")
