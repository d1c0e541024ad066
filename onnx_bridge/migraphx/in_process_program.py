"""A compiled program in this process, whose inputs and outputs stay where they are: on the GPU, or with ``ref`` here.

Compiled without ``offload_copy``, a program takes the addresses of its inputs. One for ``gpu`` also takes those of
memory for its outputs, which are parameters of their own, ``main:#output_0`` and so on, and runs asynchronously on a
given stream. One for ``ref`` allocates its outputs, which are copied, and is done when it returns. Only the official
module supports this, and only running happens here: parsing and compiling stay in the worker process.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from onnx_bridge.core.errors import InputError, MigraphxError
from onnx_bridge.migraphx.c_api import read_tensor
from onnx_bridge.migraphx.program import ML_DTYPES, Shape
from onnx_bridge.migraphx.python_module import ModuleLibrary, shape_of
from onnx_bridge.migraphx.runtime import Runtime

_OUTPUT = re.compile(r"(?:main:)?#output_(\d+)")
_STREAM = "ihipStream_t"


class InProcessProgram:
    """A program of the GPU, or of ``ref``.

    ``outputs`` has the shapes of the outputs, in the model's order, with the strides that they are written with.
    """

    def __init__(self, runtime: Runtime, path: Path) -> None:
        """Load a saved program.

        Raises:
            InputError: the runtime is not the official module, or an input or output cannot be passed by address.
            MigraphxError: the module cannot be imported, or cannot read the program.
        """
        if runtime.kind != "module":
            here = f"{runtime.path} ({runtime.kind})"
            raise _unsupported(f"programs in the process need AMD's Python module, and the runtime is {here}")
        try:
            library = _loaded(runtime.path)
            self._program = library.module.load(str(path), format="msgpack")
        except (ImportError, RuntimeError) as error:
            raise MigraphxError(str(error), where=str(path)) from error
        self._argument = library.module.argument_from_pointer
        self._shapes = dict(self._program.get_parameter_shapes())
        places = {int(match[1]): name for name in self._shapes if (match := _OUTPUT.fullmatch(name))}
        self._names = [places[index] for index in sorted(places)]
        own = self._program.get_output_shapes()
        self.outputs = [shape_of(self._shapes[name]) for name in self._names]
        if not self._names:
            self.outputs = [_dense(shape_of(shape)) for shape in own]
        if len(self.outputs) != len(own):
            raise _unsupported("some outputs are in memory that the program allocates")
        for name, shape in self._shapes.items():
            if (kind := shape.type_string()) in ML_DTYPES:
                raise _unsupported(f"the module does not accept {kind.removesuffix('_type')} by address ({name})")

    def run_async(self, inputs: Mapping[str, int], outputs: list[int], stream: int) -> None:
        """Enqueue a run on a stream; work that is enqueued later sees the outputs. With ``ref`` it is done at once.

        Args:
            inputs: the address of each input by name; contiguous.
            outputs: the address of memory for each output, in order, with the strides in `outputs`.
            stream: the address of the HIP stream; 0 with ``ref``.

        Raises:
            MigraphxError: MIGraphX failed.
        """
        used = {name: address for name, address in inputs.items() if name in self._shapes}
        given = {**used, **dict(zip(self._names, outputs, strict=bool(self._names)))}
        try:
            arguments = {name: self._argument(self._shapes[name], address) for name, address in given.items()}
            results = self._program.run_async(arguments, stream, _STREAM)
        except (RuntimeError, ValueError) as error:
            raise MigraphxError(str(error), where="in_process") from error
        if not self._names:
            for result, address in zip(results, outputs, strict=True):
                dense = read_tensor(result.data_ptr(), shape_of(result.get_shape()), None).data
                ctypes.memmove(address, dense.ctypes.data, dense.nbytes)


_loaded = functools.lru_cache(maxsize=1)(ModuleLibrary)


def _dense(shape: Shape) -> Shape:
    strides = np.cumprod((1, *shape.lens[:0:-1]))[::-1].tolist() if shape.lens else ()
    return Shape(shape.type, shape.lens, tuple(strides))


def _unsupported(what: str) -> InputError:
    return InputError(what, where="in_process", hint="leave it out: programs then run in a worker process")
