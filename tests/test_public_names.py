import subprocess
import sys

import talon_ocd
from talon_ocd.methods import list_methods


def test_the_public_names() -> None:
    assert talon_ocd.__all__ == sorted(talon_ocd.__all__)
    assert talon_ocd.__all__ == [
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
    assert all(hasattr(talon_ocd, name) for name in talon_ocd.__all__)


def test_the_names_that_a_method_is_written_with() -> None:
    from talon_ocd import methods

    assert methods.__all__ == [
        "Entry",
        "FrozenStream",
        "GradientRecipe",
        "Group",
        "HeadNetwork",
        "Match",
        "Method",
        "MethodStream",
        "OneByOneStream",
        "PrototypeStream",
        "Recipe",
        "Trained",
        "Training",
        "get_method",
        "list_methods",
        "register_file",
    ]
    assert all(hasattr(methods, name) for name in methods.__all__)


def test_the_names_that_tables_are_made_with() -> None:
    assert list_methods() == [
        *(
            "evidence",
            "evidence-no-rehearsal",
            "evidence-no-regrouping",
            "evidence-no-branching",
            "evidence-no-second-thoughts",
        ),
        *("evidence-no-learning", "evidence-tta-m"),
        *("talon", "baseline", "mlc", "tta-p", "mlc-tta-p", "tta-m", "mlc-tta-m", "tta-p-m", "closed"),
        *("tent", "aeo", "ostta", "tta-p-tent", "tta-p-aeo", "tta-p-ostta"),
        *("smile", "smile-16", "smile-32", "smile-64", "base-hash"),
        *("phe", "phe-legacy", "phe-16", "phe-32", "phe-64", "rankstat", "wta", "mldg"),
        *("slc", "slc-seeded", "sync", "diffgre-smile", "diffgre-phe", "diffgre-smile-leaders", "diffgre-phe-leaders"),
        *("ltc", "age"),
    ]


def test_the_scores_have_their_promised_home() -> None:
    from talon_ocd.evaluation import greedy_accuracy, strict_accuracy

    truth, ids = [0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 3, 0, 1, 3, 3, 0]
    assert talon_ocd.evaluation.strict_accuracy is strict_accuracy and not hasattr(talon_ocd, "evaluations")
    for accuracy in (strict_accuracy(truth, ids, [0, 1]), greedy_accuracy(truth, ids, [0, 1])):
        assert (accuracy.all, accuracy.old, round(accuracy.new, 4)) == (0.625, 0.6, 0.6667)


def test_importing_loads_no_heavy_extra() -> None:
    program = "import sys, talon_ocd; print([m for m in ('transformers', 'matplotlib', 'typer') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
