"""MIGraphX through its official Python module, as ROCm installs it.

The module raises Python exceptions with MIGraphX's messages. Its ``run`` reads inputs by the buffer protocol, which has
no format for bf16, fp8 and fp4. A program with inputs of these types is handed to the C library, which accepts them, if
there is one beside the module, as in ROCm; else such inputs raise `MissingFeature`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_bridge.migraphx.c_api import LIBRARY, CLibrary, CProgram, MissingFeature, dense_copy, view
from onnx_bridge.migraphx.program import ML_DTYPES, STORAGE, DynamicDimension, OnnxOptions, Shape, Tensor

_FEATURES = {
    "debug_symbols": ("parse_onnx", "use_debug_symbols"),
    "quantize_bf16": ("quantize_bf16", ""),
    "quantize_fp8": ("quantize_fp8", ""),
}
"""The function of the module, and the argument of it, that a feature implies."""


class ModuleLibrary:
    """The official module, imported from a file; implements `program.Library`.

    Raises:
        ImportError: the file is no module for this interpreter, or a library that it needs is missing.
    """

    def __init__(self, path: Path) -> None:
        spec = importlib.util.spec_from_file_location("migraphx", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is not a Python module")
        self.module: Any = importlib.util.module_from_spec(spec)
        sys.modules["migraphx"] = self.module
        spec.loader.exec_module(self.module)
        # "2.14.0.dev+<commit>": only the numbers, as the C library's file name has them
        numbers = re.match(r"\d+(\.\d+)*", str(getattr(self.module, "__version__", "")))
        self.version = numbers.group() if numbers else "unknown"
        self.features = frozenset(name for name, needs in _FEATURES.items() if self._offers(*needs))
        self._folders = dict.fromkeys((path.parent, path.resolve().parent))

    @functools.cached_property
    def c_library(self) -> CLibrary | None:
        """The C library of the same installation, on the same core library; None where there is none."""
        found = (folder / LIBRARY for folder in self._folders if (folder / LIBRARY).is_file())
        path = next(found, None)
        return None if path is None else CLibrary(path)

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Call a function of the module; raises `MissingFeature` where this version lacks it or an argument of it."""
        for argument in ("", *named):
            if not self._offers(name, argument):
                lacking = f"{argument} of {name}" if argument else name
                raise MissingFeature(f"this MIGraphX ({self.version}) has no {lacking}")
        return getattr(self.module, name)(*arguments, **named)

    def _offers(self, name: str, argument: str) -> bool:
        # pybind11 begins a function's docstring with its signature
        return hasattr(self.module, name) and argument in (getattr(self.module, name).__doc__ or "")

    def parse_onnx(self, path: Path, options: OnnxOptions = OnnxOptions()) -> ModuleProgram:
        if options.external_data_path is not None:  # an option of parse_onnx_buffer only
            return self.parse_onnx_buffer(path.read_bytes(), options)
        return ModuleProgram(self, self.call("parse_onnx", str(path), **self._onnx_options(options)))

    def parse_onnx_buffer(self, data: bytes, options: OnnxOptions = OnnxOptions()) -> ModuleProgram:
        """Parse an ONNX model from memory."""
        values = self._onnx_options(options)
        if options.max_loop_iterations is None and options.limit_max_iterations is None:
            return ModuleProgram(self, self.call("parse_onnx_buffer", data, **values))
        # only parse_onnx has these options: give it a file in memory
        with os.fdopen(os.memfd_create("onnx-bridge-model", os.MFD_CLOEXEC), "wb") as file:
            file.write(data)
            file.flush()
            return ModuleProgram(self, self.call("parse_onnx", f"/proc/self/fd/{file.fileno()}", **values))

    def load(self, path: Path) -> ModuleProgram:
        """Read a saved program (``.mxr``)."""
        return ModuleProgram(self, self.module.load(str(path), format="msgpack"))

    def has_target(self, name: str) -> bool:
        """Whether this build can load the target's library."""
        try:
            self.module.get_target(name)
        except RuntimeError:
            return False
        return True

    def _onnx_options(self, options: OnnxOptions) -> dict[str, Any]:
        def ranged(dimension: DynamicDimension) -> Any:
            kind = self.module.shape.dynamic_dimension
            if dimension.optimals:
                return kind(dimension.min, dimension.max, set(dimension.optimals))
            return kind(dimension.min, dimension.max)

        values: dict[str, Any] = {}
        if options.default_dim_value is not None:
            values["default_dim_value"] = options.default_dim_value
        if options.default_dyn_dim_value is not None:
            values["default_dyn_dim_value"] = ranged(options.default_dyn_dim_value)
        if options.map_input_dims:
            values["map_input_dims"] = {name: list(dims) for name, dims in options.map_input_dims.items()}
        if options.map_dyn_input_dims:
            values["map_dyn_input_dims"] = {
                name: [ranged(each) for each in dims] for name, dims in options.map_dyn_input_dims.items()
            }
        if options.max_loop_iterations is not None:
            values["max_loop_iterations"] = options.max_loop_iterations
        if options.limit_max_iterations is not None:
            values["limit_max_iterations"] = options.limit_max_iterations
        if options.external_data_path is not None:
            values["external_data_path"] = str(options.external_data_path)
        if options.use_debug_symbols:
            values["use_debug_symbols"] = True
        return values


class ModuleProgram:
    """A program of the official module; implements `program.Program`."""

    def __init__(self, library: ModuleLibrary, program: Any) -> None:
        self._library = library
        self._program = program

    def get_parameter_names(self) -> list[str]:
        """The names of the inputs."""
        return list(self._program.get_parameter_names())

    def get_parameter_shapes(self) -> dict[str, Shape]:
        """The inputs' shapes by name."""
        return {name: _shape(shape) for name, shape in self._program.get_parameter_shapes().items()}

    def get_output_shapes(self) -> list[Shape]:
        """The outputs' shapes in the model's order."""
        return [_shape(shape) for shape in self._program.get_output_shapes()]

    def compile(
        self, target: str, *, offload_copy: bool = True, fast_math: bool = True, exhaustive_tune: bool = False
    ) -> None:
        """Compile for ``target``."""
        self._program.compile(
            self._library.module.get_target(target),
            offload_copy=offload_copy,
            fast_math=fast_math,
            exhaustive_tune=exhaustive_tune,
        )

    def run(self, parameters: Mapping[str, Tensor], *, copy: bool = True) -> list[Tensor]:
        for name, tensor in parameters.items():
            if tensor.type in ML_DTYPES or tensor.type == "fp4x2_type":
                if self._by_c_library is None:
                    kind = tensor.type.removesuffix("_type")
                    raise MissingFeature(f"the official MIGraphX module does not accept {kind} inputs ({name})")
                return self._by_c_library.run(parameters, copy=copy)
        result = []
        for output in self._program.run(self._arguments(parameters)):
            shape = _shape(output.get_shape())
            if shape.type not in STORAGE:
                raise MissingFeature(f"outputs of type {shape.type} cannot be read")
            address = output.data_ptr()
            result.append(Tensor(shape.type, dense_copy(address, shape) if copy else view(address, shape, output)))
        return result

    @functools.cached_property
    def _by_c_library(self) -> CProgram | None:
        """The compiled program, handed to the C library."""
        if self._library.c_library is None:
            return None
        file = os.memfd_create("onnx-bridge-program", os.MFD_CLOEXEC)
        try:
            path = Path(f"/proc/self/fd/{file}")
            self.save(path)
            return self._library.c_library.load(path)
        finally:
            os.close(file)

    def save(self, path: Path) -> None:
        """Write the program as msgpack."""
        self._library.module.save(self._program, str(path), format="msgpack")

    def quantize_fp16(self, ins_names: Sequence[str] = ("all",)) -> None:
        """Convert the named operators to float16."""
        self._library.call("quantize_fp16", self._program, ins_names=list(ins_names))

    def quantize_bf16(self, ins_names: Sequence[str] = ("all",)) -> None:
        """Convert the named operators to bfloat16."""
        self._library.call("quantize_bf16", self._program, ins_names=list(ins_names))

    def quantize_int8(
        self, target: str, calibration: Sequence[Mapping[str, Tensor]], ins_names: Sequence[str] = ()
    ) -> None:
        """Quantize to int8 with ranges measured on ``calibration``."""
        self._quantize("quantize_int8", target, calibration, {"ins_names": set(ins_names)} if ins_names else {})

    def quantize_fp8(self, target: str, calibration: Sequence[Mapping[str, Tensor]]) -> None:
        """Quantize to fp8 with ranges measured on ``calibration``."""
        self._quantize("quantize_fp8", target, calibration, {})

    def _quantize(
        self, function: str, target: str, calibration: Sequence[Mapping[str, Tensor]], names: Mapping[str, set[str]]
    ) -> None:
        samples = [self._arguments(sample) for sample in calibration]
        to = self._library.module.get_target(target)
        self._library.call(function, self._program, to, calibration=samples, **names)

    def _arguments(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """The tensors as MIGraphX's arguments, which point into them: they must outlive these."""
        module, shapes = self._library.module, self.get_parameter_shapes()
        arguments = {}
        for name, tensor in tensors.items():
            layout: dict[str, list[int]] = {"lens": list(tensor.data.shape)}
            # MIGraphX has scalars as (1,) with stride 0; any other mismatch it rejects itself.
            if not tensor.data.shape:
                expected = shapes.get(name)
                layout = {"lens": [1], "strides": list(expected.strides) if expected and expected.lens == (1,) else [0]}
            shape = module.shape(type=tensor.type, **layout)
            arguments[name] = module.argument_from_pointer(shape, tensor.data.ctypes.data)
        return arguments


def _shape(shape: Any) -> Shape:
    name = shape.type_string()
    if shape.dynamic():
        ranges = (DynamicDimension(each.min, each.max, tuple(sorted(each.optimals))) for each in shape.dyn_dims())
        return Shape(name, dyn_dims=tuple(ranges))
    return Shape(name, tuple(shape.lens()), tuple(shape.strides()))
