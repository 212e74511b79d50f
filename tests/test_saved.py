import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from talon_ocd import PrototypeMemory, Talon
from talon_ocd.errors import ModelError, StorageError
from talon_ocd.memory import TwoCovariance
from talon_ocd.online import Evidence
from talon_ocd.saved import FORMAT_VERSION, make_folder, write_files
from tests import tiny

PARTS = ("encoder.safetensors", "evidence.safetensors", "memory.safetensors", "probe.safetensors")


@pytest.fixture
def copied(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "copied"))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "config.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    change(facts)
    path.write_text(json.dumps(facts), encoding="utf-8")


def test_the_folder_holds_six_files_for_people_and_machines(model: Path, fitted: Talon) -> None:
    assert sorted(path.name for path in model.iterdir()) == [
        "README.md", "config.json", "encoder.safetensors", "evidence.safetensors", "memory.safetensors",
        "probe.safetensors",
    ]  # fmt: skip
    facts = json.loads((model / "config.json").read_text(encoding="utf-8"))
    assert facts["format_version"] == FORMAT_VERSION and facts["names"] == list(fitted.names)
    assert facts["backbone"]["preprocessing"] == json.loads(json.dumps(fitted.backbone.preprocessing.to_dict()))
    card = (model / "README.md").read_text(encoding="utf-8")
    assert "4 known classes: 0, 1, 2, 3" in card and "decides by evidence" in card


def test_a_model_that_decides_by_cosine_has_no_evidence(tmp_path: Path) -> None:
    talon = tiny.tiny_talon("official", epochs=0)
    talon.fit(tiny.labelled())
    talon.save_pretrained(tmp_path)
    assert not (tmp_path / "evidence.safetensors").exists()
    assert talon.probe is None and not (tmp_path / "probe.safetensors").exists()  # official has no guard
    assert "decides by cosine, threshold 0.7500" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert Talon.from_pretrained(tmp_path).evidence is None


def test_the_encoder_comes_back_as_it_was_saved_whatever_the_settings_would_make_of_it(tmp_path: Path) -> None:
    talon = tiny.tiny_talon("official", epochs=1)
    talon.fit(tiny.labelled())
    talon.save_pretrained(tmp_path)
    edit(tmp_path, lambda facts: facts["config"]["offline"].pop("keep_pretrained"))  # the default would pair heads
    loaded = Talon.from_pretrained(tmp_path)
    expected = [decision.category for decision in talon.stream().run(tiny.incoming(20))]
    assert [decision.category for decision in loaded.stream().run(tiny.incoming(20))] == expected


def test_models_from_before_answers_counted_less_answer_as_they_did(tmp_path: Path) -> None:
    then: dict[str, Any] = {
        "concentration": "known", "answer_weight": 1.0, "share_prior": 50.0, "newest": 0, "regroup": 0,
        "least_share": 0.1, "share_weight": 3.5, "share_window": 0, "weigh_regrouping": False, "branch_below": 0.0,
    }  # fmt: skip
    talon = tiny.tiny_talon(**then)
    talon.fit(tiny.labelled())
    talon.save_pretrained(tmp_path)

    def as_before(facts: dict[str, Any]) -> None:
        for name in then:
            facts["config"]["evidence"].pop(name)
        facts["config"]["evidence"]["concentration"] = "auto"

    edit(tmp_path, as_before)
    loaded = Talon.from_pretrained(tmp_path)
    assert loaded.config == talon.config and loaded.fingerprint() == talon.fingerprint()
    expected = [decision.category for decision in talon.stream().run(tiny.incoming(40))]
    assert [decision.category for decision in loaded.stream().run(tiny.incoming(40))] == expected
    digest = talon.fingerprint()
    for change in (
        {"concentration": "auto"}, {"answer_weight": 0.5}, {"share_prior": 20.0}, {"newest": 8}, {"regroup": 8},
        {"least_share": 0.2}, {"share_weight": 4.0}, {"share_window": 64}, {"weigh_regrouping": True},
        {"branch_below": 1e-3},
    ):  # fmt: skip
        talon.config = loaded.config.override(**change)
        assert talon.fingerprint() != digest


def test_models_from_before_texture_and_the_weight_of_the_prior_answer_as_they_did(tmp_path: Path) -> None:
    prior: dict[str, Any] = {"prior_weight": 1.0, "share_weight": 1.0}
    talon = tiny.tiny_talon(epochs=0, texture=0, **prior, learn_share=False, concentration=50.0)
    talon.fit(tiny.labelled())
    talon.save_pretrained(tmp_path)

    def as_before(facts: dict[str, Any]) -> None:
        facts["config"]["offline"].pop("texture")
        for name in prior:
            facts["config"]["evidence"].pop(name)
        facts["config"]["evidence"].pop("learn_share")
        facts["config"]["evidence"].pop("smoothing_classes")
        facts["config"]["evidence"]["smoothing"] = 0.5

    edit(tmp_path, as_before)
    loaded = Talon.from_pretrained(tmp_path)
    assert loaded.config == talon.config and loaded.fingerprint() == talon.fingerprint()
    assert talon.config.to_dict()["evidence"]["prior_weight"] == 1.0


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("place", [4, -3])
def test_a_flipped_byte_is_noticed(copied: Path, name: str, place: int) -> None:
    data = bytearray((copied / name).read_bytes())
    data[place] ^= 1
    (copied / name).write_bytes(data)
    with pytest.raises(ModelError, match=rf"{name}: the checksum differs.*copy the model again"):
        Talon.from_pretrained(copied)


@pytest.mark.parametrize("name", [*PARTS, "config.json"])
def test_a_missing_file_is_named(copied: Path, name: str) -> None:
    (copied / name).unlink()
    with pytest.raises(ModelError, match=name):
        Talon.from_pretrained(copied)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[]", b"{}", b"3"])
def test_a_damaged_config_is_named(copied: Path, text: bytes) -> None:
    (copied / "config.json").write_bytes(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        Talon.from_pretrained(copied)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda facts: facts.update(format_version=7), "format version 7, this program reads 1"),
        (lambda facts: facts.pop("backbone"), "damaged"),
        (lambda facts: facts.update(backbone=3), "damaged"),
        (lambda facts: facts["backbone"]["architecture"].update(kind="huge"), "kind 'huge'"),
        (lambda facts: facts["backbone"]["architecture"]["base"].update(width=64), "damaged"),
        (lambda facts: facts["backbone"]["architecture"]["base"].update(kind="huge"), "kind 'huge'"),
        (lambda facts: facts["backbone"]["architecture"].pop("base"), "damaged"),
        (lambda facts: facts["config"].update(colour="red"), "'colour' is not known"),
        (lambda facts: facts.update(threshold="high"), "damaged"),
        (lambda facts: facts.update(names=["a"]), "1 names for 4"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_folder(copied: Path, change: Any, wanted: str) -> None:
    edit(copied, change)
    with pytest.raises(ModelError, match=wanted) as caught:
        Talon.from_pretrained(copied)
    assert str(copied) in str(caught.value) and "\n" not in str(caught.value)


def test_prototypes_of_another_encoder_are_refused(copied: Path) -> None:
    other = save(PrototypeMemory(torch.eye(4)).state_dict())
    (copied / "memory.safetensors").write_bytes(other)
    edit(copied, lambda facts: facts["sha256"].update({"memory.safetensors": hashlib.sha256(other).hexdigest()}))
    with pytest.raises(ModelError, match="the prototypes have 4 dimensions, the encoder gives"):
        Talon.from_pretrained(copied)


@pytest.mark.parametrize(("known", "coordinates", "size"), [(3, 2, 64), (4, 2, 5)])
def test_evidence_of_another_model_is_refused(copied: Path, known: int, coordinates: int, size: int) -> None:
    model = TwoCovariance(np.zeros(size), np.ones((size, coordinates)), np.ones(coordinates), 5.0)
    other = save(Evidence(model, np.ones(known), np.zeros((known, coordinates))).state_dict())
    (copied / "evidence.safetensors").write_bytes(other)
    edit(copied, lambda facts: facts["sha256"].update({"evidence.safetensors": hashlib.sha256(other).hexdigest()}))
    with pytest.raises(ModelError, match=r"evidence\.safetensors and memory\.safetensors do not belong together"):
        Talon.from_pretrained(copied)


def test_the_probe_comes_back_and_a_model_without_one_loads(copied: Path, fitted: Talon) -> None:
    loaded = Talon.from_pretrained(copied)
    assert loaded.probe is not None and fitted.probe is not None
    assert loaded.probe.hidden.dtype == torch.float16 and torch.equal(loaded.probe.hidden, fitted.probe.hidden)
    assert torch.equal(loaded.probe.labels, fitted.probe.labels)
    edit(copied, lambda facts: facts["sha256"].pop("probe.safetensors"))
    edit(copied, lambda facts: facts["config"].pop("guard"))
    (copied / "probe.safetensors").unlink()
    older = Talon.from_pretrained(copied)
    assert older.probe is None and len(list(older.stream().run(tiny.incoming(3)))) == 3


@pytest.mark.parametrize("change", [{"hidden": torch.zeros(2, 3, 4)}, {"labels": torch.tensor([0, 4])}])
def test_a_probe_of_another_model_is_refused(copied: Path, fitted: Talon, change: dict[str, torch.Tensor]) -> None:
    assert fitted.probe is not None
    parts = {name: value[:2].clone() for name, value in fitted.probe.state_dict().items()}
    other = save({**parts, **change})
    (copied / "probe.safetensors").write_bytes(other)
    edit(copied, lambda facts: facts["sha256"].update({"probe.safetensors": hashlib.sha256(other).hexdigest()}))
    with pytest.raises(ModelError, match=r"probe\.safetensors and encoder\.safetensors do not belong together"):
        Talon.from_pretrained(copied)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ModelError, match=r"no model here \(config.json is missing\)"):
            Talon.from_pretrained(folder)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110 - a device
def test_a_full_disk_leaves_the_old_model_whole(copied: Path, fitted: Talon) -> None:
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    (copied / ".config.json.part").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"the disk is full.*untouched"):
        fitted.save_pretrained(copied)
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before
    Talon.from_pretrained(copied)


def test_a_file_in_the_place_of_the_folder(tmp_path: Path, fitted: Talon) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageError, match="there is a file where a folder is needed"):
            fitted.save_pretrained(folder)
        with pytest.raises(StorageError):
            make_folder(folder)


def test_a_file_that_can_not_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(StorageError):
        write_files(tmp_path, {"taken": b"x"})
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_saving_over_a_model_replaces_it(copied: Path, fitted: Talon) -> None:
    edit(copied, lambda facts: facts.update(threshold=0.1))
    assert Talon.from_pretrained(copied).threshold == 0.1
    fitted.save_pretrained(copied)
    assert Talon.from_pretrained(copied).threshold == fitted.threshold
