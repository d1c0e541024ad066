"""Values of inputs and outputs: tensors, sequences of tensors, and optionals of both.

A tensor is an array, a sequence a list of arrays, and an optional without a value None.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.isolation.messages import Array
from passes.isolation.value_messages import Value

__all__ = ["Array", "Kind", "Value", "as_array", "dtype_name", "flat"]


class Kind(enum.Enum):
    """The type of a value; the strings are those of manifests."""

    TENSOR = "tensor"
    SEQUENCE = "sequence"
    OPTIONAL = "optional"
    OPTIONAL_SEQUENCE = "optional sequence"

    @classmethod
    def of(cls, kind: ir.TypeProtocol | None) -> Kind | None:
        """Return the kind of an ONNX type; None if it is not supported (a sparse tensor, a sequence of sequences)."""
        optional = isinstance(kind, ir.OptionalType)
        if isinstance(kind, ir.OptionalType):
            kind = kind.elem_type
        if isinstance(kind, ir.TensorType):
            return cls.OPTIONAL if optional else cls.TENSOR
        if isinstance(kind, ir.SequenceType) and isinstance(kind.elem_type, ir.TensorType):
            return cls.OPTIONAL_SEQUENCE if optional else cls.SEQUENCE
        return None

    @property
    def optional(self) -> bool:
        """True if it may be None."""
        return self in (Kind.OPTIONAL, Kind.OPTIONAL_SEQUENCE)

    @property
    def sequence(self) -> bool:
        """True if it is a list."""
        return self in (Kind.SEQUENCE, Kind.OPTIONAL_SEQUENCE)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return a dtype as ONNX calls it where numpy does not: strings are objects."""
    return "string" if dtype.kind in "OUST" else dtype.name


def as_array(value: Value) -> Array:
    """Return a value that is a tensor."""
    assert isinstance(value, np.ndarray)
    return value


def flat(values: Mapping[str, Value]) -> dict[str, Array]:
    """Return the arrays by name; those of a sequence ``s`` are ``s[0]``, ``s[1]``, …; an empty optional has none."""
    arrays: dict[str, Array] = {}
    for name, value in values.items():
        if isinstance(value, list):
            arrays |= {f"{name}[{index}]": item for index, item in enumerate(value)}
        elif value is not None:
            arrays[name] = value
    return arrays
