"""Pictures, from bytes to canvases and random views: the first room that an image enters.

``decode`` turns anything into an upright RGB picture or refuses it, ``sources`` lists folders, manifests,
archives and standard input, ``loading`` decodes ahead, ``transforms`` holds what belongs to a backbone,
``augment`` draws random views, ``vectors`` reads embeddings that stand for images. ``digits`` and ``glyphs``
make pictures without a download; import those two by name: they load scikit-learn and matplotlib.
"""

from talon_ocd.images.augment import AUGMENTATIONS, Augmentation, augment, view_seed
from talon_ocd.images.decode import LIMITS, Limits, decode
from talon_ocd.images.items import ImageItem, ImageSource, Skipped, display, in_memory, memory_item
from talon_ocd.images.loading import Batch, batches, load_canvases
from talon_ocd.images.sources import file_item, labelled, stdin_items, stream
from talon_ocd.images.transforms import Preprocessing
from talon_ocd.images.vectors import VectorFacts, VectorSource

__all__ = [
    "AUGMENTATIONS",
    "LIMITS",
    "Augmentation",
    "Batch",
    "ImageItem",
    "ImageSource",
    "Limits",
    "Preprocessing",
    "Skipped",
    "VectorFacts",
    "VectorSource",
    "augment",
    "batches",
    "decode",
    "display",
    "file_item",
    "in_memory",
    "labelled",
    "load_canvases",
    "memory_item",
    "stdin_items",
    "stream",
    "view_seed",
]
