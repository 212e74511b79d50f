import subprocess
import sys

import talon_ocd


def test_the_public_names() -> None:
    assert talon_ocd.__all__ == sorted(talon_ocd.__all__)
    assert talon_ocd.__all__ == [
        "Backbone",
        "Decision",
        "DiscoveryStream",
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
