"""The documentation speaks of settings that exist, and of all of them."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from talon_ocd.config import GuardConfig, TalonConfig

DOCS = Path(__file__).parent.parent / "docs"
SECTIONS = ("offline", "online", "evidence", "calibration")


def settings() -> set[str]:
    config = TalonConfig()
    return {f"{part}.{field.name}" for part in SECTIONS for field in dataclasses.fields(getattr(config, part))}


@pytest.mark.skipif(not DOCS.is_dir(), reason="installed without the documentation")
def test_every_setting_is_documented_and_every_documented_setting_exists() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md")))
    named = set(re.findall(rf"\b((?:{'|'.join(SECTIONS)})\.[a-z_]+)\b", text))
    endings = ("py", "md", "safetensors")
    files = {f"{part}.py" for part in SECTIONS} | {name for name in named if name.split(".")[1] in endings}
    assert named - files - settings() == set()
    assert settings() - named == set()


@pytest.mark.skipif(not DOCS.is_dir(), reason="installed without the documentation")
def test_the_settings_of_the_guard_are_on_its_page_with_their_defaults() -> None:
    text = (DOCS / "guard.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"\| `guard\.([a-z_]+)` \| ([a-z0-9.]+)[^|]* \|$", text, re.MULTILINE))
    assert {name: json.loads(value) for name, value in shown.items()} == dataclasses.asdict(GuardConfig())


@pytest.mark.skipif(not DOCS.is_dir(), reason="installed without the documentation")
def test_links_between_pages_lead_somewhere() -> None:
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"]
    for page in pages:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.skipif(not DOCS.is_dir(), reason="installed without the documentation")
def test_documented_defaults_are_those_of_the_config() -> None:
    words = "|".join(SECTIONS)
    row = re.compile(rf"\| `({words})\.([a-z_]+)` \| `?([a-z0-9./-]+)`?[^|]* \|$", re.MULTILINE)
    found = row.findall("\n".join((DOCS / page).read_text(encoding="utf-8") for page in ("method.md", "evidence.md")))
    assert len(found) > 35
    for section, name, shown in found:
        value = getattr(getattr(TalonConfig(), section), name)
        expected = {bool: str(value).lower(), str: value, tuple: " and ".join(value) if name == "adapt" else ""}
        if type(value) in expected:
            assert expected[type(value)].startswith(shown), name
        else:
            numerator, _, denominator = shown.partition("/")
            assert float(numerator) / float(denominator or 1) == pytest.approx(value), name


@pytest.mark.skipif(not DOCS.is_dir(), reason="installed without the documentation")
def test_measured_tables_are_those_of_the_committed_rows() -> None:
    script = DOCS.parent / "benchmarks" / "write_docs.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"run python benchmarks/write_docs.py: {done.stdout}{done.stderr}"
