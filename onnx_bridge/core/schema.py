"""JSON: dataclasses as JSON values, and JSON values of others as dataclasses, whose annotations are the schema."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

_T = TypeVar("_T")

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A number of things."""
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
"""The size of an axis."""


_DEEPEST = 100
"""The most lists and objects within each other: what walks a value by recursion has that many levels left."""


def parse_json(text: str | bytes) -> Any:
    """Return a JSON value; raises ValueError if the text is not one, or is nested too deeply to be processed."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None
    level = [value]
    for _ in range(_DEEPEST + 1):
        inner = [
            value.values() if isinstance(value, dict) else value for value in level if isinstance(value, (dict, list))
        ]
        level = list(chain.from_iterable(inner))
        if not level:
            return value
    raise ValueError("the value is nested too deeply")


class JsonRecord:
    """A dataclass that is written as JSON: its fields, and the properties that ``in_json`` names.

    Fields that are not in the repr are left out.
    """

    in_json: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the properties as strict JSON values (`to_json`)."""
        return _members(self) | {name: to_json(getattr(self, name)) for name in self.in_json}


def to_json(value: Any) -> Any:
    """Return a value as strict JSON values; raises TypeError if there is no JSON value for it.

    NaN and infinities become the strings "NaN", "Infinity" and "-Infinity", which Python's ``float`` and JavaScript's
    ``Number`` read. Members of enumerations become their values, paths strings, and keys strings.
    """
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(to_json(key)): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if dataclasses.is_dataclass(value):
        return _members(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else msgspec.to_builtins(value)


def _members(value: Any) -> dict[str, Any]:
    return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value) if field.repr}


def read_as(kind: type[_T], values: Any) -> _T:
    """Return a dataclass made of JSON values, of the types that its annotations say, at any depth.

    Raises ValueError if a value is missing, or of another type or range; the message names its place.
    """
    return msgspec.convert(values, kind, dec_hook=from_text)


def from_text(kind: type[Any], value: Any) -> Any:
    """Return a value of a type that JSON does not have: a path."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")
