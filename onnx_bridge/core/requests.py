"""Requests as JSON: frozen dataclasses of plain values, written and read with type checks."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from onnx_bridge.core.errors import InputError, nearest

R = TypeVar("R")


def to_json(request: Any) -> dict[str, Any]:
    """The fields of a request as JSON values."""
    return {each.name: _plain(getattr(request, each.name)) for each in dataclasses.fields(request)}


def from_json(cls: type[R], values: Mapping[str, Any], where: str) -> R:
    """Build a request from JSON values; fields that are not given keep their defaults.

    Raises:
        InputError: a field is unknown, or its value is of another type.
    """
    return cls(**{name: field_value(cls, name, value, where) for name, value in values.items()})


def field_value(cls: type[Any], name: str, value: Any, where: str) -> Any:
    """Read one field of a request from a JSON value.

    Raises:
        InputError: there is no such field, or the value is of another type.
    """
    hints = _hints(cls)  # type: ignore[arg-type]  # mypy asks whether instances are hashable
    if name not in hints:
        hint = nearest(name, hints) or f"there are {', '.join(hints)}"
        raise InputError(f"there is no setting {name!r}", where=where, hint=hint)
    try:
        return _typed(hints[name], value)
    except TypeError:
        raise InputError(f"{name} cannot be {value!r}", where=where, hint=f"expected {_shown(hints[name])}") from None


@functools.cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {each.name: hints[each.name] for each in dataclasses.fields(cls) if each.init}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value):
        return to_json(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _typed(hint: Any, value: Any) -> Any:
    """A JSON value as a type annotation describes it; TypeError where it does not fit."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _first(arguments, value)
    if origin is typing.Literal:
        if value in arguments:
            return value
    elif origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {key: _typed(arguments[1], each) for key, each in value.items()}
    elif origin in (tuple, frozenset):
        if isinstance(value, (list, tuple)):
            return origin(_typed(arguments[0], each) for each in value)
    elif hint is Path:
        if isinstance(value, str):
            return Path(value)
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, Mapping):
            return from_json(hint, value, hint.__name__)
    elif hint is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    elif type(value) is hint:
        return value
    raise TypeError


def _first(hints: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in hints:
        return None
    for hint in hints:
        try:
            return _typed(hint, value)
        except TypeError:
            continue
    raise TypeError


def _shown(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("collections.abc.", "")
