"""The offline room: from labelled images to a trained head and class prototypes (section 3.1 of the method).

Read ``losses`` and ``schedule`` (what is minimised), ``trunk_cache`` (trunk outputs, computed once; kept by
``row_store`` and ``cache_folder``), ``labelled`` and ``views``, ``loop``, ``training_state`` and ``trainer``,
``features`` and ``geometry`` (what comes out), ``estimate`` (the two Gaussians of the evidence rule), ``calibrate``
(the rehearsal that chooses offset or threshold), ``probe`` (what guards a stream), ``fit`` (all of it, in order) and
``distributed`` (the same on several processes).
"""

from talon_ocd.offline.calibrate import Calibration, calibrate
from talon_ocd.offline.distributed import ALONE, Processes, joined, own_device
from talon_ocd.offline.estimate import estimate, rescaled, support
from talon_ocd.offline.features import class_means, encode
from talon_ocd.offline.fit import FALLBACK_THRESHOLD, NOTHING_TO_REHEARSE, Fitted, Fitting
from talon_ocd.offline.geometry import Angles, angles
from talon_ocd.offline.labelled import Labelled
from talon_ocd.offline.loop import Loop, generator
from talon_ocd.offline.losses import Classifier, margin_logits, offline_loss, supcon
from talon_ocd.offline.probe import choose_probe
from talon_ocd.offline.schedule import learning_rate
from talon_ocd.offline.trainer import TrainingReport, train_head
from talon_ocd.offline.trunk_cache import TrunkCache, TrunkOutputs
from talon_ocd.offline.views import CachedViews, FreshViews, Views

__all__ = [
    "ALONE",
    "FALLBACK_THRESHOLD",
    "NOTHING_TO_REHEARSE",
    "Angles",
    "CachedViews",
    "Calibration",
    "Classifier",
    "Fitted",
    "Fitting",
    "FreshViews",
    "Labelled",
    "Loop",
    "Processes",
    "TrainingReport",
    "TrunkCache",
    "TrunkOutputs",
    "Views",
    "angles",
    "calibrate",
    "choose_probe",
    "class_means",
    "encode",
    "estimate",
    "generator",
    "joined",
    "learning_rate",
    "margin_logits",
    "offline_loss",
    "own_device",
    "rescaled",
    "supcon",
    "support",
    "train_head",
]
