"""MIGraphX through its C library (migraphx.h) and ctypes.

The library prints error messages to standard error and returns a status. `StatusError` has the status only; `server`,
which captures standard error, adds the message.
"""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from onnx_bridge.migraphx.program import STORAGE, TYPES, DynamicDimension, OnnxOptions, Shape, Tensor

LIBRARY = "libmigraphx_c.so.3"
"""Its file name: the soname of the interface that is bound here."""
_FEATURES = {
    "debug_symbols": "migraphx_onnx_options_set_use_debug_symbols",
    "quantize_bf16": "migraphx_quantize_bf16",
    "quantize_fp8": "migraphx_quantize_fp8",
}
"""The symbol that a library exports, by the feature that it implies."""


class StatusError(Exception):
    """A call failed; its message was printed to standard error."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function} returned status {status}")
        self.function = function
        self.status = status


class CLibrary:
    """The C library, loaded; implements `program.Library`."""

    def __init__(self, path: Path) -> None:
        self._dll = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self.version = _version()
        self.features = frozenset(name for name, symbol in _FEATURES.items() if hasattr(self._dll, symbol))

    def call(self, function: str, *arguments: Any) -> None:
        """Call ``migraphx_<function>``; raises `StatusError` unless it succeeds."""
        name = f"migraphx_{function}"
        try:
            symbol = getattr(self._dll, name)
        except AttributeError:
            raise MissingFeature(f"this MIGraphX ({self.version}) has no {name}") from None
        status = symbol(*arguments)
        if status != 0:
            raise StatusError(name, status)

    def create(self, kind: str, function: str, *arguments: Any) -> Handle:
        """Call a function whose first argument receives a new object of type ``migraphx_<kind>_t``."""
        pointer = c_void_p()
        self.call(function, byref(pointer), *arguments)
        return Handle(self, kind, pointer)

    def read(self, ctype: Any, function: str, *arguments: Any) -> Any:
        """Call a function whose first argument receives a plain value of ``ctype``; returns the value."""
        out = ctype()
        self.call(function, byref(out), *arguments)
        return out.value

    def parse_onnx(self, path: Path, options: OnnxOptions = OnnxOptions()) -> CProgram:
        handle = self.create("program", "parse_onnx", os.fsencode(path), _onnx_options(self, options))
        return CProgram(self, handle)

    def parse_onnx_buffer(self, data: bytes, options: OnnxOptions = OnnxOptions()) -> CProgram:
        """Parse an ONNX model from memory."""
        handle = self.create("program", "parse_onnx_buffer", data, c_size_t(len(data)), _onnx_options(self, options))
        return CProgram(self, handle)

    def load(self, path: Path) -> CProgram:
        """Read a saved program (``.mxr``)."""
        options = self.create("file_options", "file_options_create")
        return CProgram(self, self.create("program", "load", os.fsencode(path), options))

    def has_target(self, name: str) -> bool:
        """Whether this build can load the target's library."""
        try:
            self.create("target", "target_create", name.encode())
        except StatusError:
            return False
        return True


class MissingFeature(Exception):
    """This build of MIGraphX lacks a function that the request needs."""


class Handle:
    """An object of the library, which is destroyed with this one; ctypes passes it as its pointer."""

    def __init__(self, library: CLibrary, kind: str, pointer: c_void_p) -> None:
        self._as_parameter_ = pointer
        weakref.finalize(self, library.call, f"{kind}_destroy", pointer)


class CProgram:
    """A program of the C library; implements `program.Program`."""

    def __init__(self, library: CLibrary, handle: Handle) -> None:
        self._library = library
        self._handle = handle
        self._parameters: dict[str, Shape] = {}

    @property
    def address(self) -> int:
        """The address of the C++ object."""
        return int(self._handle._as_parameter_.value or 0)

    def get_parameter_names(self) -> list[str]:
        """The names of the inputs."""
        return list(self.get_parameter_shapes())

    def get_parameter_shapes(self) -> dict[str, Shape]:
        """The inputs' shapes by name."""
        self._parameters = self._parameters or self._read_parameter_shapes()
        return dict(self._parameters)

    def _read_parameter_shapes(self) -> dict[str, Shape]:
        library = self._library
        shapes = library.create("program_parameter_shapes", "program_get_parameter_shapes", self._handle)
        names = (c_char_p * library.read(c_size_t, "program_parameter_shapes_size", shapes))()
        library.call("program_parameter_shapes_names", names, shapes)
        result = {}
        for name in names:
            assert name is not None
            shape = c_void_p()
            library.call("program_parameter_shapes_get", byref(shape), shapes, name)
            result[name.decode()] = _shape(library, shape)
        return result

    def get_output_shapes(self) -> list[Shape]:
        """The outputs' shapes in the model's order."""
        library = self._library
        shapes = library.create("shapes", "program_get_output_shapes", self._handle)
        result = []
        for index in range(library.read(c_size_t, "shapes_size", shapes)):
            shape = c_void_p()
            library.call("shapes_get", byref(shape), shapes, c_size_t(index))
            result.append(_shape(library, shape))
        return result

    def compile(
        self, target: str, *, offload_copy: bool = True, fast_math: bool = True, exhaustive_tune: bool = False
    ) -> None:
        """Compile for ``target``."""
        library = self._library
        options = library.create("compile_options", "compile_options_create")
        library.call("compile_options_set_offload_copy", options, c_bool(offload_copy))
        library.call("compile_options_set_fast_math", options, c_bool(fast_math))
        library.call("compile_options_set_exhaustive_tune_flag", options, c_bool(exhaustive_tune))
        self._parameters = {}
        library.call("program_compile", self._handle, _target(library, target), options)

    def run(self, parameters: Mapping[str, Tensor], *, copy: bool = True) -> list[Tensor]:
        library = self._library
        given, _keep = _parameters(library, parameters, self.get_parameter_shapes())
        outputs = library.create("arguments", "program_run", self._handle, given)
        result = []
        for index in range(library.read(c_size_t, "arguments_size", outputs)):
            argument = c_void_p()
            library.call("arguments_get", byref(argument), outputs, c_size_t(index))
            result.append(_tensor(library, argument, None if copy else outputs))
        return result

    def save(self, path: Path) -> None:
        """Write the program as msgpack."""
        options = self._library.create("file_options", "file_options_create")
        self._library.call("save", self._handle, os.fsencode(path), options)

    def quantize_fp16(self, ins_names: Sequence[str] = ("all",)) -> None:
        """Convert the named operators to float16."""
        self._parameters = {}
        self._library.call("quantize_fp16_with_op_names", self._handle, self._operator_names(ins_names))

    def quantize_bf16(self, ins_names: Sequence[str] = ("all",)) -> None:
        """Convert the named operators to bfloat16."""
        self._parameters = {}
        self._library.call("quantize_bf16_with_op_names", self._handle, self._operator_names(ins_names))

    def quantize_int8(
        self, target: str, calibration: Sequence[Mapping[str, Tensor]], ins_names: Sequence[str] = ()
    ) -> None:
        """Quantize to int8 with ranges measured on ``calibration``."""
        self._quantize("int8", target, calibration, ins_names)

    def quantize_fp8(self, target: str, calibration: Sequence[Mapping[str, Tensor]]) -> None:
        """Quantize to fp8 with ranges measured on ``calibration``."""
        self._quantize("fp8", target, calibration, ())

    def _operator_names(self, names: Sequence[str]) -> Handle:
        handle = self._library.create("quantize_op_names", "quantize_op_names_create")
        for name in names:
            self._library.call("quantize_op_names_add", handle, name.encode())
        return handle

    def _quantize(
        self, kind: str, target: str, calibration: Sequence[Mapping[str, Tensor]], names: Sequence[str]
    ) -> None:
        library = self._library
        self._parameters = {}
        options = library.create(f"quantize_{kind}_options", f"quantize_{kind}_options_create")
        for name in names:
            library.call(f"quantize_{kind}_options_add_op_name", options, name.encode())
        shapes = self.get_parameter_shapes()
        keep = []
        for sample in calibration:
            given, arrays = _parameters(library, sample, shapes)
            keep.append((given, arrays))
            library.call(f"quantize_{kind}_options_add_calibration_data", options, given)
        library.call(f"quantize_{kind}", self._handle, _target(library, target), options)


def _target(library: CLibrary, name: str) -> Handle:
    return library.create("target", "target_create", name.encode())


def _onnx_options(library: CLibrary, options: OnnxOptions) -> Handle:
    handle = library.create("onnx_options", "onnx_options_create")

    def set_(name: str, *arguments: Any) -> None:
        library.call(f"onnx_options_set_{name}", handle, *arguments)

    if options.default_dim_value is not None:
        set_("default_dim_value", c_size_t(options.default_dim_value))
    if options.default_dyn_dim_value is not None:
        set_("default_dyn_dim_value", _dynamic_dimension(library, options.default_dyn_dim_value))
    for name, dims in options.map_input_dims.items():
        set_("input_parameter_shape", name.encode(), _sizes(dims), c_size_t(len(dims)))
    for name, ranges in options.map_dyn_input_dims.items():
        handles = [_dynamic_dimension(library, each) for each in ranges]
        pointers = (c_void_p * len(handles))(*(each._as_parameter_ for each in handles))
        dimensions = library.create("dynamic_dimensions", "dynamic_dimensions_create", pointers, c_size_t(len(handles)))
        set_("dyn_input_parameter_shape", name.encode(), dimensions)
    if options.max_loop_iterations is not None:
        set_("default_loop_iterations", c_int64(options.max_loop_iterations))
    if options.limit_max_iterations is not None:
        set_("limit_loop_iterations", c_int64(options.limit_max_iterations))
    if options.external_data_path is not None:
        set_("external_data_path", os.fsencode(options.external_data_path))
    if options.use_debug_symbols:
        set_("use_debug_symbols", c_bool(True))
    return handle


def _dynamic_dimension(library: CLibrary, dimension: DynamicDimension) -> Handle:
    low, high = c_size_t(dimension.min), c_size_t(dimension.max)
    if not dimension.optimals:
        return library.create("dynamic_dimension", "dynamic_dimension_create_min_max", low, high)
    sizes = _sizes(dimension.optimals)
    optimals = library.create("optimals", "optimals_create", sizes, c_size_t(len(sizes)))
    return library.create("dynamic_dimension", "dynamic_dimension_create_min_max_optimals", low, high, optimals)


def _sizes(values: Sequence[int]) -> ctypes.Array[c_size_t]:
    return (c_size_t * len(values))(*values)


def _size_list(library: CLibrary, function: str, shape: c_void_p) -> tuple[int, ...]:
    values, count = POINTER(c_size_t)(), c_size_t()
    library.call(function, byref(values), byref(count), shape)
    return tuple(values[: count.value])


def _shape(library: CLibrary, shape: c_void_p) -> Shape:
    type_name = TYPES[library.read(c_int, "shape_type", shape)]
    if not library.read(c_bool, "shape_dynamic", shape):
        lens = _size_list(library, "shape_lengths", shape)
        return Shape(type_name, lens, _size_list(library, "shape_strides", shape))
    dimensions = library.create("dynamic_dimensions", "shape_dyn_dims", shape)
    ranges = []
    for index in range(library.read(c_size_t, "dynamic_dimensions_size", dimensions)):
        pointer = c_void_p()
        library.call("dynamic_dimensions_get", byref(pointer), dimensions, c_size_t(index))
        # The C API has no getters: read the C++ object {size_t min, max; …}, and check it where the API can tell.
        low, high = ctypes.cast(pointer, POINTER(c_size_t))[0:2]
        if library.read(c_bool, "dynamic_dimension_is_fixed", pointer) != (low == high):
            raise MissingFeature(f"the ranges of dynamic shapes cannot be read from MIGraphX {library.version}")
        ranges.append(DynamicDimension(low, high))
    return Shape(type_name, dyn_dims=tuple(ranges))


def _parameters(
    library: CLibrary, tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape]
) -> tuple[Handle, list[Any]]:
    """The tensors as program parameters, and what must stay alive as long as they do."""
    parameters = library.create("program_parameters", "program_parameters_create")
    keep: list[Any] = []
    for name, tensor in tensors.items():
        expected = shapes.get(name)
        # MIGraphX has scalars as (1,) with stride 0; any other mismatch it rejects itself.
        kind, lens = c_int(TYPES.index(tensor.type)), tensor.data.shape
        if expected is not None and not lens and expected.lens == (1,):
            strides = _sizes(expected.strides)
            shape = library.create(
                "shape", "shape_create_with_strides", kind, _sizes((1,)), c_size_t(1), strides, c_size_t(1)
            )
        else:
            shape = library.create("shape", "shape_create", kind, _sizes(lens), c_size_t(len(lens)))
        argument = library.create("argument", "argument_create", shape, tensor.data.ctypes.data_as(c_void_p))
        library.call("program_parameters_add", parameters, name.encode(), argument)
        keep.append((tensor, argument))
    return parameters, keep


def _tensor(library: CLibrary, argument: c_void_p, owner: Handle | None) -> Tensor:
    """An output, copied unless it shall own what has its memory."""
    pointer = c_void_p()
    library.call("argument_shape", byref(pointer), argument)
    shape = _shape(library, pointer)
    if shape.type not in STORAGE:
        raise MissingFeature(f"outputs of type {shape.type} cannot be read")
    buffer = c_void_p()
    library.call("argument_buffer", byref(buffer), argument)
    if owner is None:
        return Tensor(shape.type, dense_copy(buffer.value or 0, shape))
    return Tensor(shape.type, view(buffer.value or 0, shape, owner))


def dense_copy(address: int, shape: Shape) -> np.ndarray[Any, np.dtype[Any]]:
    """A dense copy of the elements at ``address``, laid out there with the strides of ``shape``."""
    return view(address, shape, None).copy()


def view(address: int, shape: Shape, owner: object) -> np.ndarray[Any, np.dtype[Any]]:
    """The elements at ``address``, laid out there with the strides of ``shape``; the array keeps the owner alive."""
    dtype = np.dtype(STORAGE[shape.type])
    if 0 in shape.lens or not address:
        return np.zeros(shape.lens, dtype)
    return np.asarray(_Memory(address, shape, dtype, owner))


class _Memory:
    """Memory of the library, as numpy reads it."""

    def __init__(self, address: int, shape: Shape, dtype: np.dtype[Any], owner: object) -> None:
        self.owner = owner
        strides = tuple(stride * dtype.itemsize for stride in shape.strides)
        described = {"shape": shape.lens, "strides": strides, "typestr": dtype.str, "data": (address, True)}
        self.__array_interface__ = {**described, "version": 3}


def _version() -> str:
    """The version in the name of the loaded libmigraphx.so.<major·10⁶ + minor·10³ + patch>."""
    maps = Path("/proc/self/maps").read_text()
    found = re.search(r"libmigraphx\.so\.(\d+)", maps)
    if not found:
        return "unknown"
    number = int(found.group(1))
    return f"{number // 1_000_000}.{number // 1_000 % 1_000}.{number % 1_000}"
