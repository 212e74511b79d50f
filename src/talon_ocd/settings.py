"""Checking, building and printing settings dataclasses (layer: beside ``config``)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from talon_ocd.errors import ConfigError, nearest


def require(config: object, name: str, holds: bool, wanted: str) -> None:
    """Refuse the value of a field, saying what is wanted."""
    if not holds:
        raise ConfigError(f"{name}={getattr(config, name)!r}: {name} must be {wanted}.")


def check_types(config: Any) -> None:
    """Refuse values of the wrong kind; numbers of numpy become Python's, which JSON can hold."""
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if not any(_is_a(value, kind) for kind in kinds):
            words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
            wanted = " or ".join(_say(kind) for kind in kinds)
            raise ConfigError(f"{name}={value!r}: {name} must be {wanted}.{nearest(str(value), words)}")
        for kind in (float, int):
            if kind in kinds and _is_a(value, kind):
                object.__setattr__(config, name, kind(value))


def _is_a(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if kind is float:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    if kind is int:
        return not isinstance(value, bool) and isinstance(value, Integral)
    return isinstance(value, get_origin(kind) or kind)


def _say(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    plain = {float: "a number", int: "a whole number", bool: "true or false", str: "a text", type(None): "none"}
    return plain.get(kind, "a section" if dataclasses.is_dataclass(kind) else "a list")


def build(cls: type, data: Mapping[str, Any], where: str) -> Any:
    """Build nested dataclasses from plain data; an unknown key is refused with the nearest known one."""
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name not in hints:
            raise ConfigError(f"config key {where + name!r} is not known.{nearest(name, hints)}")
        section = dataclasses.is_dataclass(hints[name])
        if section and not isinstance(value, Mapping):
            raise ConfigError(f"config key {where + name!r} is a section; give a table, not {value!r}.")
        values[name] = build(hints[name], value, f"{where}{name}.") if section else value
    try:
        return cls(**values)
    except TypeError as error:
        raise ConfigError(f"config section {where or 'top level'!r}: {error}.") from error


def merge(base: dict[str, Any], changes: Mapping[str, Any], where: str) -> None:
    """Put nested changes over nested plain data."""
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(base.get(name), dict):
            merge(base[name], value, f"{where}{name}.")
        else:
            base[name] = value


def toml(data: Mapping[str, Any]) -> str:
    """Return plain data as TOML."""
    plain = [f"{name} = {_toml_value(value)}" for name, value in data.items() if not isinstance(value, Mapping)]
    tables = [f"\n[{name}]\n{toml(value)}" for name, value in data.items() if isinstance(value, Mapping)]
    return "\n".join(plain + tables)


def _toml_value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return repr(value)
