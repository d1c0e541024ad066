"""A compiled program in this process, whose inputs and outputs stay on the GPU.

Compiled without ``offload_copy``, a program takes the addresses of its inputs and of memory for its outputs; the latter
are parameters of their own, ``main:#output_0`` and so on. It runs asynchronously on a given stream. Only the official
module supports this, and only running happens here: parsing and compiling stay in the worker process.
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
        outputs: the shapes of the outputs, in the model's order.
    """

    def __init__(self, runtime: Runtime, path: Path) -> None:
        """Load a saved program.

        Raises:
            InputError: the runtime is not the official module, or an input or output cannot be passed by address.
            MigraphxError: the module cannot be imported, or cannot read the program.
        """
        if runtime.kind != "module":
            what = f"it needs AMD's own Python module, and the runtime is {runtime.path} ({runtime.kind})"
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
            raise _unsupported("some outputs are in memory that the program allocates")
        for name, shape in self._shapes.items():
            if shape.type_string() in ML_DTYPES:
                raise _unsupported(
                    f"the module does not accept {shape.type_string().removesuffix('_type')} by address ({name})"
                )

    def run_async(self, inputs: Mapping[str, int], outputs: list[int], stream: int) -> None:
        """Enqueue a run on a stream; work that is enqueued later sees the outputs.

        Args:
            inputs: the address of each input by name; contiguous.
            outputs: the address of memory for each output, in order, with the strides in `outputs`.
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


def _unsupported(what: str) -> InputError:
    return InputError(what, where="in_process", hint="leave it out: programs then run in a worker process")
