"""MIGraphX through its C library (migraphx.h) and ctypes.

The library prints error messages to standard error and returns a status. `StatusError` has the status only; `server`,
which captures standard error, adds the message.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from onnx_bridge.migraphx.architectures import named_architecture
from onnx_bridge.migraphx.program import COMPILE_OPTIONS, STORAGE, TYPES, DynamicDimension, OnnxOptions, Shape, Tensor

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
        return Handle(self, kind, self.read_pointer(function, *arguments))

    def read(self, ctype: Any, function: str, *arguments: Any) -> Any:
        """Call a function whose first argument receives a plain value of ``ctype``; returns the value."""
        out = ctype()
        self.call(function, byref(out), *arguments)
        return out.value

    def read_pointer(self, function: str, *arguments: Any) -> c_void_p:
        """Call a function whose first argument receives the address of what another object owns."""
        pointer = c_void_p()
        self.call(function, byref(pointer), *arguments)
        return pointer

    def elements(self, kind: str, owner: Handle) -> Iterator[c_void_p]:
        """Yield the elements of a list of type ``migraphx_<kind>_t``, which owns them."""
        for index in range(self.read(c_size_t, f"{kind}_size", owner)):
            yield self.read_pointer(f"{kind}_get", owner, c_size_t(index))

    def parse_onnx(self, path: Path, options: OnnxOptions = OnnxOptions()) -> CProgram:
        handle = self.create("program", "parse_onnx", os.fsencode(path), _onnx_options(self, options))
        return CProgram(self, handle)

    def parse_onnx_buffer(self, data: bytes, options: OnnxOptions = OnnxOptions()) -> CProgram:
        handle = self.create("program", "parse_onnx_buffer", data, c_size_t(len(data)), _onnx_options(self, options))
        return CProgram(self, handle)

    def load(self, path: Path) -> CProgram:
        options = self.create("file_options", "file_options_create")
        return CProgram(self, self.create("program", "load", os.fsencode(path), options))

    def has_target(self, name: str) -> bool:
        try:
            _target(self, name)
        except (StatusError, MissingFeature):
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
        return int(self._handle._as_parameter_.value or 0)

    def get_parameter_shapes(self) -> dict[str, Shape]:
        if not self._parameters:
            library = self._library
            shapes = library.create("program_parameter_shapes", "program_get_parameter_shapes", self._handle)
            names = (c_char_p * library.read(c_size_t, "program_parameter_shapes_size", shapes))()
            library.call("program_parameter_shapes_names", names, shapes)
            for name in filter(None, names):
                shape = library.read_pointer("program_parameter_shapes_get", shapes, name)
                self._parameters[name.decode()] = _shape(library, shape)
        return dict(self._parameters)

    def get_output_shapes(self) -> list[Shape]:
        shapes = self._library.create("shapes", "program_get_output_shapes", self._handle)
        return [_shape(self._library, shape) for shape in self._library.elements("shapes", shapes)]

    def compile(self, target: str, **options: bool) -> None:
        library = self._library
        handle = library.create("compile_options", "compile_options_create")
        for name, value in (COMPILE_OPTIONS | options).items():
            suffix = "_flag" if name == "exhaustive_tune" else ""
            library.call(f"compile_options_set_{name}{suffix}", handle, c_bool(value))
        self._parameters = {}
        library.call("program_compile", self._handle, _target(library, target), handle)

    def run(self, parameters: Mapping[str, Tensor], *, copy: bool = True) -> list[Tensor]:
        library = self._library
        given, _keep = _parameters(library, parameters, self.get_parameter_shapes())
        outputs = library.create("arguments", "program_run", self._handle, given)
        owner = None if copy else outputs
        return [_tensor(library, argument, owner) for argument in library.elements("arguments", outputs)]

    def save(self, path: Path) -> None:
        options = self._library.create("file_options", "file_options_create")
        self._library.call("save", self._handle, os.fsencode(path), options)

    def quantize(self, precision: str, target: str = "ref", calibration: Sequence[Mapping[str, Tensor]] = ()) -> None:
        library = self._library
        shapes = self.get_parameter_shapes()
        self._parameters = {}
        if precision in ("fp16", "bf16"):
            chosen = library.create("quantize_op_names", "quantize_op_names_create")
            library.call("quantize_op_names_add", chosen, b"all")
            library.call(f"quantize_{precision}_with_op_names", self._handle, chosen)
            return
        kind = f"quantize_{precision}_options"
        options = library.create(kind, f"{kind}_create")
        samples = [_parameters(library, sample, shapes) for sample in calibration]
        for sample, _keep in samples:
            library.call(f"{kind}_add_calibration_data", options, sample)
        library.call(f"quantize_{precision}", self._handle, _target(library, target), options)


def _target(library: CLibrary, name: str) -> Handle:
    """Return a target; of ``gpu:ARCHITECTURE``, which not each version can, the GPU need not be there."""
    architecture = named_architecture(name)
    if architecture is None:
        return library.create("target", "target_create", name.encode())
    return library.create("target", "target_create_with_options", b"gpu", json.dumps(architecture.options).encode())


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
        handles = [_dynamic_dimension(library, range_) for range_ in ranges]
        pointers = (c_void_p * len(handles))(*(handle._as_parameter_ for handle in handles))
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
    for pointer in library.elements("dynamic_dimensions", dimensions):
        # The C API has no getters: read the C++ object {size_t min, max; …}, and check it with what the API tells.
        low, high = ctypes.cast(pointer, POINTER(c_size_t))[0:2]
        if library.read(c_bool, "dynamic_dimension_is_fixed", pointer) != (low == high):
            raise MissingFeature(f"the ranges of dynamic shapes cannot be read from MIGraphX {library.version}")
        ranges.append(DynamicDimension(low, high))
    return Shape(type_name, dyn_dims=tuple(ranges))


def _parameters(
    library: CLibrary, tensors: Mapping[str, Tensor], shapes: Mapping[str, Shape]
) -> tuple[Handle, list[Any]]:
    """Return the tensors as program parameters, and the objects that must stay alive with them."""
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
    """Return an output, which is copied unless it keeps the owner of its memory alive."""
    shape = _shape(library, library.read_pointer("argument_shape", argument))
    return read_tensor(library.read_pointer("argument_buffer", argument).value or 0, shape, owner)


def read_tensor(address: int, shape: Shape, owner: object | None) -> Tensor:
    """Return the tensor of a shape, strides included, at an address.

    Args:
        address: the address of the first element.
        shape: the tensor's type, sizes and strides.
        owner: the object that the array keeps alive, since it has the memory; None copies the elements densely.

    Raises:
        MissingFeature: no numpy dtype holds elements of the type.
    """
    if shape.type not in STORAGE:
        raise MissingFeature(f"outputs of type {shape.type} cannot be read")
    dtype = np.dtype(STORAGE[shape.type])
    if 0 in shape.lens or not address:
        return Tensor(shape.type, np.zeros(shape.lens, dtype))
    elements = np.asarray(_Memory(address, shape, dtype, owner))
    return Tensor(shape.type, elements.copy() if owner is None else elements)


class _Memory:
    """Memory of the library, as numpy reads it."""

    def __init__(self, address: int, shape: Shape, dtype: np.dtype[Any], owner: object) -> None:
        self.owner = owner
        strides = tuple(stride * dtype.itemsize for stride in shape.strides)
        described = {"shape": shape.lens, "strides": strides, "typestr": dtype.str, "data": (address, True)}
        self.__array_interface__ = {**described, "version": 3}


def _version() -> str:
    """Return the version in the name of the loaded libmigraphx.so.<major·10⁶ + minor·10³ + patch>."""
    maps = Path("/proc/self/maps").read_text()
    match = re.search(r"libmigraphx\.so\.(\d+)", maps)
    if not match:
        return "unknown"
    number = int(match.group(1))
    return f"{number // 1_000_000}.{number // 1_000 % 1_000}.{number % 1_000}"
