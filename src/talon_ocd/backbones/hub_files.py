"""Files of hub models (layer: backbones): the one door to transformers, and errors that name the remedy."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from talon_ocd.errors import BackboneError


def import_transformers() -> Any:
    """Return the transformers package, imported at the first use only."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise BackboneError(
            f"encoders of the hub need transformers ({error}): pip install 'talon-ocd[hub]', "
            "or use efficientnet-lite0, which is embedded."
        ) from error


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Keep transformers from drawing bars, logging and warning; leave its settings as they were."""
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.set_verbosity_error()
        if bars:
            logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()


def read_json(name: str, file: str, required: bool) -> dict[str, Any]:
    """Read a JSON file of a model folder or hub id; a missing one is ``{}`` unless it is required."""
    path = _in_folder(Path(name), file, required) if Path(name).is_dir() else _from_hub(name, file, required)
    if path is None:
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BackboneError(f"{path}: can't be read as JSON ({error}); download the model again.") from error
    if not isinstance(data, dict):
        raise BackboneError(f"{path}: holds {type(data).__name__}, not settings; download the model again.")
    return data


def cannot_load(name: str, error: Exception) -> BackboneError:
    """Say what was tried and how to get the model once, for use without network."""
    reason = " ".join(str(error).split()) or type(error).__name__
    reason = reason if len(reason) <= 300 else f"{reason[:297]}..."
    local = Path(name).is_dir()
    where = "the folder" if local else "no such folder here, then the Hugging Face hub and its cache"
    return BackboneError(
        f"{name}: the encoder can't be loaded. Tried: {where}. Reason: {reason} "
        f"With network, hf download {_hub_id(name)} --local-dir DIR fetches it once; then pass DIR."
    )


def _hub_id(name: str) -> str:
    return "ID" if Path(name).is_dir() or name.count("/") != 1 or name.startswith((".", "/", "~")) else name


def _in_folder(folder: Path, file: str, required: bool) -> Path | None:
    path = folder / file
    if path.is_file():
        return path
    if not required:
        return None
    held = sorted(entry.name for entry in folder.iterdir())[:5]
    raise BackboneError(
        f"{folder}: no model folder, {file} is missing (it holds {', '.join(held) or 'nothing'}). "
        "Give a folder written by save_pretrained or by hf download ID --local-dir DIR."
    )


def _from_hub(name: str, file: str, required: bool) -> Path | None:
    transformers = import_transformers()
    try:
        with quiet(transformers):
            found = transformers.utils.cached_file(
                name,
                file,
                _raise_exceptions_for_missing_entries=required,
                _raise_exceptions_for_connection_errors=required,
            )
    except (OSError, ValueError) as error:
        raise cannot_load(name, error) from error
    return None if found is None else Path(found)
