"""DiffGRE (section 3.10): virtual images of classes that nobody has labelled enrich the training of a host.

Read ``generate`` (how pictures are made; ``diffusion`` needs an extra), ``virtual`` (how they reach training),
``refine`` and ``leader`` (which stay, and what they are called), and ``recipe`` (all of it, in order).
"""

from talon_ocd.methods.diffgre.recipe import DiffGreMethod, DiffGreRecipe

__all__ = ["DiffGreMethod", "DiffGreRecipe"]
