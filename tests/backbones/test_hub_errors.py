from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import transformers

from talon_ocd.backbones import HubBackbone, backbone_from_architecture, get_backbone
from talon_ocd.errors import BackboneError
from talon_ocd.images.transforms import Preprocessing
from tests.backbones import small_models


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("offline")
def test_offline_names_the_download() -> None:
    with pytest.raises(BackboneError, match="hf download nobody/nothing-such --local-dir DIR") as caught:
        get_backbone("nobody/nothing-such")
    assert "no such folder" in str(caught.value)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["models/of/mine", "./mine", "/nowhere/model"])
def test_a_folder_that_does_not_exist(name: str) -> None:
    with pytest.raises(BackboneError, match="no such folder"):
        get_backbone(name)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BackboneError, match=r"pip install 'talon-ocd\[hub\]'"):
        get_backbone("openai/clip-vit-base-patch16")


def test_unsupported_model_type_lists_the_supported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "resnet"}), encoding="utf-8")
    with pytest.raises(BackboneError, match=r"'resnet' is not supported.*clip.*dinov2.*vit"):
        get_backbone(str(tmp_path))
    architecture = {"kind": "hub", "name": "old", "model_type": "dinov4", "config": {}}
    with pytest.raises(BackboneError, match="Did you mean 'dinov2'"):
        backbone_from_architecture(architecture, Preprocessing())


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_config_can_not_name_code_of_the_hub(key: str, tmp_path: Path) -> None:
    folder = Path(small_models.save(small_models.build("vit"), tmp_path))
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings[key] = "somebody/kernel"
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    loaded = get_backbone(str(folder))
    architecture = loaded.architecture()
    architecture["config"][key] = "somebody/kernel"
    rebuilt = backbone_from_architecture(architecture, loaded.preprocessing)
    for backbone in (loaded, rebuilt):
        attention = backbone.trunk.get_submodule("blocks.0.attention")
        assert attention.config._attn_implementation == "sdpa"  # type: ignore[union-attr]


def test_a_folder_without_a_model_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match=r"no model folder.*it holds nothing"):
        get_backbone(str(tmp_path))
    (tmp_path / "cat.jpg").touch()
    with pytest.raises(BackboneError, match=r"config.json is missing \(it holds cat.jpg\)"):
        get_backbone(str(tmp_path))


@pytest.mark.parametrize(("text", "message"), [("{", "can't be read as JSON"), ("[]", "holds list")])
def test_damaged_config(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(BackboneError, match=message):
        get_backbone(str(tmp_path))


def test_a_folder_without_weights(tmp_path: Path) -> None:
    small_models.build("vit").config.save_pretrained(tmp_path)  # type: ignore[union-attr,operator]
    with pytest.raises(BackboneError, match=r"can't be loaded. Tried: the folder"):
        get_backbone(str(tmp_path))


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    small_models.save(small_models.build("vit"), tmp_path)
    small_models.build("dinov2").config.save_pretrained(tmp_path)  # type: ignore[union-attr,operator]
    with pytest.raises(BackboneError, match="the weights lack"):
        HubBackbone.pretrained(str(tmp_path))


def test_siglip_without_pooling_has_no_feature(tmp_path: Path) -> None:
    config = transformers.SiglipVisionConfig.from_dict({**small_models.SIZES, "vision_use_head": False})
    folder = small_models.save(transformers.SiglipVisionModel(config), tmp_path)
    with pytest.raises(BackboneError, match="no pooling head"):
        HubBackbone.pretrained(folder)


def test_loading_is_silent_and_leaves_no_trace(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = small_models.save(small_models.build("clip_vision_model"), tmp_path)
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    capfd.readouterr()
    HubBackbone.pretrained(folder)
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
