"""ONNX's definitions of operators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import onnx

Parameter = onnx.defs.OpSchema.FormalParameter
Option = onnx.defs.OpSchema.FormalParameterOption


@cache
def schema_of(op_type: str, version: int, domain: str = "") -> onnx.defs.OpSchema | None:
    """Return the definition of an operator in an opset; None if there is none."""
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def type_name(dtype: int) -> str:
    """Return the type of tensors of a dtype, a number of TensorProto, as definitions have it: ``tensor(int64)``."""
    return f"tensor({onnx.TensorProto.DataType.Name(dtype).lower()})"


@cache
def has_dtype(op_type: str, version: int, index: int, dtype: int, *, is_output: bool) -> bool:
    """Return whether an input or output of a standard operator may be of a dtype, a number of TensorProto."""
    schema = schema_of(op_type, version)
    formal = None if schema is None else parameter(schema.outputs if is_output else schema.inputs, index)
    return formal is None or type_name(dtype) in formal.types


def parameter(formals: Sequence[Parameter], index: int) -> Parameter | None:
    """Return the parameter that an input or output belongs to, the last of which may be variadic; None if none."""
    if index < len(formals):
        return formals[index]
    return formals[-1] if formals and formals[-1].option == Option.Variadic else None
