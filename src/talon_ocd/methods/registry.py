"""Methods by name (layer: methods): one line each."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from talon_ocd.config import ADAPTATIONS, TalonConfig
from talon_ocd.errors import ConfigError, nearest
from talon_ocd.methods.age import AgeMethod
from talon_ocd.methods.base import Method
from talon_ocd.methods.descriptors import RankStatMethod, WtaMethod
from talon_ocd.methods.diffgre import DiffGreMethod, DiffGreRecipe
from talon_ocd.methods.evidence import EvidenceMethod, evidence_recipe
from talon_ocd.methods.hashing import HashMethod, HashRecipe, SmileRecipe
from talon_ocd.methods.ltc import LtcMethod
from talon_ocd.methods.mldg import MldgRecipe
from talon_ocd.methods.phe import PheMethod, PheRecipe
from talon_ocd.methods.slc import SlcMethod
from talon_ocd.methods.sync import SyncMethod
from talon_ocd.methods.talon import NEVER, TalonMethod, TalonRecipe, adapter_row, talon_config, talon_row

Build = Callable[[TalonConfig], Method]


@dataclass(frozen=True)
class Entry:
    """A method under its name."""

    group: str
    """Tables and ``--method GROUP`` take methods by group."""
    title: str
    """What tables call it."""
    build: Build
    """Makes the method; only the TALON family looks at the config."""


REGISTRY: dict[str, Entry] = {
    "evidence": Entry("ours", "Evidence", lambda config: EvidenceMethod(evidence_recipe(config))),
    "evidence-no-rehearsal": Entry(
        "ours", "Evidence, offset 0", lambda config: EvidenceMethod(evidence_recipe(config), offset=0.0)
    ),
    "evidence-no-regrouping": Entry(
        "ours", "Evidence, no regrouping", lambda config: EvidenceMethod(evidence_recipe(config), regroup=0)
    ),
    "evidence-no-branching": Entry(
        "ours", "Evidence, no branching", lambda config: EvidenceMethod(evidence_recipe(config), branch_below=0.0)
    ),
    "evidence-no-second-thoughts": Entry(
        "ours", "Evidence, no second thoughts", lambda config: EvidenceMethod(evidence_recipe(config), sweeps=0)
    ),
    "evidence-no-learning": Entry(
        "ours", "Evidence, no learning", lambda config: EvidenceMethod(evidence_recipe(config), adapt=())
    ),
    "evidence-tta-m": Entry(
        "ours", "Evidence+TTA-M", lambda config: EvidenceMethod(evidence_recipe(config), adapt=ADAPTATIONS)
    ),
    "talon": Entry("ablation", "TALON", lambda config: talon_row(config, True, None)),
    "baseline": Entry("ablation", "Baseline", lambda config: talon_row(config, False, ())),
    "mlc": Entry("ablation", "Baseline+MLC", lambda config: talon_row(config, True, ())),
    "tta-p": Entry("ablation", "Baseline+TTA-P", lambda config: talon_row(config, False, ("prototypes",))),
    "mlc-tta-p": Entry("ablation", "Baseline+MLC+TTA-P", lambda config: talon_row(config, True, ("prototypes",))),
    "tta-m": Entry("ablation", "Baseline+TTA-M", lambda config: talon_row(config, False, ("encoder",))),
    "mlc-tta-m": Entry("ablation", "Baseline+MLC+TTA-M", lambda config: talon_row(config, True, ("encoder",))),
    "tta-p-m": Entry(
        "ablation", "Baseline+TTA-P-M", lambda config: talon_row(config, False, ("prototypes", "encoder"))
    ),
    "closed": Entry(
        "floor",
        "Closed set (floor)",
        lambda config: TalonMethod(TalonRecipe(talon_config(config)), (), threshold=NEVER),
    ),
    "tent": Entry("adapter", "MLC+TENT", lambda config: adapter_row(config, ("encoder",), "tent")),
    "aeo": Entry("adapter", "MLC+AEO", lambda config: adapter_row(config, ("encoder",), "aeo")),
    "ostta": Entry("adapter", "MLC+OSTTA", lambda config: adapter_row(config, ("encoder",), "ostta")),
    "tta-p-tent": Entry("adapter", "MLC+TTA-P+TENT", lambda config: adapter_row(config, ADAPTATIONS, "tent")),
    "tta-p-aeo": Entry("adapter", "MLC+TTA-P+AEO", lambda config: adapter_row(config, ADAPTATIONS, "aeo")),
    "tta-p-ostta": Entry("adapter", "MLC+TTA-P+OSTTA", lambda config: adapter_row(config, ADAPTATIONS, "ostta")),
    "smile": Entry("hash", "SMILE", lambda config: HashMethod(SmileRecipe())),
    "smile-16": Entry("hash", "SMILE, 16 bits", lambda config: HashMethod(SmileRecipe(bits=16))),
    "smile-32": Entry("hash", "SMILE, 32 bits", lambda config: HashMethod(SmileRecipe(bits=32))),
    "smile-64": Entry("hash", "SMILE, 64 bits", lambda config: HashMethod(SmileRecipe(bits=64))),
    "base-hash": Entry("hash", "BaseHash", lambda config: HashMethod(HashRecipe())),
    "phe": Entry("hash", "PHE", lambda config: PheMethod()),
    "phe-legacy": Entry("hash", "PHE (released comparison)", lambda config: PheMethod(alphabet="legacy")),
    "phe-16": Entry("hash", "PHE, 16 bits", lambda config: PheMethod(PheRecipe(bits=16))),
    "phe-32": Entry("hash", "PHE, 32 bits", lambda config: PheMethod(PheRecipe(bits=32))),
    "phe-64": Entry("hash", "PHE, 64 bits", lambda config: PheMethod(PheRecipe(bits=64))),
    "rankstat": Entry("hash", "RankStat", lambda config: RankStatMethod()),
    "wta": Entry("hash", "WTA", lambda config: WtaMethod()),
    "mldg": Entry("hash", "MLDG", lambda config: HashMethod(MldgRecipe())),
    "slc": Entry("cluster", "SLC", lambda config: SlcMethod()),
    "slc-seeded": Entry("cluster", "SLC from class means", lambda config: SlcMethod(seed_with_class_means=True)),
    "sync": Entry("cluster", "SynC", lambda config: SyncMethod()),
    "diffgre-smile": Entry("diffgre", "DiffGRE+SMILE", lambda config: DiffGreMethod()),
    "diffgre-phe": Entry("diffgre", "DiffGRE+PHE", lambda config: DiffGreMethod(DiffGreRecipe(PheRecipe()))),
    "diffgre-smile-leaders": Entry(
        "diffgre", "DiffGRE+SMILE, online clustering", lambda config: DiffGreMethod(inference="leaders")
    ),
    "diffgre-phe-leaders": Entry(
        "diffgre",
        "DiffGRE+PHE, online clustering",
        lambda config: DiffGreMethod(DiffGreRecipe(PheRecipe()), inference="leaders"),
    ),
    "ltc": Entry("cluster", "LTC", lambda config: LtcMethod()),
    "age": Entry("cluster", "AGE", lambda config: AgeMethod()),
}


_OWN = frozenset(REGISTRY)
"""Names of this package."""


def get_method(name: str, config: TalonConfig | None = None) -> Method:
    """Return a method with its settings; ``config`` is that of the TALON family.

    >>> get_method("mlc-tta-p").adapt
    ('prototypes',)
    """
    return entry(name).build(config or TalonConfig())


def register_file(path: Path) -> list[str]:
    """Run a Python file that defines ``METHODS``, names with their ``Entry``, and return the names.

    A name that is taken by a method of this package is refused; one of an earlier file is replaced.
    """
    spec = importlib.util.spec_from_file_location(f"talon_method_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"--method {path}: there is no such Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"--method {path}: the file can't be run ({type(error).__name__}: {error}).") from error
    entries = getattr(module, "METHODS", None)
    if not isinstance(entries, dict) or not entries or not all(isinstance(made, Entry) for made in entries.values()):
        raise ConfigError(f'--method {path}: the file must define METHODS = {{"name": Entry(group, title, build)}}.')
    for name, made in entries.items():
        if name in _OWN or not name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(f"--method {path}: {name!r} can't be used; take another name of letters, digits and -.")
        REGISTRY[name] = made
    return list(entries)


def with_setting(method: Method, name: str, value: Any) -> Method:
    """Return a method with one setting changed: one of its own, or of its recipe; dots lead into settings of settings.

    >>> with_setting(get_method("talon"), "threshold", 0.6).threshold
    0.6
    >>> with_setting(get_method("diffgre-phe"), "host.bits", 16).recipe.host.bits
    16
    """
    first = name.partition(".")[0]
    own, trained = ([setting.name for setting in fields(part)] for part in (method, method.recipe))
    if first not in (*own, *trained):
        raise ConfigError(f"{type(method).__name__} has no setting {name!r}.{nearest(first, [*own, *trained])}")
    changed: Method = _changed(method, name if first in own else f"recipe.{name}", value)
    return changed


def _changed(part: Any, name: str, value: Any) -> Any:
    """Return a frozen dataclass with the setting at a dotted name changed."""
    first, _, rest = name.partition(".")
    known = [setting.name for setting in fields(part)] if is_dataclass(part) else []
    if first not in known:
        raise ConfigError(f"{type(part).__name__} has no setting {first!r}.{nearest(first, known)}")
    before = getattr(part, first)
    if rest:
        return replace(part, **{first: _changed(before, rest, value)})
    kinds = (float, int) if isinstance(before, float) else (type(before),)
    if before is not None and not isinstance(value, kinds):
        raise ConfigError(f"{first}={value!r}: {first} must be like {before!r}.")
    return replace(part, **{first: value})


def entry(name: str) -> Entry:
    """Return what is registered under a name."""
    if name not in REGISTRY:
        groups = dict.fromkeys(found.group for found in REGISTRY.values())
        raise ConfigError(
            f"method {name!r} is not known; use one of {', '.join(REGISTRY)}, or a group: all, {', '.join(groups)}."
            f"{nearest(name, [*REGISTRY, *groups])}"
        )
    return REGISTRY[name]


def list_methods(group: str = "all") -> list[str]:
    """Return the names of all methods, or those of a group; an unknown group is a name that does not exist."""
    found = [name for name, registered in REGISTRY.items() if group in ("all", registered.group)]
    return found if found or group == "all" else [group for _ in [entry(group)]]
