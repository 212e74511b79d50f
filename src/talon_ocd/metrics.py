"""Scores of a clustering against true classes (lowest layer; pure functions of label arrays).

Strict and Greedy Hungarian accuracy are sections 6.1 to 6.3 of the specification: a class is matched with at
most one predicted id, an id with at most one class, and the matched samples count as right. Fractions lie
between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import min_weight_full_bipartite_matching

from talon_ocd.errors import DataError

Labels: TypeAlias = Any
"""A one-dimensional list, array or tensor of ints or strings."""
KnownClasses: TypeAlias = int | Iterable[int] | Iterable[str]
"""How many classes are known (labels below it are old), or the known label values themselves."""
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Accuracy:
    """Accuracy over all samples, over those of known classes (old) and over the others (new)."""

    all: float
    old: float
    new: float


@dataclass(frozen=True)
class CategoryCounts:
    """How many categories a stream ended with, and how many there were."""

    found: int
    """Distinct predicted ids."""
    true: int
    """Distinct true classes."""

    @property
    def ratio(self) -> float:
        """Categories found for each true one; 0 without true classes."""
        return self.found / self.true if self.true else 0.0


@dataclass(frozen=True)
class Fragmentation:
    """How far true classes are spread over predicted ids; 1 is whole, larger is scattered."""

    ids: float
    """Mean over true classes of the number of ids that hold at least one of its samples."""
    effective_ids: float
    """Mean over true classes of ``exp(entropy)`` of its samples over ids: a stray sample hardly counts."""


def strict_accuracy(y_true: Labels, y_pred: Labels, known_classes: KnownClasses, top_k: int | None = None) -> Accuracy:
    """Return the accuracy under one matching of ids and classes over all samples ("v2").

    Among equally good matchings the one with most old samples right is taken, so that old and new do not
    depend on how ids are numbered. ``top_k`` keeps only the largest ids (of equal size: the smaller id); the
    samples of the others count as wrong.

    >>> strict_accuracy([0, 0, 0, 0, 0, 1, 1, 1], [0] * 8, known_classes=1)
    Accuracy(all=0.625, old=1.0, new=0.0)
    """
    truth, ids = _aligned(y_true, y_pred)
    old = _is_old(truth, known_classes)
    right = _matched(truth, ids, old, top_k)
    return Accuracy(_share(right), _share(right[old]), _share(right[~old]))


def strict_matches(y_true: Labels, y_pred: Labels, known_classes: KnownClasses) -> Bools:
    """Return which samples ``(N,)`` are right under the matching of ``strict_accuracy``.

    >>> strict_matches([0, 0, 1], [5, 5, 5], known_classes=1).tolist()
    [True, True, False]
    """
    truth, ids = _aligned(y_true, y_pred)
    return _matched(truth, ids, _is_old(truth, known_classes), None)


def greedy_accuracy(y_true: Labels, y_pred: Labels, known_classes: KnownClasses, top_k: int | None = None) -> Accuracy:
    """Return the accuracy with old and new samples matched apart ("v1"): a mixed id may be right in both.

    ``top_k`` is applied to the ids of each of the two problems.

    >>> greedy_accuracy([0, 0, 0, 0, 0, 1, 1, 1], [0] * 8, known_classes=1)
    Accuracy(all=1.0, old=1.0, new=1.0)
    """
    truth, ids = _aligned(y_true, y_pred)
    old = _is_old(truth, known_classes)
    right = np.zeros(len(truth), dtype=np.bool_)
    for subset in (old, ~old):
        right[subset] = _matched(truth[subset], ids[subset], old[subset], top_k)
    return Accuracy(_share(right), _share(right[old]), _share(right[~old]))


def known_accuracy(y_true: Labels, y_pred: Labels, known: int | Sequence[int] | Sequence[str]) -> float:
    """Return the plain accuracy of old samples, without matching: is the id that of the class itself?

    ``known`` is the number of known classes (label and id are the same number) or the known labels in the
    order of their ids 0, 1, ...

    >>> known_accuracy(["cat", "dog", "fox"], [0, 0, 2], known=["cat", "dog"])
    0.5
    """
    truth, ids = _aligned(y_true, y_pred)
    old = _is_old(truth, known)
    if not old.any():
        return 0.0
    if isinstance(known, int | np.integer):
        return _share(truth[old] == ids[old])
    names = _array(known, "known")
    order = np.argsort(names, kind="stable")
    return _share(order[np.searchsorted(names, truth[old], sorter=order)] == ids[old])


def category_counts(y_true: Labels, y_pred: Labels) -> CategoryCounts:
    """Return the number of distinct predicted ids and of distinct true classes.

    >>> category_counts([0, 0, 1], [4, 7, 9])
    CategoryCounts(found=3, true=2)
    """
    truth, ids = _aligned(y_true, y_pred)
    return CategoryCounts(found=len(np.unique(ids)), true=len(np.unique(truth)))


def fragmentation(y_true: Labels, y_pred: Labels) -> Fragmentation:
    """Return over how many ids the average true class is spread, plainly and by entropy.

    >>> fragmentation(["a", "a", "b", "b"], [0, 1, 2, 2])
    Fragmentation(ids=1.5, effective_ids=1.5)
    """
    truth, ids = _aligned(y_true, y_pred)
    if not len(truth):
        return Fragmentation(0.0, 0.0)
    _, columns, counts, _ = _contingency(truth, ids)
    share = counts / np.bincount(columns, weights=counts)[columns]
    entropy = np.bincount(columns, weights=-share * np.log(share))
    return Fragmentation(float(np.bincount(columns).mean()), float(np.exp(entropy).mean()))


def _matched(truth: npt.NDArray[Any], ids: npt.NDArray[Any], old: Bools, top_k: int | None) -> Bools:
    """Return which samples are right under the best one-to-one matching of ids and classes."""
    if top_k is not None and top_k < 1:
        raise DataError(f"top_k={top_k!r}: keep at least 1 id, or leave top_k out to keep all of them.")
    if not len(truth):
        return np.zeros(0, dtype=np.bool_)
    rows, columns, counts, cell_of_sample = _contingency(truth, ids)
    # A right old sample is worth one part in N + 1 more: it settles ties and can't outweigh a sample.
    cell_is_old = np.zeros(len(counts), dtype=np.bool_)
    cell_is_old[cell_of_sample] = old
    value = counts * (len(truth) + 1) + counts * cell_is_old
    if top_k is not None:
        value[~_among_largest(rows, counts, top_k)[rows]] = 0
    return _best_cells(rows, columns, value)[cell_of_sample]


def _best_cells(rows: Ints, columns: Ints, value: Ints) -> Bools:
    """Return which cells of a sparse table an assignment of columns to rows picks to maximise their sum.

    Each column also gets a row of its own that is worth nothing, so that a full matching exists; adding
    1 to every edge keeps those edges explicit and changes all full matchings alike. The table never becomes
    dense: 2,000 classes by 20,000 ids would take 320 MB and twenty times as long.
    """
    edges = np.flatnonzero(value)
    n_rows, n_columns = int(rows.max()) + 1, int(columns.max()) + 1
    spare = np.arange(n_columns)
    table = coo_array(
        (
            np.concatenate([value[edges] + 1, np.ones(n_columns, dtype=np.int64)]).astype(np.float64),
            (np.concatenate([columns[edges], spare]), np.concatenate([rows[edges], n_rows + spare])),
        ),
        shape=(n_columns, n_rows + n_columns),
    ).tocsr()
    matched_columns, matched_rows = min_weight_full_bipartite_matching(table, maximize=True)
    row_of_column = np.empty(n_columns, dtype=np.int64)
    row_of_column[matched_columns] = matched_rows
    return np.asarray((row_of_column[columns] == rows) & (value > 0), dtype=np.bool_)


def _contingency(truth: npt.NDArray[Any], ids: npt.NDArray[Any]) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the filled cells (id, class, count) of the contingency table and the cell of every sample."""
    _, row = np.unique(ids, return_inverse=True)
    classes, column = np.unique(truth, return_inverse=True)
    cells, cell_of_sample, counts = np.unique(row * len(classes) + column, return_inverse=True, return_counts=True)
    return cells // len(classes), cells % len(classes), counts, cell_of_sample


def _among_largest(rows: Ints, counts: Ints, top_k: int) -> Bools:
    """Return for every compact id whether it is one of the ``top_k`` largest; ties go to the smaller id."""
    sizes = np.bincount(rows, weights=counts)
    keep = np.zeros(len(sizes), dtype=np.bool_)
    keep[np.argsort(-sizes, kind="stable")[:top_k]] = True
    return keep


def _share(right: npt.NDArray[Any]) -> float:
    return float(right.mean()) if len(right) else 0.0


def _is_old(truth: npt.NDArray[Any], known: KnownClasses) -> Bools:
    if not len(truth):
        return np.zeros(0, dtype=np.bool_)
    if isinstance(known, int | np.integer):
        if truth.dtype.kind == "U":
            raise DataError(
                f"known_classes={known} is a number but the labels are text such as {str(truth[0])!r}; "
                "give the names of the known classes instead."
            )
        return np.asarray(truth < known, dtype=np.bool_)
    if isinstance(known, str):
        raise DataError(f"known_classes={known!r} is one text; give a list of names or a number of classes.")
    names = _array(known, "known_classes")
    if len(names) and (names.dtype.kind == "U") != (truth.dtype.kind == "U"):
        raise DataError(
            f"known_classes holds {names[0].item()!r} but labels such as {truth[0].item()!r}; "
            "use the same kind (ints or text) for both."
        )
    return np.isin(truth, names) if len(names) else np.zeros(len(truth), dtype=np.bool_)


def _aligned(y_true: Labels, y_pred: Labels) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    truth, ids = _array(y_true, "y_true"), _array(y_pred, "y_pred")
    if len(truth) != len(ids):
        raise DataError(f"y_true has {len(truth)} labels but y_pred has {len(ids)} ids; give one prediction a label.")
    return truth, ids


def _array(values: Labels, name: str) -> npt.NDArray[Any]:
    if hasattr(values, "detach"):  # a torch tensor, on whichever device
        values = values.detach().cpu().numpy()
    array = values if isinstance(values, np.ndarray) and values.dtype != object else np.array(list(values))
    if array.ndim != 1:
        raise DataError(f"{name} has shape {array.shape}; give one label a sample (one dimension).")
    if not array.size:
        return array.astype(np.int64)
    if array.dtype.kind not in "iubU":
        raise DataError(f"{name} holds values such as {array[0]!r} of type {array.dtype}; use ints or text.")
    return array if array.dtype.kind == "U" else array.astype(np.int64)
