"""Reading JSON values of others into dataclasses, whose annotations are the schema."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

import msgspec

_T = TypeVar("_T")

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A number of things."""
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
"""The size of an axis."""


def parse_json(text: str | bytes) -> Any:
    """A JSON value; raises ValueError where the text is none, also where it is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_as(kind: type[_T], values: Any) -> _T:
    """A dataclass made of JSON values, of the types that its annotations say, at any depth.

    Raises:
        ValueError: a value is missing, or of another type or range; the message names its place.
    """
    return msgspec.convert(values, kind)
