import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_ocd import discover_features, feature_stream
from talon_ocd.config import TalonConfig
from talon_ocd.errors import ConfigError, DataError, SupportWarning
from talon_ocd.online import CosineRule, EvidenceRule
from tests.twins.online import SlowTalon, Vector, mean, norm

Floats = npt.NDArray[np.float32]


def clouds(classes: int, count: int, dims: int, spread: float, seed: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    centres = random.normal(size=(classes, dims))
    labels = np.concatenate([np.arange(classes), random.integers(0, classes, max(count - classes, 0))])[:count]
    return (centres[labels] + spread * random.normal(size=(count, dims))).astype(np.float32), labels


def unit_lists(features: Floats) -> list[Vector]:
    return [norm(row) for row in features.tolist()]


def slow_ids(known: Floats, labels: npt.NDArray[np.int64], stream: Floats, threshold: float, adapt: bool) -> list[int]:
    units = unit_lists(known)
    groups = [[u for u, label in zip(units, labels, strict=True) if label == c] for c in range(int(labels.max()) + 1)]
    slow = SlowTalon([norm(mean(group)) for group in groups], threshold, adapt=adapt)
    return [slow.observe(vector) for vector in unit_lists(stream)]


@given(
    classes=st.integers(1, 5),
    dims=st.integers(2, 6),
    count=st.sampled_from([0, 1, 63, 64, 65, 150, 215]),
    threshold=st.sampled_from([-1.0, 0.3, 0.72, 0.95, 1.5]),
    adapt=st.booleans(),
    seed=st.integers(0, 9999),
)
@settings(max_examples=40)
def test_ids_are_those_of_the_slow_twin(
    classes: int, dims: int, count: int, threshold: float, adapt: bool, seed: int
) -> None:
    known, labels = clouds(classes, 3 * classes, dims, 0.3, seed)
    stream, _ = clouds(classes + 3, count, dims, 0.4, seed + 1)
    word = "prototypes" if adapt else "none"
    ids = discover_features(known, labels, stream, preset="official", threshold=threshold, adapt=word)
    assert ids.tolist() == slow_ids(known, labels, stream, threshold, adapt)
    one_by_one = feature_stream(known, labels, preset="official", threshold=threshold, adapt=word)
    assert [one_by_one.observe(vector).category for vector in stream] == ids.tolist()


def test_labels_keep_their_ids_and_discoveries_follow_in_order() -> None:
    stream = np.array([[0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 1, 0.1]], np.float32)
    ids = discover_features(np.eye(4)[:2], [1, 0], stream, preset="official", threshold=0.72)
    assert ids.tolist() == [2, 0, 3, 1, 2] and ids.dtype == np.int64


KNOWN, LABELS = clouds(3, 30, 5, 0.2, 0)
STREAM, _ = clouds(6, 150, 5, 0.2, 1)
EXPECTED = discover_features(KNOWN, LABELS, STREAM, preset="official", threshold=0.72).tolist()


def backward(values: Any) -> Any:
    return values[::-1].copy()[::-1]


def read_only(values: Any) -> Any:
    values = values.copy()
    values.flags.writeable = False
    return values


@pytest.mark.parametrize(
    "form",
    [
        np.asarray,
        np.asfortranarray,
        backward,
        read_only,
        lambda values: values.astype(np.float64) * 1e30,
        lambda values: values * np.float32(1e-30),
        lambda values: values.astype(np.longdouble),
        lambda values: values.astype(">f4"),
        lambda values: np.repeat(values, 2, axis=1)[:, ::2],
        lambda values: values.tolist(),
        torch.from_numpy,
        lambda values: torch.from_numpy(values).double(),
        lambda values: torch.from_numpy(values).T.contiguous().T,
        lambda values: torch.from_numpy(values).clone().requires_grad_(),
    ],
)
def test_any_array_gives_the_same_ids(form: Any) -> None:
    ids = discover_features(form(KNOWN), torch.from_numpy(LABELS), form(STREAM), preset="official", threshold=0.72)
    assert ids.tolist() == EXPECTED


@pytest.mark.parametrize("dtype", [np.float16, torch.bfloat16, torch.float16])
def test_half_precision_is_taken(dtype: Any) -> None:
    def half(values: Floats) -> Any:
        return values.astype(dtype) if dtype is np.float16 else torch.from_numpy(values).to(dtype)

    ids = discover_features(half(KNOWN), LABELS, half(STREAM), preset="official", threshold=0.72)
    assert np.mean(ids == EXPECTED) > 0.95


def test_evidence_is_found_on_the_labelled_vectors_only() -> None:
    known, labels = clouds(8, 160, 16, 0.15, 5)
    stream, truth = clouds(8, 60, 16, 0.15, 5)
    first, again = feature_stream(known, labels), feature_stream(known, labels)
    assert isinstance(first.rule, EvidenceRule) and isinstance(again.rule, EvidenceRule)
    assert first.rule.offset == again.rule.offset
    decisions = first.observe_many(stream)
    assert {decision.unit for decision in decisions} == {"log-odds"}
    assert np.mean([decision.category for decision in decisions] == truth) > 0.9
    ids = discover_features(known, labels, stream)
    assert ids.tolist() == [decision.category for decision in decisions] == [again.observe(v).category for v in stream]


def test_new_clouds_are_discovered_without_any_setting() -> None:
    vectors, truth = clouds(16, 480, 16, 0.15, 6)
    known = truth < 8
    ids = discover_features(vectors[known][:160], truth[known][:160], vectors)
    assert len(np.unique(ids)) == 16
    assert all(len(np.unique(ids[truth == cloud])) == 1 for cloud in range(16))


def test_nothing_is_learned_without_adaptation() -> None:
    known, labels = clouds(8, 160, 16, 0.15, 5)
    still = feature_stream(known, labels, adapt="none")
    assert isinstance(still.rule, EvidenceRule)
    before = still.rule.beliefs.counts.copy()
    assert {decision.verdict for decision in still.observe_many(known[:40])} == {"known"}
    assert np.array_equal(still.rule.beliefs.counts, before)


def test_a_threshold_is_rehearsed_on_the_labelled_vectors_only() -> None:
    known, labels = clouds(8, 160, 16, 0.15, 5)
    stream, truth = clouds(8, 60, 16, 0.15, 5)
    first = feature_stream(known, labels, preset="official", threshold="auto")
    assert isinstance(first.config.threshold, float) and first.rule.unit == "cosine"
    again = feature_stream(known, labels, preset="official", threshold="auto")
    assert again.config.threshold == first.config.threshold
    assert np.mean([first.observe(vector).category for vector in stream] == truth) > 0.9


def test_vectors_too_few_to_tell_are_warned_of() -> None:
    with pytest.warns(SupportWarning, match="5 known classes say little"):
        feature_stream(*clouds(5, 40, 16, 0.15, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feature_stream(*clouds(6, 80, 16, 0.15, 5))
        feature_stream(KNOWN, LABELS, preset="official")


@pytest.mark.parametrize(
    "labelled", [clouds(5, 40, 16, 0.15, 5), (np.eye(4), [0, 1, 2, 3]), (np.eye(2), [0, 0])],
    ids=["of the statistics", "of the rehearsals", "that there is none"],
)  # fmt: skip
def test_warnings_point_to_the_line_that_called(labelled: tuple[Any, Any]) -> None:
    for call in (lambda: feature_stream(*labelled), lambda: discover_features(*labelled, labelled[0])):
        with pytest.warns(SupportWarning) as recorded:
            call()
        assert {warning.filename for warning in recorded} == {__file__}


def test_a_number_means_the_cosine_rule() -> None:
    assert feature_stream(KNOWN, LABELS, threshold=0.6).rule == CosineRule(0.6, TalonConfig().online.index_above)


def test_one_vector_a_class_says_nothing_about_spread_and_a_cosine_decides() -> None:
    with pytest.warns(SupportWarning, match="too few labelled images"):
        stream = feature_stream(np.eye(4), [0, 1, 2, 3])
    assert isinstance(stream.rule, CosineRule) and stream.observe([0.0, 1.0, 0.0, 0.1]).category == 1


def test_presets_and_names_reach_the_stream() -> None:
    stream = feature_stream(np.eye(2), [0, 1], preset="paper", names=["cat", "dog"])
    assert stream.config.threshold == TalonConfig.paper().online.threshold and not stream.config.count_founder
    assert stream.decide([0.0, 1.0]).name == "dog"


@pytest.mark.parametrize("kind", [list, np.array, lambda labels: np.array(labels, dtype=object)])
def test_labels_may_be_strings_which_name_the_classes(kind: Callable[[list[str]], Any]) -> None:
    known, numbers = clouds(3, 30, 8, 0.2, 0)
    words = kind([("birch", "ash", "cedar")[number] for number in numbers])
    stream = feature_stream(known, words, preset="official", threshold=0.5)
    assert [stream.decide(vector).name for vector in known[:3]] == ["birch", "ash", "cedar"]
    ids = discover_features(known, words, known, preset="official", threshold=0.5)
    renumbered = discover_features(known, np.array([1, 0, 2])[numbers], known, preset="official", threshold=0.5)
    assert ids.tolist() == renumbered.tolist()
    with pytest.raises(ConfigError, match="leave names out"):
        feature_stream(known, words, names=["a", "b", "c"])


@pytest.mark.parametrize(
    ("change", "error", "wanted"),
    [
        ({"known_labels": [True, False]}, DataError, "got bool"),
        ({"known_labels": np.array([None, "b"], dtype=object)}, DataError, "got object"),
        ({"known_labels": ["a", 1]}, DataError, "but 1 is no name; give strings only"),
        ({"known_labels": (0.5, "b")}, DataError, "but 0.5 is no name"),
        ({"known_labels": [0, 2]}, DataError, "without gaps"),
        ({"known_labels": [1, 2]}, DataError, "0 .. C-1"),
        ({"known_labels": [0.0, 1.0]}, DataError, "integers"),
        ({"known_labels": [0]}, DataError, r"shape \(2,\)"),
        ({"known_features": np.zeros((0, 2)), "known_labels": []}, DataError, "known_labels"),
        ({"known_features": np.eye(2)[0]}, DataError, r"\(N, D\)"),
        ({"known_features": np.zeros((2, 2))}, DataError, "feature 0 is all zero"),
        ({"known_features": [["a", "b"], ["c", "d"]]}, DataError, "real numbers"),
        ({"known_features": [[1.0, 0.0], [1.0]]}, DataError, "one length"),
        ({"stream_features": np.array([[1, 0], [np.nan, 0]])}, DataError, "feature 1 is not finite"),
        ({"stream_features": np.array([[1e200, 0]])}, DataError, "feature 0 is not finite"),
        ({"stream_features": np.ones((1, 3))}, DataError, "3 dimensions, the memory has 2"),
        ({"adapt": "encoder"}, ConfigError, "vectors have no encoder"),
        ({"adapt": "prototype"}, ConfigError, "Did you mean 'prototypes'"),
        ({"preset": "oficial"}, ConfigError, "Did you mean 'official'"),
        ({"threshold": float("nan")}, ConfigError, "threshold"),
        ({"threshold": "high"}, ConfigError, "threshold"),
    ],
)
def test_bad_input_is_refused_with_the_remedy(change: dict[str, Any], error: type[Exception], wanted: str) -> None:
    arguments = {"known_features": np.eye(2), "known_labels": [0, 1], "stream_features": np.eye(2), "threshold": 0.7}
    with pytest.raises(error, match=wanted):
        discover_features(**{**arguments, **change})


def test_one_known_class_has_nothing_to_rehearse_with_and_takes_the_constant() -> None:
    with pytest.warns(SupportWarning, match=r"nothing to rehearse with; 0\.75 is used"):
        stream = feature_stream(np.array([[1.0, 0.0], [0.9, 0.1]]), [0, 0])
    assert stream.rule.threshold == 0.75
