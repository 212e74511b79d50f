import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from talon_ocd import Decision, DiscoveryStream, Talon
from talon_ocd.config import ADAPTATIONS, OnlineConfig
from talon_ocd.errors import ImageError
from talon_ocd.images import ImageItem, Skipped, memory_item
from talon_ocd.online import EvidenceRule
from tests import tiny

BY_BOTH_RULES = pytest.mark.parametrize("by_evidence", [False, True], ids=["cosine", "evidence"])


@pytest.fixture(scope="module")
def threshold(fitted: Talon) -> float:
    """One that founds some categories and attaches to others."""
    stream = fitted.stream(threshold=2.0, adapt="none")
    return float(np.median([decision.similarity for decision in stream.run(tiny.incoming())]))


def opened(talon: Talon, threshold: float | None, **changes: Any) -> DiscoveryStream:
    """A stream that adapts everything, soon and by much; without a threshold evidence decides."""
    lively = {"adapt": ADAPTATIONS, "adapt_every": 16, "encoder_lr": 0.1}
    online = replace(talon.config.online, **{**lively, **changes})
    if threshold is not None:
        return DiscoveryStream(talon.backbone, talon.memory.copy(), replace(online, threshold=threshold), talon.names)
    assert talon.evidence is not None
    rule = EvidenceRule(talon.evidence, replace(talon.config.evidence, every=2), "prototypes" in online.adapt)
    return DiscoveryStream(talon.backbone, talon.memory.copy(), online, talon.names, rule=rule)


def learned(talon: Talon) -> dict[str, Tensor]:
    assert talon.evidence is not None
    return {key: value.clone() for key, value in talon.evidence.state_dict().items()}


def ids(decisions: list[Decision]) -> list[int]:
    return [decision.category for decision in decisions]


def state(stream: DiscoveryStream) -> dict[str, Tensor]:
    """All that a stream has learned, and every weight of its head."""
    return {**stream.state_dict(), **{k: v.clone() for k, v in stream.adapter.head.state_dict().items()}}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@BY_BOTH_RULES
def test_one_by_one_many_and_run_agree(fitted: Talon, threshold: float, by_evidence: bool) -> None:
    items = tiny.incoming()
    single, many, whole, mixed = (opened(fitted, None if by_evidence else threshold) for _ in range(4))
    expected = [single.observe(item) for item in items]
    assert ids(many.observe_many(items)) == ids(expected)
    assert ids(list(whole.run(items))) == ids(expected)
    cut = mixed.observe_many(items[:5]) + list(mixed.run(items[5:48])) + [mixed.observe(items[48])]
    assert ids(cut + mixed.observe_many(items[49:])) == ids(expected)
    assert [decision.index for decision in expected] == list(range(len(items)))
    assert {decision.verdict for decision in expected} == {"known", "discovered", "new"}
    adaptations = len(items) // 16
    steps = adaptations - adaptations // 2 if by_evidence else adaptations  # every second one is for second thoughts
    assert single.adapter.steps == many.adapter.steps == whole.adapter.steps == steps
    for name, value in single.adapter.head.state_dict().items():
        torch.testing.assert_close(whole.adapter.head.state_dict()[name], value, atol=1e-4, rtol=1e-3)


@BY_BOTH_RULES
def test_deciding_changes_nothing(fitted: Talon, threshold: float, by_evidence: bool) -> None:
    stream, items = opened(fitted, None if by_evidence else threshold), tiny.incoming()
    stream.observe_many(items[:20])
    before = state(stream)
    first = [stream.decide(item) for item in items[20:30]]
    assert first == [stream.decide(item) for item in items[20:30]] and same(before, state(stream))
    assert stream.observe(items[20]).category == first[0].category


@BY_BOTH_RULES
def test_the_model_is_untouched_and_streams_are_independent(fitted: Talon, threshold: float, by_evidence: bool) -> None:
    items = tiny.incoming()
    model = {key: value.clone() for key, value in fitted.backbone.state_dict().items()}
    memory, evidence = fitted.memory.state_dict(), learned(fitted)
    one, other = (opened(fitted, None if by_evidence else threshold) for _ in range(2))
    expected = ids(one.observe_many(items))
    assert not same(state(one), state(other)) and one.memory.size > fitted.memory.size
    assert ids(other.observe_many(items)) == expected
    assert same(model, fitted.backbone.state_dict()) and same(memory, fitted.memory.state_dict())
    assert same(evidence, learned(fitted))
    assert not any(parameter.requires_grad for parameter in fitted.backbone.parameters())


@BY_BOTH_RULES
def test_flush_adapts_to_what_is_left(fitted: Talon, threshold: float, by_evidence: bool) -> None:
    stream = opened(fitted, None if by_evidence else threshold)
    untouched = state(stream)
    stream.flush()
    assert stream.adapter.steps == 0 and same(untouched, state(stream))
    stream.observe_many(tiny.incoming(20))
    before = state(stream)
    stream.flush()
    steps = 1 if by_evidence else 2  # the second adaptation is for second thoughts
    assert stream.adapter.steps == steps and not same(before, state(stream)) and stream.discovery.room == 16
    before = state(stream)
    stream.flush()
    assert stream.adapter.steps == steps and same(before, state(stream))


def test_learning_rate_zero_changes_no_answer(fitted: Talon, threshold: float) -> None:
    items = tiny.incoming()
    frozen = opened(fitted, threshold, encoder_lr=0.0).observe_many(items)
    without = opened(fitted, threshold, adapt=("prototypes",)).observe_many(items)
    assert ids(frozen) == ids(without)


def test_extreme_thresholds(fitted: Talon) -> None:
    items = tiny.incoming(40)
    assert opened(fitted, -1.0).observe_many(items)[-1].verdict == "known"
    assert ids(opened(fitted, 1.5).observe_many(items)) == list(range(4, 44))


def test_the_adaptation_moves_the_promised_weights_only(fitted: Talon, threshold: float) -> None:
    stream = opened(fitted, threshold)
    stream.observe_many(tiny.incoming(32))
    before, after = fitted.backbone.head.state_dict(), stream.adapter.head.state_dict()
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert moved == fitted.backbone.head_parameter_names("norms")


@pytest.mark.parametrize("adapt", [(), ("prototypes",), ("encoder",), ("prototypes", "encoder")])
@pytest.mark.parametrize("classifier", ["margin", "cosine"])
def test_every_row_of_the_ablation_runs(classifier: str, adapt: tuple[str, ...]) -> None:
    talon = tiny.tiny_talon(
        epochs=1, classifier=classifier, keep_pretrained=False, threshold=0.9, adapt=adapt, enabled=False
    )
    talon.fit(tiny.labelled())
    stream = talon.stream()
    assert len(list(stream.run(tiny.incoming(70)))) == 70
    assert stream.adapter.steps == (1 if "encoder" in adapt else 0)


@pytest.mark.parametrize("change", [{"encoder_steps": 3}, {"encoder_scope": "head"}, {"encoder_first": False}])
def test_the_other_readings_agree_one_by_one_too(fitted: Talon, threshold: float, change: dict[str, Any]) -> None:
    items = tiny.incoming(50)
    single, many = (opened(fitted, threshold, **change) for _ in range(2))
    assert ids([single.observe(item) for item in items]) == ids(many.observe_many(items))


def test_every_form_of_a_picture(fitted: Talon, tmp_path: Path) -> None:
    array = np.asarray(tiny.incoming(1)[0].load())
    picture = Image.fromarray(array)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    path = tmp_path / "one.png"
    path.write_bytes(buffer.getvalue())
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    forms: list[Any] = [
        path,
        str(path),
        buffer.getvalue(),
        picture,
        array,
        tensor,
        tensor / 255,
        memory_item(array, "item"),
    ]
    decisions = [fitted.stream().decide(form) for form in forms]
    assert len({decision.category for decision in decisions}) == 1
    assert len({round(decision.similarity, 6) for decision in decisions}) == 1
    sources = [decision.source for decision in decisions]
    assert sources == [str(path), str(path), "<bytes>", "<Image>", "<ndarray>", "<Tensor>", "<Tensor>", "item"]


def test_a_bad_picture_is_refused_alone_and_skipped_in_a_run(fitted: Talon, tmp_path: Path) -> None:
    stream, good = fitted.stream(), tiny.incoming(3)
    before = state(stream)
    bad = memory_item(b"no picture", "bad.png")
    with pytest.raises(ImageError, match=r"bad\.png: is not an image"):
        stream.observe(bad)
    with pytest.raises(ImageError):
        stream.observe_many([*good, bad])
    with pytest.raises(ImageError, match="does not exist"):
        stream.observe(tmp_path / "missing.png")
    assert same(before, state(stream)) and stream.discovery.answered == 0
    skipped: list[Skipped] = []
    assert len(list(stream.run([good[0], bad, *good[1:]], skipped.append))) == 3
    assert [skip.source for skip in skipped] == ["bad.png"]


def test_a_lazy_source_is_answered_before_its_next_image_is_read(fitted: Talon) -> None:
    read: list[str] = []

    def source() -> Any:
        for item in tiny.incoming(5):
            read.append(item.source)
            yield item

    answers = fitted.stream().run_items(source(), batch_size=1)
    for number, (decision, item) in enumerate(answers, 1):
        assert len(read) == number and decision.source == item.source == read[-1]


def test_a_long_interval_does_not_hold_the_answers_back(fitted: Talon) -> None:
    read: list[ImageItem] = []

    def source() -> Any:
        for number in range(600):
            read.append(memory_item(np.full((8, 8), number % 250, np.uint8), str(number)))
            yield read[-1]

    online: OnlineConfig = replace(fitted.config.online, threshold=0.9, adapt_every=10**6, adapt=("prototypes",))
    stream = DiscoveryStream(fitted.backbone, fitted.memory.copy(), online)
    next(stream.run(source()))
    assert len(read) <= 256
