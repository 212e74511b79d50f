"""Several processes train as one does with the same batches: same losses, same head, to rounding."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch import distributed as dist
from torch.multiprocessing.spawn import spawn

from talon_ocd import Talon
from talon_ocd.backbones import EfficientNetLite0, Paired
from talon_ocd.backbones.texture import Texture
from talon_ocd.config import OfflineConfig, TalonConfig
from talon_ocd.errors import DataError, TalonError
from talon_ocd.images import ImageItem
from talon_ocd.images.items import memory_item
from talon_ocd.offline import ALONE, Labelled, Processes, TrunkCache, joined
from talon_ocd.offline.trainer import train_head
from tests.cli.running import talon
from tests.offline.standin import StandIn, some_digits
from tests.time_limit import time_limit

COUNT = 61
"""With batches of 20 the last one has a single image, so that one of two processes has none of it."""
RUNS = {
    "margin": OfflineConfig(epochs=3, batch_size=20, classifier="margin", views=2, warmup_epochs=1),
    "both": OfflineConfig(epochs=2, batch_size=30, classifier="linear", views=3, classifier_views="both"),
    "sum": OfflineConfig(epochs=1, batch_size=30, views=2, reduction="sum", classifier_weight=0.0, lr_encoder=1e-4),
    "fresh": OfflineConfig(epochs=1, batch_size=30, views=0, augmentation="gcd"),
}
TEXTURED = (0, 1)
"""Epochs of models with texture: one with that of the pre-trained head, one with that of the trained head as well."""
TOO_MANY = "2 processes can't share batches of 1 images; start fewer, or raise offline.batch_size."
SETTINGS = TalonConfig().override(epochs=1, views=2)


def items() -> list[ImageItem]:
    return [*some_digits(COUNT)[0], memory_item(b"junk", "broken.png", "0")]


def trained(config: OfflineConfig, processes: Processes, checkpoint: Path | None = None) -> dict[str, Tensor]:
    """Train a small head; returns its weights, the classifier's and the losses."""
    backbone = StandIn()
    with TrunkCache(backbone, memory_bytes=10**8, disk_bytes=0, augmentation=config.augmentation) as cache:
        known = Labelled.from_items(items(), backbone, config, cache, processes=processes)
        report = train_head(
            backbone.head, backbone.head_parameter_names("head"), known.views, known.labels, torch.eye(4, 16), config,
            0, checkpoint=checkpoint, share=known.share,
        )  # fmt: skip
        seen = torch.tensor(backbone.counter.seen)
    losses = torch.tensor([list(loss.values()) for loss in report.losses], dtype=torch.float64)
    facts = {"losses": losses, "seen": seen, "resumed": torch.tensor(report.resumed_from)}
    return {**backbone.head.state_dict(), "classifier": report.classifier_weights, **facts}


def fitted(epochs: int, processes: Processes) -> dict[str, Tensor]:
    """Fit a model with texture; returns its head and its prototypes."""
    torch.manual_seed(0)  # the weights of the encoder
    config = TalonConfig().override(epochs=epochs, texture=4, trained_weight=1.0, views=2, batch_size=20)
    config = config.override(rounds=1, orders=1, grid=4, try_untrained=False)
    talon = Talon(EfficientNetLite0(image_size=64), config)
    talon.fit(items(), processes=processes)
    assert isinstance(talon.backbone, Paired) and len(talon.backbone.head.textures) == (2 if epochs else 1)
    return {**talon.backbone.head.state_dict(), "prototypes": talon.memory.prototypes}


def refusal(work: Callable[[], object]) -> list[str]:
    with pytest.raises(TalonError) as caught:
        work()
    return [type(caught.value).__name__, str(caught.value)]


def not_here(texture: Texture, local: Tensor) -> None:
    raise AssertionError(f"{len(local)} images came to a process that shall not learn from them")


def uneven(processes: Processes) -> None:
    with processes.together():
        if processes.rank == 1:
            raise DataError("the second one has bad luck.")


def member(rank: int, folder: Path) -> None:
    """Do all that the tests look at as one of two processes."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    with joined() as processes:
        for name, config in RUNS.items():
            save_file(trained(config, processes), folder / f"{name}-{rank}.safetensors")
        checkpoint = folder / f"own-{rank}" / "training.safetensors"  # the second process sees no file of the first
        trained(RUNS["margin"], processes, checkpoint)
        again = trained(RUNS["margin"], processes, checkpoint)
        save_file(again, folder / f"again-{rank}.safetensors")
        if rank == 1:
            pytest.MonkeyPatch().setattr(Texture, "learn", not_here)  # the first process does, for all
        for epochs in TEXTURED:
            save_file(fitted(epochs, processes), folder / f"textured-{epochs}-{rank}.safetensors")
        facts = {
            "checkpoint": checkpoint.exists(),
            "map": processes.map(lambda value: value**2, [1, 2, 3]),
            "uneven": refusal(lambda: uneven(processes)),
            "batch": refusal(lambda: trained(replace(RUNS["both"], batch_size=1), processes)),
            "differ": refusal(lambda: Talon(StandIn(), SETTINGS.override(seed=rank)).fit(items(), processes=processes)),
            "same": processes.from_first(rank),
        }
        (folder / f"{rank}.json").write_text(json.dumps(facts), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes leave behind."""
    folder = tmp_path_factory.mktemp("two")
    with time_limit():
        spawn(member, (folder,), nprocs=2, daemon=True)  # they end with this process, however it ends
    return folder


def facts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_as_one_does(two: Path, name: str) -> None:
    alone = trained(RUNS[name], ALONE)
    first, second = (load_file(two / f"{name}-{rank}.safetensors") for rank in (0, 1))
    start = StandIn().head.state_dict()
    assert any(not torch.equal(alone[key], start[key]) for key in start)
    for key in set(alone) - {"seen"}:
        torch.testing.assert_close(first[key], alone[key], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(second[key], first[key], rtol=0, atol=0)
    assert first["seen"] + second["seen"] == alone["seen"] and min(first["seen"], second["seen"]) > 0


def test_the_first_process_writes_and_all_resume_from_it(two: Path) -> None:
    assert [one["checkpoint"] for one in facts(two)] == [True, False]
    for rank in (0, 1):
        whole, again = load_file(two / f"margin-{rank}.safetensors"), load_file(two / f"again-{rank}.safetensors")
        assert int(again.pop("resumed")) == RUNS["margin"].epochs
        for key in set(again) - {"seen"}:
            assert torch.equal(again[key], whole[key])


@pytest.mark.parametrize("epochs", TEXTURED)
def test_textures_are_learned_once_and_models_are_those_of_one_process(two: Path, epochs: int) -> None:
    alone = fitted(epochs, ALONE)
    first, second = (load_file(two / f"textured-{epochs}-{rank}.safetensors") for rank in (0, 1))
    assert first.keys() == alone.keys() and all(torch.equal(first[name], second[name]) for name in first)
    for part in ("texture", "second_texture")[: 1 + epochs]:
        same = (first[f"{part}.directions"].T @ alone[f"{part}.directions"]).abs()  # a direction may be turned round
        torch.testing.assert_close(same, torch.eye(4), rtol=0, atol=1e-3)
    cosines, wanted = (found["prototypes"] @ found["prototypes"].T for found in (first, alone))  # whatever is turned
    torch.testing.assert_close(cosines, wanted, rtol=0, atol=1e-3)
    torch.testing.assert_close(first["centres"], alone["centres"], rtol=0, atol=1e-3)


def test_two_processes_train_the_second_head_as_one_does(two: Path) -> None:
    """Weights whose gradients are nearly 0 may step either way, so that only all of them together are compared."""
    alone, both = fitted(1, ALONE), load_file(two / "textured-1-0.safetensors")
    names = [name.removeprefix("first.") for name in alone if name.startswith("first.")]
    start, one, other = (
        torch.cat([found[f"{head}.{name}"].flatten() for name in names])
        for found, head in ((alone, "first"), (alone, "second"), (both, "second"))
    )
    assert (other - one).norm() < 1e-3 * (one - start).norm()


def test_a_failure_of_one_is_told_by_it_and_ends_all(two: Path) -> None:
    first, second = facts(two)
    assert second["uneven"] == ["DataError", "the second one has bad luck."]
    assert first["uneven"] == ["PeerError", "process 2 of 2 failed; its own message says why."]
    assert first["batch"] == ["ConfigError", TOO_MANY] and second["batch"][0] == "PeerError"
    assert first["differ"][0] == "DataError" and "process 2 of 2 has other settings or images" in first["differ"][1]
    assert second["differ"][0] == "PeerError"
    assert first["map"] == second["map"] == [1, 4, 9] and first["same"] == second["same"] == 0


def test_the_command_under_torchrun(known_folder: Path, tmp_path: Path) -> None:
    (data := tmp_path / "data").mkdir()
    for folder in known_folder.iterdir():
        (data / folder.name).symlink_to(folder)
    (data / "4").mkdir()
    (data / "4" / "broken.png").write_bytes(b"junk")
    words = ["fit", str(data), "--backbone", "tiny-vit", "--image-size", "16", "--epochs", "2", "--set", "views=2"]
    words += ["--set", "batch_size=32", "--set", "rounds=1", "--set", "orders=1", "--set", "try_untrained=false"]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        "-m",
        "talon_ocd",
    ]
    own = ["-o", str(tmp_path / "two"), "--cache", str(tmp_path / "cache")]
    ended = subprocess.run([*command, *words, *own], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("4 known classes from 80 images") == 1 and ended.stderr.count("Training: 160/160") == 1
    assert ended.stderr.count("broken.png") == 1 and "FutureWarning" not in ended.stderr
    assert talon(*words, "-o", tmp_path / "one").code == 0
    one, two = (Talon.from_pretrained(tmp_path / name) for name in ("one", "two"))
    curves = [[epoch["loss"] for epoch in model.report["training"]["losses"]] for model in (one, two)]
    assert curves[0] == pytest.approx(curves[1], rel=1e-4) and len(curves[0]) == 2
    torch.testing.assert_close(two.memory.prototypes, one.memory.prototypes, rtol=1e-3, atol=1e-4)
    assert one.probe is not None and two.probe is not None and one.evidence is not None and two.evidence is not None
    assert torch.equal(two.probe.hidden, one.probe.hidden) and torch.equal(two.probe.labels, one.probe.labels)
    assert two.evidence.offset == pytest.approx(one.evidence.offset, abs=3)  # few images: rounding may tip one of them
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["process-0-of-2", "process-1-of-2"]
    assert not list((tmp_path / "two").glob(".*"))
