"""On-the-fly category discovery in image streams: these are the public names."""

import importlib
import os
from types import ModuleType

__version__ = "0.1.0"

# Before torch is loaded: OpenMP threads that wait by spinning slow everything down several times as soon as another
# process wants the same cores; threads that sleep cost nothing measurable.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from talon_ocd.backbones import Backbone, get_backbone, list_backbones
from talon_ocd.catalog import Catalog
from talon_ocd.config import TalonConfig
from talon_ocd.durable import DurableStream
from talon_ocd.embeddings import discover_features, feature_stream
from talon_ocd.errors import TalonError
from talon_ocd.memory import PrototypeMemory
from talon_ocd.online import Bounds, Decision, DiscoveryStream, FeatureStream
from talon_ocd.talon import Talon

__all__ = [
    "Backbone",
    "Bounds",
    "Catalog",
    "Decision",
    "DiscoveryStream",
    "DurableStream",
    "FeatureStream",
    "PrototypeMemory",
    "Talon",
    "TalonConfig",
    "TalonError",
    "__version__",
    "discover_features",
    "feature_stream",
    "get_backbone",
    "list_backbones",
]


def __getattr__(name: str) -> ModuleType:
    """Load ``talon_ocd.evaluation`` when it is first asked for: its figures take long to import."""
    if name == "evaluation":
        return importlib.import_module("talon_ocd.evaluation")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
