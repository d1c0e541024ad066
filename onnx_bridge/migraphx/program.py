"""The interface of MIGraphX, with the names and semantics of its official Python API.

It is implemented by the official Python module (`python_module`), the C library (`c_api`), and a worker process that
loads one of them (`worker`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

_STORAGE = {
    "tuple_type": "",
    "fp4x2_type": "uint8",
    "bool_type": "bool",
    "half_type": "float16",
    "float_type": "float32",
    "double_type": "float64",
    "uint8_type": "uint8",
    "int8_type": "int8",
    "uint16_type": "uint16",
    "int16_type": "int16",
    "int32_type": "int32",
    "int64_type": "int64",
    "uint32_type": "uint32",
    "uint64_type": "uint64",
    "fp8e4m3fnuz_type": "uint8",
    "fp8e4m3fn_type": "uint8",
    "fp8e5m2_type": "uint8",
    "bf16_type": "uint16",
    "fp8e5m2fnuz_type": "uint8",
}
TYPES: tuple[str, ...] = tuple(_STORAGE)
"""MIGraphX's element types, in the order of ``migraphx_shape_datatype_t`` in migraphx.h."""
STORAGE: dict[str, str] = {name: dtype for name, dtype in _STORAGE.items() if dtype}
"""The plain numpy dtype that holds one element of each type, bit for bit (two elements for ``fp4x2_type``)."""

ML_DTYPES: dict[str, str] = {
    "fp8e4m3fnuz_type": "float8_e4m3fnuz",
    "fp8e4m3fn_type": "float8_e4m3fn",
    "fp8e5m2_type": "float8_e5m2",
    "bf16_type": "bfloat16",
    "fp8e5m2fnuz_type": "float8_e5m2fnuz",
}
"""The types whose values numpy has only by the package ml_dtypes, by their name there."""


def dtype_of(type_name: str) -> np.dtype[Any]:
    """Return the numpy dtype whose values are those of a MIGraphX type.

    ``fp4x2_type`` stays packed: uint8, two elements a byte.
    """
    if type_name in ML_DTYPES:
        import ml_dtypes  # the worker process, which never asks for these, starts faster without it

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, ML_DTYPES[type_name]))
        return dtype
    return np.dtype(STORAGE[type_name])


@functools.cache
def type_of(dtype: np.dtype[Any]) -> str | None:
    """Return the MIGraphX type of a numpy dtype (ml_dtypes included); None if there is none (strings, complex)."""
    for name in TYPES[2:]:
        if ML_DTYPES.get(name, STORAGE[name]) == dtype.name:
            return name
    return None


@dataclass(frozen=True)
class DynamicDimension:
    """A dimension that may take any size from ``min`` to ``max``; ``optimals`` are the sizes to tune for."""

    min: int
    max: int
    optimals: tuple[int, ...] = ()


@dataclass(frozen=True)
class Shape:
    """Type, sizes and strides (in elements) of a tensor; a dynamic one has ``dyn_dims`` and no ``lens``."""

    type: str
    lens: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dyn_dims: tuple[DynamicDimension, ...] = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        return dtype_of(self.type)

    @property
    def dynamic(self) -> bool:
        """True if a dimension has a range of sizes."""
        return bool(self.dyn_dims)


@dataclass(frozen=True)
class Tensor:
    """Elements as MIGraphX stores them: ``data`` is contiguous and has the storage dtype of the type (`STORAGE`)."""

    type: str
    data: np.ndarray[Any, np.dtype[Any]]

    @classmethod
    def of(cls, array: np.ndarray[Any, np.dtype[Any]], type_name: str | None = None) -> Tensor:
        """Wrap an array; it is copied only if it is not contiguous.

        Args:
            array: an array of a dtype that MIGraphX has (`type_of`), or packed uint8 for ``fp4x2_type``.
            type_name: the MIGraphX type; default: that of the dtype.

        Raises:
            TypeError: the dtype has no MIGraphX type.
        """
        name = type_name or type_of(array.dtype)
        if name is None:
            raise TypeError(f"MIGraphX has no element type for numpy's {array.dtype}")
        contiguous = np.ascontiguousarray(array).reshape(array.shape)
        return cls(name, contiguous.view(STORAGE[name]))

    def numpy(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the same bytes as an array of the dtype of the type (`dtype_of`)."""
        return self.data.view(dtype_of(self.type))


@dataclass(frozen=True)
class OnnxOptions:
    """Options of ``parse_onnx``; the fields are those of the official API.

    Attributes:
        default_dim_value: the size of every unknown dimension.
        default_dyn_dim_value: the range of every unknown dimension, instead of one size.
        map_input_dims: whole shapes by input name.
        map_dyn_input_dims: whole dynamic shapes by input name.
        max_loop_iterations: the iterations of a Loop without a trip count.
        limit_max_iterations: the most iterations of any Loop.
        external_data_path: the folder of the external data of a model that is parsed from memory.
        use_debug_symbols: whether instructions keep the names of the ONNX nodes that they come from.
    """

    default_dim_value: int | None = None
    default_dyn_dim_value: DynamicDimension | None = None
    map_input_dims: Mapping[str, Sequence[int]] = field(default_factory=dict)
    map_dyn_input_dims: Mapping[str, Sequence[DynamicDimension]] = field(default_factory=dict)
    max_loop_iterations: int | None = None
    limit_max_iterations: int | None = None
    external_data_path: Path | None = None
    use_debug_symbols: bool = False


COMPILE_OPTIONS = {"offload_copy": True, "fast_math": True, "exhaustive_tune": False}
"""The options of `Program.compile` with their defaults."""


class Program(Protocol):
    """One MIGraphX program: parsed, then perhaps quantized, compiled, run and saved.

    Every method raises `onnx_bridge.core.errors.RuntimeFailure` with MIGraphX's message when MIGraphX rejects it.
    """

    def get_parameter_shapes(self) -> dict[str, Shape]:
        """Return the inputs' shapes by name."""

    def get_output_shapes(self) -> list[Shape]:
        """Return the outputs' shapes, in the order of the model; scalars have the shape (1,)."""

    def compile(self, target: str, **options: bool) -> None:
        """Compile for ``target``, ``ref`` or ``gpu``.

        Args:
            target: what to compile for.
            options: ``offload_copy`` copies inputs and outputs between host and device within ``run``, ``fast_math``
                allows faster approximations of functions such as exp and GELU, and ``exhaustive_tune`` measures every
                known kernel instead of guessing; defaults: `COMPILE_OPTIONS`.
        """

    def run(self, parameters: Mapping[str, Tensor], *, copy: bool = True) -> list[Tensor]:
        """Run the compiled program; outputs are in the model's order.

        Args:
            parameters: the inputs by name.
            copy: whether outputs are dense copies; else they have MIGraphX's strides, and are valid until the next run.
        """

    def save(self, path: Path) -> None:
        """Write the program in MIGraphX's msgpack format (``.mxr``)."""

    def quantize(self, precision: str, target: str = "ref", calibration: Sequence[Mapping[str, Tensor]] = ()) -> None:
        """Convert operators to ``fp16`` or ``bf16``, or quantize them to ``int8`` or ``fp8``; before compiling.

        Args:
            precision: one of the four.
            target: the target on which the ranges for ``int8`` and ``fp8`` are measured.
            calibration: the samples for that, inputs by name.
        """


def reloaded(program: Program, library: Library) -> Program:
    """Return a program as ``library`` reads what ``program`` saves."""
    file = os.memfd_create("onnx-bridge-program", os.MFD_CLOEXEC)
    try:
        path = Path(f"/proc/self/fd/{file}")
        program.save(path)
        return library.load(path)
    finally:
        os.close(file)


class Library(Protocol):
    """MIGraphX loaded into a process."""

    version: str
    features: frozenset[str]
    """Features of this build beyond the common API; detected by symbols, not by version."""

    def parse_onnx(self, path: Path, options: OnnxOptions = ...) -> Program:
        """Parse an ONNX file."""

    def parse_onnx_buffer(self, data: bytes, options: OnnxOptions = ...) -> Program:
        """Parse an ONNX model from memory."""

    def load(self, path: Path) -> Program:
        """Read a saved program (``.mxr``)."""

    def has_target(self, name: str) -> bool:
        """Return whether this build can load the target's library (``gpu`` also needs a GPU to run)."""
