from typing import Any

import pytest
import torch

from talon_ocd.backbones import Backbone, Paired
from talon_ocd.config import TalonConfig
from talon_ocd.errors import DataError
from talon_ocd.images import ImageItem
from talon_ocd.offline import Fitting, Labelled, TrunkCache, encode
from talon_ocd.offline.fit import FALLBACK_THRESHOLD, FULLY_TRUSTED, Fitted
from tests.offline.standin import Listener, StandIn, some_digits

QUICK = TalonConfig().override(epochs=2, views=2, rounds=1, orders=1, grid=6, try_untrained=False)


def fit(
    items: list[ImageItem], config: TalonConfig = QUICK, backbone: Backbone | None = None, **options: Any
) -> Fitted:
    backbone = backbone or StandIn()
    with TrunkCache(backbone, memory_bytes=10**9, disk_bytes=0, augmentation=config.offline.augmentation) as cache:
        labelled = Labelled.from_items(items, backbone, config.offline, cache)
        return Fitting(backbone, labelled, config, **options).run()


def test_the_stages_leave_their_traces() -> None:
    items, _ = some_digits()
    backbone = StandIn()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    listener = Listener()
    fitted = fit(items, backbone=backbone, progress=listener)
    assert fitted.names == ("0", "1", "2", "3") and fitted.memory.known == 4
    table = fitted.report["calibration"]
    assert table["rule"] == "evidence" and fitted.evidence is not None and fitted.threshold == 0
    assert fitted.evidence.offset == table["threshold"] == fitted.report["evidence"]["offset"]
    assert fitted.evidence.counts.tolist() == list(fitted.report["class_sizes"].values())
    assert fitted.report["evidence"]["warnings"] == [note for note in listener.notes if "4 known classes" in note] != []
    after = backbone.state_dict()
    moved = {key.split(".")[0] for key in before if not torch.equal(before[key], after[key])}
    assert moved == {"head"} and not any(parameter.requires_grad for parameter in backbone.parameters())


def test_the_pretrained_half_stays_and_both_are_centred_on_the_labelled_images() -> None:
    items, _ = some_digits()
    backbone = Paired(StandIn())
    fitted = fit(items, backbone=backbone)
    before, head = StandIn().head.state_dict(), backbone.head
    assert all(torch.equal(value, before[key]) for key, value in head.first.state_dict().items())
    assert not any(torch.equal(value, before[key]) for key, value in head.trained.state_dict().items())
    with TrunkCache(backbone, memory_bytes=10**9, disk_bytes=0) as cache:
        outputs = cache.outputs(items)
        means = [encode(half, outputs).mean(dim=0) for half in (head.first, head.trained)]
        features = encode(head, outputs)
    torch.testing.assert_close(head.centres, torch.stack(means))
    assert fitted.memory.feature_size == features.shape[1] == 32
    assert float(head.weight) == pytest.approx((len(fitted.names) / FULLY_TRUSTED) ** 2)
    torch.testing.assert_close(head.weight * features[:, :16].norm(dim=1), features[:, 16:].norm(dim=1))


def test_a_weight_that_is_given_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    items, _ = some_digits()
    for given, wanted in ((0.3, 0.3), ("auto", 1.0)):
        monkeypatch.setattr("talon_ocd.offline.fit.FULLY_TRUSTED", 2)  # fewer than there are: no more than full length
        backbone = Paired(StandIn())
        fit(items, QUICK.override(trained_weight=given), backbone=backbone)
        assert float(backbone.head.weight) == pytest.approx(wanted)


def test_a_second_head_that_training_would_spoil_is_left_out() -> None:
    items, _ = some_digits()
    backbone = Paired(StandIn())
    fitted = fit(items, QUICK.override(try_untrained=True, lr_encoder=50.0), backbone=backbone)
    table = fitted.report["calibration"]
    assert table["epochs"] == 0 and {trial["epochs"] for trial in table["trials"]} == {0, 2}
    assert backbone.head.second is None and backbone.head.centres.shape == (1, 16)
    assert fitted.memory.feature_size == backbone.feature_size == 16 and fitted.evidence is not None
    untrained = Paired(StandIn(), trained=False)
    same = fit(items, QUICK.override(epochs=0, offset=table["threshold"]), backbone=untrained)
    assert torch.equal(same.memory.prototypes, fitted.memory.prototypes)
    assert untrained.architecture() == backbone.architecture()


def test_an_offset_that_is_given_is_not_rehearsed() -> None:
    items, _ = some_digits()
    fitted = fit(items, QUICK.override(offset=-2.0))
    assert fitted.evidence is not None and fitted.evidence.offset == -2.0
    assert "calibration" not in fitted.report


def test_the_rule_of_talon_leaves_a_threshold_and_no_evidence() -> None:
    items, _ = some_digits()
    fitted = fit(items, QUICK.override(rule="cosine"))
    table = fitted.report["calibration"]
    assert fitted.evidence is None and "evidence" not in fitted.report and table["rule"] == "cosine"
    assert fitted.threshold in [trial["threshold"] for trial in table["trials"]] and len(table["trials"]) == 6


def test_rehearsals_do_not_touch_the_head() -> None:
    items, _ = some_digits()
    rehearsed, constant = StandIn(), StandIn()
    fit(items, backbone=rehearsed)
    fit(items, QUICK.override(threshold=0.5), backbone=constant)
    for key, value in rehearsed.state_dict().items():
        assert torch.equal(value, constant.state_dict()[key])


def test_no_epochs_keep_the_features() -> None:
    items, _ = some_digits()
    backbone = StandIn()
    fitted = fit(items, QUICK.override(epochs=0), backbone=backbone)
    assert all(torch.equal(value, backbone.state_dict()[key]) for key, value in StandIn().state_dict().items())
    assert fitted.report["angles_before"] == fitted.report["angles_after"] and fitted.evidence is not None


def test_uncached_views_work() -> None:
    items, _ = some_digits()
    assert fit(items[:40], QUICK.override(views=0, epochs=1)).memory.size == 4


def test_one_class_falls_back_with_a_note() -> None:
    items = [item for item in some_digits()[0] if item.label == "2"]
    listener = Listener()
    fitted = fit(items, progress=listener)
    assert fitted.threshold == FALLBACK_THRESHOLD and fitted.names == ("2",) and fitted.evidence is None
    assert any("one known class" in note for note in listener.notes)
    assert fitted.report["angles_after"]["between_mean"] is None


@pytest.mark.parametrize(("classes", "images"), [("12", 20), ("0123", 2)])
def test_too_few_to_rehearse_evidence_falls_back_with_a_note(classes: str, images: int) -> None:
    items, _ = some_digits()
    chosen = [item for name in classes for item in [item for item in items if item.label == name][:images]]
    listener = Listener()
    fitted = fit(chosen, progress=listener)
    assert fitted.evidence is None and fitted.report["calibration"]["rule"] == "cosine"
    assert any("Give 3 classes or more" in note for note in listener.notes)


def test_a_class_with_one_image_works() -> None:
    items, _ = some_digits()
    lonely = next(item for item in items if item.label == "3")
    fitted = fit([item for item in items if item.label != "3"] + [lonely])
    assert fitted.report["class_sizes"]["3"] == 1 and fitted.memory.size == 4
    assert fitted.evidence is not None and fitted.evidence.counts[3] == 1


def test_training_is_left_out_if_rehearsals_say_that_it_hurts() -> None:
    items, _ = some_digits()
    backbone = StandIn()
    harmful = QUICK.override(try_untrained=True, lr_encoder=100.0, epochs=3, seed=1)
    fitted = fit(items, harmful, backbone=backbone)
    table = fitted.report["calibration"]
    assert table["epochs"] == 0 and {trial["epochs"] for trial in table["trials"]} == {0, 3}
    assert all(torch.equal(value, backbone.state_dict()[key]) for key, value in StandIn().state_dict().items())
    assert fitted.report["angles_before"] == fitted.report["angles_after"]


def test_nothing_usable_is_refused() -> None:
    with pytest.raises(DataError, match="none of the 0"):
        fit([])
