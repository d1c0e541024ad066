"""Reading JSON values of others into dataclasses, whose annotations are the schema."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

_T = TypeVar("_T")

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A number of things."""
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
"""The size of an axis."""


def read_as(kind: type[_T], values: Any) -> _T:
    """A dataclass made of JSON values, of the types that its annotations say, at any depth.

    Raises:
        ValueError: a value is missing, or of another type or range; the message names its place.
    """
    return msgspec.convert(values, kind)
