"""A compiled program in this process, whose inputs and outputs stay where they are on the GPU.

Compiled without ``offload_copy`` a program takes the addresses of its inputs, and of memory for its outputs, which are
parameters of their own: ``main:#output_0`` and so on. It is given a stream, and returns before it is done. Only the
official module can do that, and nothing but running is done here: parsing and compiling stay with the worker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from onnx_bridge.core.errors import InputError, MigraphxError
from onnx_bridge.migraphx.program import ML_DTYPES, Shape
from onnx_bridge.migraphx.python_module import ModuleLibrary
from onnx_bridge.migraphx.runtime import Runtime

_OUTPUT = re.compile(r"(?:main:)?#output_(\d+)")
_STREAM = "ihipStream_t"


class InProcessProgram:
    """A program of the GPU.

    Attributes:
        outputs: the shapes of what it gives, in the model's order.
    """

    def __init__(self, runtime: Runtime, path: Path) -> None:
        """Load a saved program.

        Raises:
            InputError: the runtime is not the official module, or something that the program takes or gives cannot be
                handed over by its address.
            MigraphxError: the module cannot be imported, or cannot read the program.
        """
        if runtime.kind != "module":
            what = f"it takes AMD's own Python module, and the runtime is {runtime.path} ({runtime.kind})"
            raise InputError(what, where="in_process", hint="leave it out: programs then run in a worker process")
        try:
            library = ModuleLibrary(runtime.path)
            self._program = library.module.load(str(path), format="msgpack")
        except (ImportError, RuntimeError) as error:
            raise MigraphxError(str(error), where=str(path)) from error
        self._argument = library.module.argument_from_pointer
        self._shapes = dict(self._program.get_parameter_shapes())
        places = {int(found[1]): name for name in self._shapes if (found := _OUTPUT.fullmatch(name))}
        self._names = [places[index] for index in sorted(places)]
        self.outputs = [_shape(self._shapes[name]) for name in self._names]
        if len(self._names) != len(self._program.get_output_shapes()):
            raise _unfit("some of its outputs are in memory of its own")
        for name, shape in self._shapes.items():
            if shape.type_string() in ML_DTYPES:
                raise _unfit(f"the module takes no {shape.type_string().removesuffix('_type')} by its address ({name})")

    def run_async(self, inputs: Mapping[str, int], outputs: list[int], stream: int) -> None:
        """Put a run on a stream; whoever uses the stream after that finds the outputs written.

        Args:
            inputs: the address of each input by name, laid out without gaps.
            outputs: the address of memory for each output, in order, laid out as ``outputs`` says.
            stream: the address of the HIP stream.

        Raises:
            MigraphxError: MIGraphX failed.
        """
        used = {name: address for name, address in inputs.items() if name in self._shapes}
        given = {**used, **dict(zip(self._names, outputs, strict=True))}
        try:
            arguments = {name: self._argument(self._shapes[name], address) for name, address in given.items()}
            self._program.run_async(arguments, stream, _STREAM)
        except (RuntimeError, ValueError) as error:
            raise MigraphxError(str(error), where="in_process") from error


def _shape(shape: object) -> Shape:
    return Shape(shape.type_string(), tuple(shape.lens()), tuple(shape.strides()))  # type: ignore[attr-defined]


def _unfit(what: str) -> InputError:
    return InputError(what, where="in_process", hint="leave it out: programs then run in a worker process")
