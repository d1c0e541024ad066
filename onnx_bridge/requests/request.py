"""What a request is: a frozen dataclass that says what one verb is asked to do, and its form in JSON."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.schema import from_text
from onnx_bridge.samples.files import SampleSource

if TYPE_CHECKING:
    Data = SampleSource
else:
    Data = Path
"""Samples, or where to read them from. JSON has a path: samples in memory have no form there."""


@dataclass(frozen=True)
class Request:
    """What a verb is asked to do; each field is an option, and has a default."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; TypeError for what is in memory only."""
        values: dict[str, Any] = msgspec.to_builtins(self, enc_hook=_to_text)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "request") -> Self:
        """Return the request that `to_json` wrote; fields that are not given keep their defaults.

        Raises:
            InputError: a field is unknown, or its value has the wrong type or is out of range.
        """
        return cls(**{name: cls.field_value(name, value, where) for name, value in values.items()})

    @classmethod
    def field_value(cls, name: str, value: Any, where: str) -> Any:
        """Read one field from a JSON value.

        Raises:
            InputError: there is no such field, or the value has the wrong type.
        """
        hints = _hints(cls)  # type: ignore[arg-type]  # mypy asks whether instances are hashable
        if name not in hints:
            hint = nearest(name, hints) or f"there are {', '.join(hints)}"
            raise InputError(f"there is no setting {name!r}", where=where, hint=hint)
        try:
            return msgspec.convert(value, hints[name], dec_hook=from_text)
        except msgspec.ValidationError as error:
            expected = str(error).partition(" - at ")[0].lower().replace("`", "")
            raise InputError(f"{name} cannot be {value!r}", where=where, hint=expected) from None


@functools.cache
def _hints(request: type[Request]) -> dict[str, Any]:
    hints = typing.get_type_hints(request)
    return {field.name: hints[field.name] for field in dataclasses.fields(request)}


def _to_text(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")
