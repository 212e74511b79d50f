import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from talon_ocd import Talon, TalonConfig, TalonError
from talon_ocd.backbones import Paired, PairedHead
from talon_ocd.backbones.tiny import TinyViT
from talon_ocd.errors import ConfigError, DataError, NotFittedError
from talon_ocd.images import ImageItem, memory_item
from talon_ocd.online import CosineRule, EvidenceRule
from tests import tiny
from tests.offline.standin import Listener


def answers(talon: Talon, **options: Any) -> list[int]:
    return [decision.category for decision in talon.stream(**options).run(tiny.incoming())]


def test_fit_learns_names_prototypes_evidence_and_report(rehearsed: Talon) -> None:
    assert rehearsed.names == tiny.KNOWN
    assert (rehearsed.memory.size, rehearsed.memory.known) == (4, 4)
    torch.testing.assert_close(rehearsed.memory.prototypes.norm(dim=1), torch.ones(4))
    assert rehearsed.evidence is not None and rehearsed.evidence.counts.tolist() == [20, 20, 20, 20]
    assert rehearsed.evidence.offset == rehearsed.report["calibration"]["threshold"] and rehearsed.threshold == 0
    assert rehearsed.report["images"] == 80 and rehearsed.report["class_sizes"] == dict.fromkeys(tiny.KNOWN, 20)
    assert len(rehearsed.report["training"]["losses"]) == 8
    json.dumps(rehearsed.report, allow_nan=False)


def test_training_brings_classes_together_and_apart(fitted: Talon) -> None:
    before, after = fitted.report["angles_before"], fitted.report["angles_after"]
    assert after["between_mean"] / after["own_mean"] > before["between_mean"] / before["own_mean"]


def test_the_same_seed_gives_the_same_bytes_and_answers(rehearsed: Talon, tmp_path: Path) -> None:
    again = tiny.tiny_talon(epochs=8)
    again.fit(tiny.labelled())
    rehearsed.save_pretrained(tmp_path / "first")
    again.save_pretrained(tmp_path / "again")
    for name in ("encoder.safetensors", "evidence.safetensors", "memory.safetensors", "README.md"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()
    assert answers(again) == answers(rehearsed)
    other = tiny.tiny_talon(epochs=8, seed=4)
    other.fit(tiny.labelled())
    assert not torch.equal(other.memory.prototypes, rehearsed.memory.prototypes)


def test_evidence_decides_unless_a_number_is_given(fitted: Talon) -> None:
    for threshold in (None, "auto"):
        rule = fitted.stream(threshold=threshold).discovery.rule
        assert isinstance(rule, EvidenceRule) and rule.learns
    for number in (0.5, "0.5"):
        assert fitted.stream(threshold=number).discovery.rule == CosineRule(0.5, fitted.config.online.index_above)
    still = fitted.stream(adapt="none").discovery.rule
    assert isinstance(still, EvidenceRule) and not still.learns


def test_people_may_ask_for_finer_or_coarser_categories(fitted: Talon) -> None:
    found = [len(set(answers(fitted, finer=nats))) for nats in (-20.0, 0.0, 20.0)]
    assert found[0] < found[1] < found[2] and answers(fitted, finer=0.0) == answers(fitted)
    for threshold in (0.9, "0.9"):
        with pytest.raises(ConfigError, match="finer=3 is for streams that decide by evidence"):
            fitted.stream(threshold=threshold, finer=3.0)
    for nothing in (float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="finer must be a number of nats"):
            fitted.stream(finer=nothing)


def test_a_threshold_can_be_rehearsed() -> None:
    talon = tiny.tiny_talon(epochs=0, rule="cosine")
    talon.fit(tiny.labelled())
    assert talon.evidence is None and talon.threshold == talon.report["calibration"]["threshold"]
    for threshold in (None, "auto"):
        assert talon.stream(threshold=threshold).discovery.rule == CosineRule(
            talon.threshold, talon.config.online.index_above
        )


def test_heads_are_paired_if_there_is_training_and_the_settings_say_so() -> None:
    assert isinstance(tiny.tiny_talon(epochs=1).backbone, Paired)
    assert isinstance(tiny.tiny_talon(epochs=0).backbone, TinyViT)
    assert isinstance(tiny.tiny_talon(epochs=1, keep_pretrained=False).backbone, TinyViT)
    assert isinstance(tiny.tiny_talon("official").backbone, TinyViT)


def test_a_saved_model_stands_alone(fitted: Talon, model: Path) -> None:
    loaded = Talon.from_pretrained(model)
    assert (loaded.names, loaded.threshold, loaded.config) == (fitted.names, fitted.threshold, fitted.config)
    assert loaded.backbone.preprocessing == fitted.backbone.preprocessing
    assert answers(loaded) == answers(fitted)
    assert answers(loaded, adapt="none", threshold=0.9) == answers(fitted, adapt="none", threshold="0.9")


def test_a_folder_of_classes_is_enough(known_folder: Path) -> None:
    talon = tiny.tiny_talon(threshold=0.9)
    talon.fit(known_folder)
    assert talon.names == tiny.KNOWN and talon.threshold == 0.9 and "calibration" not in talon.report
    with pytest.raises(ConfigError, match=r"constant threshold \(0\.9\) and never rehearsed"):
        talon.stream(threshold="auto")


@pytest.mark.parametrize("views", [0, 2])
def test_where_the_pictures_lie_and_when_they_were_written_does_not_matter(
    views: int, known_folder: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(known_folder, tmp_path / "moved", copy_function=shutil.copyfile))
    models = [tiny.tiny_talon(threshold=0.9, epochs=1, views=views) for _ in range(2)]
    for talon, folder in zip(models, (known_folder, moved), strict=True):
        talon.fit(folder)
    assert torch.equal(models[0].memory.prototypes, models[1].memory.prototypes)


def test_the_paper_preset_runs() -> None:
    talon = tiny.tiny_talon("paper", epochs=1)
    talon.fit(tiny.labelled())
    assert talon.threshold == 0.75 and len(answers(talon)) == 100


def test_an_unfitted_model_says_so(tmp_path: Path) -> None:
    talon = Talon(TinyViT())
    for use in (talon.stream, lambda: talon.save_pretrained(tmp_path), lambda: talon.memory, lambda: talon.threshold):
        with pytest.raises(NotFittedError, match="fit"):
            use()


def test_a_backbone_by_name_and_a_preset() -> None:
    talon = Talon("tiny-vit", preset="official", image_size=16)
    assert talon.config == TalonConfig.official("tiny-vit") and talon.backbone.preprocessing.crop == 16


@pytest.mark.parametrize(
    ("items", "wanted"),
    [
        ([], "none of the 0 labelled images"),
        ([memory_item(b"x", "bad", "a"), memory_item(b"y", "worse", "b")], "none of the 2 labelled images"),
        ([memory_item(b"x", "bad")], "needs a label for every image"),
    ],
)
def test_data_that_teaches_nothing_is_refused(items: list[ImageItem], wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        tiny.tiny_talon().fit(items)


def test_bad_images_are_skipped_and_listed() -> None:
    talon = tiny.tiny_talon(threshold=0.9)
    talon.fit([*tiny.labelled(), memory_item(b"x", "bad.png", "0")])
    assert [skipped.source for skipped in talon.skipped] == ["bad.png"] and talon.report["images"] == 80
    assert [skipped["source"] for skipped in talon.report["skipped"]] == ["bad.png"]


@pytest.mark.parametrize(("threshold", "adapt"), [("high", None), ("nan", None), (None, "encoders")])
def test_a_stream_refuses_what_it_does_not_know(fitted: Talon, threshold: str | None, adapt: str | None) -> None:
    with pytest.raises(ConfigError):
        fitted.stream(threshold=threshold, adapt=adapt)


class Interrupt(Listener):
    """A progress that ends the training in the epoch after ``epochs``."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self._last = epochs * 80

    def advance(self, amount: int = 1, **facts: float | str) -> None:
        super().advance(amount, **facts)
        if self.done > self._last and "loss" in facts:
            raise KeyboardInterrupt


def test_an_interrupted_fit_continues_to_the_same_model(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 5, "threshold": 0.9, "batch_size": 32}
    whole = tiny.tiny_talon(**settings)
    whole.fit(tiny.labelled())
    checkpoint = tmp_path / "deep" / "training.safetensors"
    stopped = tiny.tiny_talon(**settings)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(tiny.labelled(), checkpoint=checkpoint, progress=Interrupt(3))
    kept = checkpoint.read_bytes()
    for talon in (tiny.tiny_talon(**settings), stopped):  # another process, or the very object
        checkpoint.write_bytes(kept)
        listener = Listener()
        talon.fit(tiny.labelled(), checkpoint=checkpoint, progress=listener)
        assert "Training continues after epoch 3." in listener.notes
        assert torch.equal(talon.memory.prototypes, whole.memory.prototypes)
        trained = talon.backbone.head.state_dict()
        assert all(torch.equal(value, trained[key]) for key, value in whole.backbone.head.state_dict().items())
        assert talon.report["training"]["losses"] == whole.report["training"]["losses"]


def test_an_interrupted_fit_leaves_the_model_as_it_was() -> None:
    talon = tiny.tiny_talon(epochs=3, threshold=0.9)
    talon.fit(tiny.labelled())
    expected = answers(talon)
    with pytest.raises(KeyboardInterrupt):
        talon.fit(tiny.labelled(), progress=Interrupt(1))
    assert answers(talon) == expected


def test_a_fit_may_leave_the_second_head_out_and_the_next_one_has_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    talon = tiny.tiny_talon(epochs=2, lr_encoder=5.0, try_untrained=True)
    two = talon.backbone.feature_size

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("talon_ocd.talon.choose_probe", interrupted)  # the last thing that a fit does
        with pytest.raises(KeyboardInterrupt):
            talon.fit(tiny.labelled())
    assert talon.backbone.feature_size == two  # as it was
    talon.fit(tiny.labelled())
    head = talon.backbone.head
    assert isinstance(head, PairedHead) and head.second is None and talon.memory.feature_size < two
    first = copy.deepcopy(head.first.state_dict())
    again = Talon(talon.backbone, talon.config.override(lr_encoder=1e-3, offset=0.0))
    again.fit(tiny.labelled())
    assert isinstance(again.backbone.head, PairedHead) and again.backbone.head.second is not None
    assert all(torch.equal(value, first[key]) for key, value in again.backbone.head.first.state_dict().items())
    assert again.memory.feature_size == two


def test_every_refusal_is_a_talon_error() -> None:
    with pytest.raises(TalonError):
        Talon("tiny-vti")
