from __future__ import annotations

import colorsys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from talon_ocd.errors import ConfigError, DataError
from talon_ocd.images import AUGMENTATIONS, Preprocessing, augment, view_seed
from talon_ocd.images.augment import adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation
from tests.twins import jitter as twin

SMALL = Preprocessing(resize=32, crop=24)


def canvases(count: int, height: int = 32, width: int = 32) -> list[Tensor]:
    draw = torch.Generator().manual_seed(count)
    return [torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=draw) for _ in range(count)]


def as_rows(view: Tensor) -> twin.Picture:
    rows: Any = view.permute(1, 2, 0).tolist()
    return [[(red, green, blue) for red, green, blue in row] for row in rows]


@settings(max_examples=60)
@given(
    st.sampled_from(
        [
            (adjust_brightness, twin.brightness),
            (adjust_contrast, twin.contrast),
            (adjust_saturation, twin.saturation),
            (adjust_hue, twin.hue),
        ]
    ),
    st.floats(-0.5, 2.0),
    st.integers(0, 1000),
    st.booleans(),
)
def test_jitter_agrees_with_its_twin(
    pair: tuple[Callable[[Tensor, float], None], Callable[[twin.Picture, float], twin.Picture]],
    amount: float,
    seed: int,
    coarse: bool,
) -> None:
    fast, slow = pair
    view = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if coarse:  # greys, equal channels, pure colours
        view = (view * 2).round() / 2
    wanted = slow(as_rows(view), amount)
    fast(view, amount)
    torch.testing.assert_close(view, torch.tensor(wanted, dtype=torch.float64).permute(2, 0, 1), atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("size", [(32, 32), (32, 100), (256, 32)])
def test_views_have_their_shape_and_range(name: str, size: tuple[int, int]) -> None:
    views = augment(canvases(5, *size), SMALL, name, range(5))
    assert views.shape == (5, 3, 24, 24) and views.dtype == torch.float32
    assert views.min() >= 0 and views.max() <= 1
    assert augment([], SMALL, name, []).shape == (0, 3, 24, 24)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_view_depends_on_its_own_seed_only(name: str) -> None:
    pictures, seeds = canvases(6), [view_seed(0, str(at), 0) for at in range(6)]
    together = augment(pictures, SMALL, name, seeds)
    assert torch.equal(together.flip(0), augment(pictures[::-1], SMALL, name, seeds[::-1]))
    for at in range(6):
        assert torch.equal(together[at : at + 1], augment([pictures[at]], SMALL, name, [seeds[at]]))
    if name != "none":
        assert not torch.equal(together, augment(pictures, SMALL, name, [seed + 1 for seed in seeds]))


def test_none_is_the_centre() -> None:
    pictures = canvases(3)
    views = augment(pictures, SMALL, "none", [0, 1, 2])
    torch.testing.assert_close(SMALL.normalise(views), SMALL.pixels(pictures))


def test_gcd_is_a_window_or_its_mirror() -> None:
    (canvas,) = canvases(1)
    windows = canvas.unfold(1, 24, 1).unfold(2, 24, 1).permute(1, 2, 0, 3, 4).reshape(-1, 3, 24, 24)
    places, mirrored = set(), 0
    for view in augment([canvas] * 400, SMALL, "gcd", range(400)):
        whole = (view * 255).round().to(torch.uint8)
        hits = [
            (windows == turned).flatten(1).all(1).nonzero().flatten().tolist() for turned in (whole, whole.flip(-1))
        ]
        assert len(hits[0]) + len(hits[1]) == 1
        mirrored += len(hits[1])
        places.update(hits[0] + hits[1])
    assert 150 < mirrored < 250
    assert len(places) > 75  # of 9 x 9


def test_talon_changes_colours_in_four_of_five_views() -> None:
    flat = torch.tensor([200, 100, 50], dtype=torch.uint8).view(3, 1, 1).expand(3, 32, 32)
    views = augment([flat] * 500, SMALL, "talon", range(500))[:, :, 0, 0]
    plain = (views - torch.tensor([200, 100, 50]) / 255).abs().amax(1) < 1e-5
    assert 60 < int(plain.sum()) < 140
    hues = torch.tensor([colorsys.rgb_to_hsv(*view)[0] for view in views[~plain].tolist()])
    turned = (hues - colorsys.rgb_to_hsv(200, 100, 50)[0] + 0.5) % 1 - 0.5
    assert turned.abs().max() <= 0.31 and turned.min() < -0.25 and turned.max() > 0.25


def test_ltc_covers_most_of_the_canvas() -> None:
    ramp = torch.arange(256, dtype=torch.uint8).expand(3, 256, 256)
    views = augment([ramp] * 200, Preprocessing(256, 224), "ltc", range(200))
    inner = views[:, 1, 112]
    span = (inner.amax(1) - inner.amin(1)).clamp(max=1)
    assert span.min() > 0.4  # sqrt(0.6 * 3/4) of the width, at the lowest contrast and brightness
    assert (views[:, :, 0] - views[:, :, -1]).abs().max() < 0.02


def test_seeds_are_stable() -> None:
    assert view_seed(0, "a", 0) == view_seed(0, "a", 0)
    assert len({view_seed(seed, key, view) for seed in (0, 1) for key in ("a", "b", "1") for view in (0, 1)}) == 12
    assert view_seed(1, "2", 3) != view_seed(12, "", 3)
    assert 0 <= view_seed(0, "\udce9", 0) < 2**63


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'talon'"):
        augment([], SMALL, "talom", [])
    with pytest.raises(DataError, match="2 canvases came with 1 seeds"):
        augment(canvases(2), SMALL, "gcd", [0])
    for wrong in (torch.zeros(3, 32, 32), torch.zeros(3, 8, 32, dtype=torch.uint8)):
        with pytest.raises(DataError, match="can't be augmented"):
            augment([wrong], SMALL, "gcd", [0])


def test_speed() -> None:
    pictures, large = canvases(16, 256, 256), Preprocessing()
    augment(pictures, large, "talon", range(16))
    best = min(_seconds(lambda: augment(pictures, large, "talon", range(16))) for _ in range(8))
    assert 16 / best > 100  # 600 a second on one idle core; the machine may be busy


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
