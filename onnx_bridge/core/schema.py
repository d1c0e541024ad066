"""Reading JSON values of others into dataclasses, whose annotations are the schema."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

_T = TypeVar("_T")

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A number of things."""
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
"""The size of an axis."""


_DEEPEST = 100
"""The most lists and objects within each other: what walks a value by recursion has that many levels left."""


def parse_json(text: str | bytes) -> Any:
    """A JSON value; raises ValueError where the text is none, also where it is nested too deeply to be processed."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(_DEEPEST + 1):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list)))
        level = list(chain.from_iterable(inner))
        if not level:
            return value
    raise ValueError("it is nested too deeply")


def read_as(kind: type[_T], values: Any) -> _T:
    """A dataclass made of JSON values, of the types that its annotations say, at any depth.

    Raises:
        ValueError: a value is missing, or of another type or range; the message names its place.
    """
    return msgspec.convert(values, kind, dec_hook=from_text)


def from_text(kind: type[Any], value: Any) -> Any:
    """Return a value of a type that JSON does not have: a path."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")
