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

from onnx_bridge.migraphx.architectures import named_architecture
from onnx_bridge.migraphx.c_api import LIBRARY, CLibrary, MissingFeature, read_tensor
from onnx_bridge.migraphx.program import (
    COMPILE_OPTIONS,
    ML_DTYPES,
    DynamicDimension,
    OnnxOptions,
    Program,
    Shape,
    Tensor,
    reloaded,
)

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
        """The C library of the same installation, on the same core library; None without one."""
        paths = (folder / LIBRARY for folder in self._folders if (folder / LIBRARY).is_file())
        path = next(paths, None)
        return None if path is None else CLibrary(path)

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Call a function of the module; raises `MissingFeature` if this version lacks it or an argument of it."""
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
        values = self._onnx_options(options)
        if options.max_loop_iterations is None and options.limit_max_iterations is None:
            return ModuleProgram(self, self.call("parse_onnx_buffer", data, **values))
        # only parse_onnx has these options: give it a file in memory
        with os.fdopen(os.memfd_create("onnx-bridge-model", os.MFD_CLOEXEC), "wb") as file:
            file.write(data)
            file.flush()
            return ModuleProgram(self, self.call("parse_onnx", f"/proc/self/fd/{file.fileno()}", **values))

    def load(self, path: Path) -> ModuleProgram:
        return ModuleProgram(self, self.module.load(str(path), format="msgpack"))

    def has_target(self, name: str) -> bool:
        try:
            self.target(name)
        except (RuntimeError, TypeError):  # there is no such library, or no such option
            return False
        return True

    def target(self, name: str) -> Any:
        """Return a target; of ``gpu:ARCHITECTURE``, which not each version can, the GPU need not be there."""
        architecture = named_architecture(name)
        if architecture is None:
            return self.module.get_target(name)
        return self.module.get_target("gpu", **architecture.options)

    def _onnx_options(self, options: OnnxOptions) -> dict[str, Any]:
        """Return the options that are set, as the module's arguments."""

        def ranged(dimension: DynamicDimension) -> Any:
            sizes = [set(dimension.optimals)] if dimension.optimals else []
            return self.module.shape.dynamic_dimension(dimension.min, dimension.max, *sizes)

        unset = OnnxOptions()
        values = {name: value for name, value in vars(options).items() if value != getattr(unset, name)}
        if options.default_dyn_dim_value is not None:
            values["default_dyn_dim_value"] = ranged(options.default_dyn_dim_value)
        if options.map_input_dims:
            values["map_input_dims"] = {name: list(dims) for name, dims in options.map_input_dims.items()}
        if options.map_dyn_input_dims:
            dims_by_name = options.map_dyn_input_dims.items()
            values["map_dyn_input_dims"] = {name: list(map(ranged, dims)) for name, dims in dims_by_name}
        if options.external_data_path is not None:
            values["external_data_path"] = str(options.external_data_path)
        return values


class ModuleProgram:
    """A program of the official module; implements `program.Program`."""

    def __init__(self, library: ModuleLibrary, program: Any) -> None:
        self._library = library
        self._program = program

    def get_parameter_shapes(self) -> dict[str, Shape]:
        return {name: shape_of(shape) for name, shape in self._program.get_parameter_shapes().items()}

    def get_output_shapes(self) -> list[Shape]:
        return [shape_of(shape) for shape in self._program.get_output_shapes()]

    def compile(self, target: str, **options: bool) -> None:
        self._program.compile(self._library.target(target), **COMPILE_OPTIONS | options)

    def run(self, parameters: Mapping[str, Tensor], *, copy: bool = True) -> list[Tensor]:
        for name, tensor in parameters.items():
            if tensor.type in ML_DTYPES or tensor.type == "fp4x2_type":
                if self._by_c_library is None:
                    kind = tensor.type.removesuffix("_type")
                    raise MissingFeature(f"the official MIGraphX module does not accept {kind} inputs ({name})")
                return self._by_c_library.run(parameters, copy=copy)
        outputs = self._program.run(self._arguments(parameters))
        return [
            read_tensor(output.data_ptr(), shape_of(output.get_shape()), None if copy else output) for output in outputs
        ]

    @functools.cached_property
    def _by_c_library(self) -> Program | None:
        """The compiled program, handed to the C library."""
        return None if self._library.c_library is None else reloaded(self, self._library.c_library)

    def save(self, path: Path) -> None:
        self._library.module.save(self._program, str(path), format="msgpack")

    def quantize(self, precision: str, target: str = "ref", calibration: Sequence[Mapping[str, Tensor]] = ()) -> None:
        library, function = self._library, f"quantize_{precision}"
        if precision in ("fp16", "bf16"):
            library.call(function, self._program, ins_names=["all"])
            return
        samples = [self._arguments(sample) for sample in calibration]
        library.call(function, self._program, library.module.get_target(target), calibration=samples)

    def _arguments(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the tensors as MIGraphX's arguments, which point into them: they must outlive these."""
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


def shape_of(shape: Any) -> Shape:
    """Return a shape of the module as one of `program`."""
    name = shape.type_string()
    if shape.dynamic():
        ranges = (DynamicDimension(dim.min, dim.max, tuple(sorted(dim.optimals))) for dim in shape.dyn_dims())
        return Shape(name, dyn_dims=tuple(ranges))
    return Shape(name, tuple(shape.lens()), tuple(shape.strides()))
