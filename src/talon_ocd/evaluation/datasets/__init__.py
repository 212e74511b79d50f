"""Data sets that an evaluation can ask for by name: embedded ones, a folder, and official downloads.

``registry`` knows the names; ``cifar``, ``listed``, ``cars`` and ``trees`` read official downloads as they come from
their sites, with ``layout`` for what they share; ``dataset`` is what comes out.
"""

from talon_ocd.evaluation.datasets.dataset import Dataset, Expected, Found, Known
from talon_ocd.evaluation.datasets.registry import OFFICIAL, Official, dataset_names, load_dataset

__all__ = ["OFFICIAL", "Dataset", "Expected", "Found", "Known", "Official", "dataset_names", "load_dataset"]
