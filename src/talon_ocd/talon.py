"""The model that people hold: fit on labelled images, save, load, open streams (layer: facade)."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import Any, overload

from talon_ocd.backbones import Backbone, Finished, PairedHead, check_vectors, get_backbone, paired, takes_vectors
from talon_ocd.config import OfflineConfig, OnlineConfig, TalonConfig, parse_adapt
from talon_ocd.durable import DurableStream, Identity, fingerprint, settings_at, settings_of
from talon_ocd.errors import ConfigError, DataError, NotFittedError
from talon_ocd.images import ImageItem, ImageSource, Skipped, VectorFacts, VectorSource, display, labelled
from talon_ocd.memory import PrototypeMemory
from talon_ocd.offline import ALONE, Fitting, Labelled, Processes, TrunkCache, choose_probe
from talon_ocd.online import Bounds, DiscoveryStream, Evidence, EvidenceRule, Guard, Probe
from talon_ocd.progress import SILENT, Progress
from talon_ocd.saved import BEFORE_IT_COULD_BE_SET, SavedModel, read_model, write_model

LabelledData = str | Path | ImageSource | Sequence[ImageItem]


class Talon:
    """On-the-fly category discovery: ``fit`` once on known classes, then open streams.

    Args:
        backbone: a name (see ``list_backbones``), a hub id, a model folder, or a ``Backbone``.
        config: every setting; by default those of ``preset``.
        preset: ``default``, ``official`` or ``paper``.
        device: where the encoder computes, e.g. ``cuda``; the memory and its decisions stay on the CPU.
        backbone_options: what the encoder takes, such as ``image_size`` or ``aspect``.

    Attributes:
        backbone: the encoder; ``fit`` trains its head.
        config: every setting; ``TalonConfig.from_preset`` has the presets.
        names: the known classes, in the order of their ids.
        report: what ``fit`` measured (losses, angles, the rehearsal's table), as plain data.
        skipped: labelled images that could not be used, with the reason.
        evidence: what the evidence rule learned from the labelled images; ``None`` if a threshold decides.
        probe: labelled images that guard the encoder steps of streams; ``None`` if ``guard.enabled`` is off.
        folder: where the model was loaded from, empty if it was not.
    """

    def __init__(
        self,
        backbone: str | Backbone = "efficientnet-lite0",
        config: TalonConfig | None = None,
        preset: str = "default",
        device: str | None = None,
        **backbone_options: Any,
    ) -> None:
        encoder = get_backbone(backbone, **backbone_options) if isinstance(backbone, str) else backbone
        self.config = config or TalonConfig.from_preset(preset, encoder.family)
        self.backbone = prepared(encoder, self.config.offline)
        if device is not None:
            self.backbone.to(device)
        self.names: tuple[str, ...] = ()
        self.report: dict[str, Any] = {}
        self.skipped: tuple[Skipped, ...] = ()
        self._memory: PrototypeMemory | None = None
        self._threshold: float | None = None
        self.evidence: Evidence | None = None
        self.probe: Probe | None = None
        self.folder = ""
        self._made_for: Talon | None = None

    def fit(
        self,
        data: LabelledData,
        *,
        cache: TrunkCache | None = None,
        checkpoint: Path | None = None,
        progress: Progress = SILENT,
        processes: Processes = ALONE,
    ) -> None:
        """Learn the known classes from labelled images: a folder per class, a manifest, a tar, or a list of items.

        A second call goes on from the head that the first one trained.

        Args:
            data: the labelled images.
            cache: trunk outputs to share with other fits; by default one that lives as long as this call.
            checkpoint: a file to resume from if an earlier, equal call was interrupted.
            progress: who wants to know how far it is.
            processes: who trains together (see ``offline.joined``); all of them make the same call.
        """
        source = labelled(data) if isinstance(data, str | Path) else data
        if isinstance(source, VectorSource):
            check_vectors(source.facts, self.backbone, source.name)
        items = source.items if isinstance(source, ImageSource) else list(source)
        if any(item.label is None for item in items):
            raise DataError("fit needs a label for every image; use a folder per class or a manifest with path,label.")
        processes.check_same(
            (self.config.to_dict(), [(item.source, item.label) for item in items]), "settings or images"
        )
        before = copy.deepcopy(self.backbone.head)
        try:
            with cache_for(self.backbone, self.config) if cache is None else nullcontext(cache) as shared:
                known = Labelled.from_items(items, self.backbone, self.config.offline, shared, progress, processes)
                fitted = Fitting(self.backbone, known, self.config, progress).run(checkpoint)
                probe = choose_probe(known, self.config.guard.images) if self.config.guard.enabled else None
        except BaseException:  # a head that is trained by half belongs to no memory
            self.backbone.head = before
            raise
        self.names, self.report = fitted.names, fitted.report
        earlier = tuple(source.skipped) if isinstance(source, ImageSource) else ()
        self.skipped = earlier + fitted.skipped
        self.report["skipped"] = [asdict(skipped) for skipped in self.skipped]
        self._memory, self._threshold, self.evidence = fitted.memory, fitted.threshold, fitted.evidence
        self.probe = probe

    @property
    def memory(self) -> PrototypeMemory:
        """The prototypes of the known classes."""
        if self._memory is None:
            raise NotFittedError(
                "this model knows no classes yet; call fit(...) or Talon.from_pretrained(folder) first."
            )
        return self._memory

    @property
    def threshold(self) -> float:
        """The threshold that streams use unless told otherwise; 0 log-odds when evidence decides."""
        if self._threshold is None:
            raise NotFittedError(
                "this model has no threshold yet; call fit(...) or Talon.from_pretrained(folder) first."
            )
        return self._threshold

    @overload
    def stream(
        self,
        folder: None = None,
        *,
        threshold: float | str | None = None,
        adapt: str | None = None,
        finer: float | None = None,
        bounds: Bounds | None = None,
        purpose: str = ...,
    ) -> DiscoveryStream: ...

    @overload
    def stream(
        self,
        folder: str | Path,
        *,
        threshold: float | str | None = None,
        adapt: str | None = None,
        finer: float | None = None,
        bounds: Bounds | None = None,
        purpose: str = ...,
    ) -> DurableStream: ...

    def stream(
        self,
        folder: str | Path | None = None,
        *,
        threshold: float | str | None = None,
        adapt: str | None = None,
        finer: float | None = None,
        bounds: Bounds | None = None,
        purpose: str = "a program",
    ) -> DiscoveryStream:
        """Open a stream; it adapts copies, so that streams of one model never meet.

        Args:
            folder: where the stream lives: it goes on where it stopped. ``None`` keeps it in memory.
            threshold: a cosine for TALON's rule, ``auto`` (what ``fit`` found), or ``None`` for the model's own.
            adapt: ``prototypes``, ``encoder``, ``prototypes,encoder`` or ``none``; ``None`` for the model's own.
            finer: nats that evidence must reach besides what was rehearsed: 3 gives more categories, -3 fewer.
            bounds: when discovered categories are retired.
            purpose: what others are told who want the same folder.

        What is left out has the value that the folder's stream was begun with.
        """
        begun = settings_at(Path(folder)) if folder is not None else {}
        if begun:
            if threshold is None and begun["rule"] == "cosine":
                threshold = begun["threshold"]
            adapt = adapt if adapt is not None else ",".join(begun["adapt"]) or "none"
            finer = finer if finer is not None else begun["finer"]
            bounds = bounds or Bounds(**begun["bounds"])
        finer, bounds = finer or 0.0, bounds or Bounds()
        online = self.config.online if adapt is None else replace(self.config.online, adapt=parse_adapt(adapt))
        if self._made_for is not None and "encoder" in online.adapt:
            raise ConfigError(
                "adapt=encoder needs images: embeddings were made by then; use --adapt prototypes or none."
            )
        rule = self._rule(threshold, finer, online)
        if rule is None:
            online = replace(online, threshold=self._resolve(threshold))
        parts: dict[str, Any] = {
            "backbone": self.backbone,
            "memory": self.memory.copy(),
            "config": online,
            "names": self.names,
            "rule": rule,
            "guard": self._guard(online),
            "bounds": bounds,
        }
        if folder is None:
            return DiscoveryStream(**parts)
        kind, at = ("cosine", online.threshold) if rule is None else (rule.name, rule.threshold)
        settings = settings_of(float(at), kind, finer, online.adapt, bounds)
        identity = Identity(self.fingerprint(), self.folder, self.names, settings)
        return DurableStream(Path(folder), identity, purpose=purpose, **parts)

    def for_vectors(self, facts: VectorFacts, where: str) -> Talon:
        """Return this model for embeddings instead of images: those of its own encoder, or those it was fitted on.

        Streams are the same as those of images, but for an encoder that can't adapt: it has done its work.
        """
        check_vectors(facts, self.backbone, where)
        if takes_vectors(self.backbone):
            return self
        other = copy.copy(self)
        other.backbone, other._made_for = Finished(self.backbone), self
        return other

    def fingerprint(self) -> str:
        """Return a digest of all that answers follow from: encoder, prototypes, evidence, probe, names, settings."""
        if self._made_for is not None:  # the same answers: a stream of images goes on with embeddings, and back
            return self._made_for.fingerprint()
        evidence = {} if self.evidence is None else self.evidence.state_dict()
        probe = {} if self.probe is None else self.probe.state_dict()
        settings = self.config.to_dict()
        for name, before in (("index_above", 0), ("half_precision", False)):
            if settings["online"][name] in (before, getattr(OnlineConfig(), name)):
                del settings["online"][name]  # streams that began before there was a choice go on
        for name, earlier in BEFORE_IT_COULD_BE_SET.items():
            if settings["evidence"][name] == earlier:
                del settings["evidence"][name]
        if settings["evidence"]["share_weight"] == self.config.evidence.prior_weight:
            del settings["evidence"]["share_weight"]  # there was one weight for both
        renamed = {"known": "auto", "auto": "by share"}  # what is called known now was called auto then
        concentration = settings["evidence"]["concentration"]
        settings["evidence"]["concentration"] = renamed.get(concentration, concentration)
        del settings["evidence"]["smoothing_classes"]
        settings["evidence"]["smoothing"] = 0.5  # what it was when streams began that shall go on; ψ is in the evidence
        encoder, head = self.backbone.state_dict(), self.backbone.head
        if isinstance(head, PairedHead) and head.weight == 1.0:  # as heads were before they had one
            del encoder["head.weight"]
        facts = {"names": self.names, **{part: settings[part] for part in ("online", "evidence", "guard")}}
        return fingerprint(facts, encoder, self.memory.state_dict(), evidence, probe)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that stands alone: settings, preprocessing, encoder, prototypes, names."""
        parts = (self.backbone, self.memory, self.names, self.threshold, self.config, self.report)
        write_model(SavedModel(*parts, self.evidence, self.probe), Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: str | None = None) -> Talon:
        """Load a folder that ``save_pretrained`` or ``talon fit`` wrote."""
        saved = read_model(Path(folder))
        talon = cls(saved.backbone, saved.config)
        talon.backbone = saved.backbone if device is None else saved.backbone.to(device)  # as it is: the memory fits it
        talon.names, talon.report = saved.names, saved.report
        talon._memory, talon._threshold, talon.evidence = saved.memory, saved.threshold, saved.evidence
        talon.probe, talon.folder = saved.probe, display(Path(folder).resolve())
        return talon

    def _rule(self, threshold: float | str | None, finer: float, online: OnlineConfig) -> EvidenceRule | None:
        """Return the evidence rule, or ``None`` if a threshold decides."""
        if not isfinite(finer):
            raise ConfigError(f"finer={finer:g}: finer must be a number of nats, such as 3 or -3.")
        if self.evidence is None or threshold not in (None, "auto"):
            if finer:
                raise ConfigError(f"finer={finer:g} is for streams that decide by evidence; give a threshold instead.")
            return None
        evidence = self.evidence.with_offset(self.evidence.offset + finer)
        return EvidenceRule(evidence, self.config.evidence, "prototypes" in online.adapt)

    def _guard(self, online: OnlineConfig) -> Guard | None:
        """Return a guard for a stream whose encoder learns, if there shall be one."""
        if "encoder" not in online.adapt or not self.config.guard.enabled:
            return None
        if self.probe is None:
            warnings.warn(
                "this model has no probe (it was fitted without a guard), so nothing watches the encoder's steps; "
                "fit it anew with guard.enabled = true, or set guard.enabled = false if that is meant.",
                stacklevel=3,
            )
            return None
        return Guard(self.probe, self.config.guard)

    def _resolve(self, threshold: float | str | None) -> float:
        if threshold is None:
            return self.threshold
        if threshold == "auto":
            if "calibration" not in self.report:
                raise ConfigError(
                    "threshold='auto': this model was fitted with a constant threshold "
                    f"({self.threshold:g}) and never rehearsed; fit it with the default preset, or give a number."
                )
            return float(self.report["calibration"]["threshold"])
        try:
            return float(threshold)
        except ValueError:
            raise ConfigError(f"threshold={threshold!r} is not known; give a number or 'auto'.") from None


def prepared(backbone: Backbone, config: OfflineConfig) -> Backbone:
    """Return the encoder that will be trained: with pre-trained head and texture beside it, if the settings say so."""
    if not config.keep_pretrained:
        return backbone
    return paired(backbone, config.epochs > 0, config.texture, config.trained_texture)


def cache_for(backbone: Backbone, config: TalonConfig, directory: Path | None = None) -> TrunkCache:
    """Return a cache of trunk outputs within the bounds that the config sets."""
    offline = config.offline
    return TrunkCache(
        backbone,
        memory_bytes=offline.cache_bytes,
        disk_bytes=offline.cache_disk_bytes,
        directory=directory,
        augmentation=offline.augmentation,
        seed=config.seed,
    )
