"""Make inputs constant.

    f(x, n), n = 4  →  f(x)            with values={n=4}, or file=inputs.npz
    f(x, w = […])   →  f(x)            without options: every input with a default value takes it permanently

A value is JSON, as in ``mask="[[true,false]]"``; for a string input, text that is not JSON is the string itself. A file
holds arrays by input name. Both must match the dtype and the shape that the input declares; a single value may stand
without brackets for an input of one element.

Skips: inputs that are also graph outputs, and values that are already constant.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.core.errors import InputError, nearest
from passes.graphs.scopes import Scope
from passes.isolation.numpy_files import Expected, read_npz
from passes.rewriting.base import Context, Pass, Result, Rewrite, Skip

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class FreezeInputs(Pass):
    """Make inputs constant.

    Attributes:
        values: the values of inputs, by name, as JSON: a number, true, false, a string, or nested lists of them.
        file: an .npz file with arrays by the names of inputs.
    """

    name = "freeze-inputs"
    values: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None

    def run(self, model: ir.Model, context: Context) -> Result:
        """Turn inputs into initializers.

        Raises InputError if an input is unknown or given twice, a value does not match its dtype or shape, or the file
        cannot be read.
        """
        result = Result(model)
        scope, graph = Scope(model, model.graph), model.graph
        inputs = {str(value.name): value for value in graph.inputs if not scope.is_parameter(value)}
        if self.values or self.file is not None:
            chosen = self._given(inputs, graph, result)
        else:
            chosen = {name: value.const_value for name, value in inputs.items() if value.const_value is not None}
        for name in [name for name in chosen if inputs[name].is_graph_output()]:
            result.skips.append(Skip(f"{name} is also a graph output, which should not be constant"))
            del chosen[name]
        frozen = {name: tensor for name, tensor in chosen.items() if context.budget.take()}
        for name, tensor in frozen.items():
            value = inputs[name]
            value.const_value = tensor
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
            graph.initializers.add(value)
            result.rewrites.append(Rewrite((), note=f"input {name} is constant"))
        if frozen and model.ir_version >= 4:  # before, every initializer had to be an input as well
            graph.inputs[:] = [value for value in graph.inputs if value.name not in frozen]
        return result

    def _given(self, inputs: Mapping[str, ir.Value], graph: ir.Graph, result: Result) -> dict[str, ir.TensorProtocol]:
        """Return the tensors of the options, by input."""
        names = dict.fromkeys(self.values)

        def expected(name: str) -> int | None:
            names[name] = None
            return 0 if name in inputs else None

        arrays = _load(self.file, expected) if self.file is not None else {}
        tensors: dict[str, ir.TensorProtocol] = {}
        for name in names:
            if name not in inputs:
                if name not in graph.initializers:
                    hint = nearest(name, inputs) or f"there are {', '.join(inputs)}"
                    raise InputError(f"the model has no input {name}", where=self.name, hint=hint)
                result.skips.append(Skip(f"{name} is already constant"))
                continue
            if name in self.values and name in arrays:
                raise InputError(f"input {name} is in both values and file", where=self.name)
            value = inputs[name]
            if not isinstance(value.type, ir.TensorType):
                raise InputError(f"input {name} is not a tensor but {value.type}", where=self.name)
            dtype = value.type.dtype
            try:
                shape = value.shape
                tensor = (
                    _parse(self.values[name], dtype, shape) if name in self.values else _checked(arrays[name], dtype)
                )
                _check_shape(tensor.shape.numpy(), shape)
            except ValueError as error:
                raise InputError(f"input {name}: {error}", where=self.name) from None
            tensors[name] = tensor
        return tensors


def _load(file: str, expected: Expected) -> dict[str, Array]:
    try:
        if Path(file).exists() and not Path(file).is_file():  # a pipe would be waited for
            raise InputError("it is not a file", where=file)
        with Path(file).open("rb") as opened:
            return read_npz(opened, file, expected)
    except OSError as error:
        raise InputError(f"it cannot be read: {error}", where=file) from None


def _checked(array: Array, dtype: ir.DataType) -> ir.TensorProtocol:
    """Return an array of a file as a tensor; raises ValueError for another dtype."""
    if dtype == ir.DataType.STRING and array.dtype.kind in "US":
        return _strings(array)
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.numpy().itemsize:
        array = array.view(dtype.numpy())  # .npz files store bfloat16 and the like as raw bytes
    if array.dtype != dtype.numpy():
        raise ValueError(f"it takes {dtype}, and the file has {array.dtype}")
    return ir.Tensor(array, dtype=dtype)


def _parse(text: str, dtype: ir.DataType, shape: ir.Shape | None) -> ir.TensorProtocol:
    """Return a JSON value as a tensor, a single one in the shape of an input of one element.

    Raises ValueError if it does not match the dtype.
    """
    try:
        parsed = json.loads(text)
    except RecursionError:
        raise ValueError("its lists are nested too deeply") from None
    except ValueError:
        parsed = text
    cells = np.array(parsed, object)
    leaves = list(cells.ravel())
    if any(isinstance(leaf, list) for leaf in leaves):
        raise ValueError("its lists have different lengths")
    if dtype == ir.DataType.STRING and not all(isinstance(leaf, str) for leaf in leaves):
        cells = np.array(text, object)
    if cells.ndim == 0 and shape is not None and all(dim == 1 for dim in shape):
        cells = cells.reshape([1] * len(shape))
    if dtype == ir.DataType.STRING:
        return _strings(cells)
    for leaf in leaves:
        _check_leaf(leaf, dtype)
    wide = np.float64 if dtype.is_floating_point() else np.int64 if dtype.is_signed() else np.uint64
    array = np.array(leaves, wide).astype(dtype.numpy())
    return ir.Tensor(array.reshape(cells.shape), dtype=dtype)


def _check_leaf(leaf: object, dtype: ir.DataType) -> None:
    """Require that a JSON value matches the dtype and its range."""
    if dtype == ir.DataType.BOOL:
        if leaf is True or leaf is False:
            return
    elif isinstance(leaf, int | float) and not isinstance(leaf, bool):
        if not dtype.is_floating_point() and not (dtype.is_integer() and isinstance(leaf, int)):
            raise ValueError(f"it takes {dtype}, not {leaf}")
        exact = int if dtype.is_integer() else float
        low, high = exact(dtype.min), exact(dtype.max)
        if low <= leaf <= high or leaf != leaf or leaf in (math.inf, -math.inf):
            return
        raise ValueError(f"{leaf} is out of range of {dtype}")
    raise ValueError(f"it takes {dtype}, not {json.dumps(leaf)}")


def _strings(array: Array) -> ir.TensorProtocol:
    cells = [cell if isinstance(cell, bytes) else str(cell).encode() for cell in array.ravel()]
    return ir.StringTensor(cells, shape=ir.Shape(array.shape))


def _check_shape(shape: Sequence[int], declared: ir.Shape | None) -> None:
    if declared is None:
        return
    pairs = zip(shape, declared, strict=False)
    if len(shape) != len(declared) or any(isinstance(want, int) and want != has for has, want in pairs):
        raise ValueError(f"it takes the shape {declared}, not {list(shape)}")
