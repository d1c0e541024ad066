"""The kernels of a program for a GPU, and what each computes when the program is emulated.

A saved program says which instruction of MIGraphX launches a kernel, what it takes, and the form of what it writes.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.core.values import Array
from onnx_bridge.migraphx.program import Shape, Tensor
from onnx_bridge.migraphx.remote_program import RemoteProgram

_KERNEL, _LIBRARY = "gpu::code_object", re.compile(r"gpu::(?!code_object)")
_TUPLE, _BYTES = "tuple_type", ("int8_type", "uint8_type")
_T = TypeVar("_T")


class _Launch(msgspec.Struct):
    """The operator that launches a kernel."""

    symbol_name: str
    output: Shape
    code_object: list[int]

    @property
    def code(self) -> bytes:
        return bytes(byte & 255 for byte in self.code_object)


class _Instruction(msgspec.Struct):
    name: str
    output: str
    inputs: list[str]
    operator: Any = None
    shape: Any = None


class _Module(msgspec.Struct):
    nodes: list[_Instruction]


class _Program(msgspec.Struct):
    modules: dict[str, _Module]


@dataclass(frozen=True)
class Step:
    """An instruction of a compiled program that launches a kernel of its own, or calls a library.

    Attributes:
        name: the kernel's name, which MIGraphX makes of the operators in it, or MIGraphX's name of the call.
        shapes: the sizes of what it takes and gives, in words.
        elements: the elements of its result.
        identity: equal for steps that do the same with other numbers.
        code: the kernel's code object; empty for a call.
        operands: the steps whose results it takes, directly or through views, by their place.
        traced: whether `kernels` gives its result.
    """

    name: str
    shapes: str
    elements: int
    identity: bytes
    code: bytes
    operands: frozenset[int]
    traced: bool


@dataclass(frozen=True)
class Kernel:
    """A kernel in a run of a program.

    Attributes:
        symbol: its name, which MIGraphX makes of the operators in it.
        output: what it computed.
        operands: the kernels that computed what it takes, by their place.
        calls: MIGraphX's names of the calls of AMD's libraries that computed what it takes.
        instructions: the machine instructions that it executed, each once.
        code: its code object.
    """

    symbol: str
    output: Array
    operands: frozenset[int]
    calls: frozenset[str]
    instructions: tuple[str, ...]
    code: bytes = field(default=b"", repr=False)

    @property
    def source(self) -> str:
        """The source that it was compiled from, if `hiprtc.cpp` has kept it; otherwise empty."""
        for path in cache_dir().glob("kernels/*/*"):
            if path.stat().st_size == len(self.code) and path.read_bytes() == self.code:
                source = path.with_name(f"{path.name}.hip")
                return source.read_text() if source.exists() else ""
        return ""


def steps(program: RemoteProgram) -> tuple[list[Step], list[frozenset[int]]]:
    """Return the steps of a compiled program, those of branches last, and of which of them each output is made."""
    main, *branches = _modules(program)
    sources = _sources(main, {node.output: place for place, node in enumerate(_stepped(main))})
    found = [_step(node, main, sources[node.output]) for node in _stepped(main)]
    inner = (_step(node, branch, frozenset()) for branch in branches for node in _stepped(branch))
    places = {node.output: frozenset([place]) for place, node in enumerate(_stepped(main))}
    returned = [places.get(name, sources[name]) for name in main[-1].inputs]
    return [*found, *(replace(step, traced=False) for step in inner)], returned


def _stepped(nodes: list[_Instruction]) -> list[_Instruction]:
    return [node for node in nodes if node.name == _KERNEL or _LIBRARY.match(node.name)]


def _step(node: _Instruction, nodes: list[_Instruction], operands: frozenset[int]) -> Step:
    launch = msgspec.convert(node.operator, _Launch) if node.name == _KERNEL else None
    shapes = {other.output: other.shape for other in nodes}
    tensors = [shape for name in node.inputs if (shape := shapes.get(name)) and not _is_scratch(shape)]
    return Step(
        launch.symbol_name if launch else node.name,
        ", ".join("×".join(map(str, shape["lens"])) or "1" for shape in tensors),
        math.prod(node.shape["lens"]) if node.shape else 0,
        launch.code if launch else msgspec.json.encode([node.name, node.operator, tensors]),
        launch.code if launch else b"",
        operands,
        launch is not None and launch.output.type != _TUPLE,
    )


def _is_scratch(shape: Any) -> bool:
    """Return whether memory is what a library works in, instead of a tensor."""
    return shape["type"] in _BYTES and len(shape["lens"]) == 1


def kernels(program: RemoteProgram, parameters: Mapping[str, Tensor]) -> list[Kernel]:
    """Run an emulated program, and return the kernels of its main module, in order, up to one that is not launched.

    Raises:
        RuntimeFailure: the run fails.
    """
    nodes, *_ = _modules(program)
    named = [(node.output, msgspec.convert(node.operator, _Launch)) for node in nodes if node.name == _KERNEL]
    launches = {name: launch for name, launch in named if launch.output.type != _TUPLE}
    wanted = [(launch.symbol_name, _extent(launch.output)) for launch in launches.values()]
    answer, written = program.trace(parameters, wanted)
    operands = _sources(nodes, {name: place for place, name in enumerate(launches)})
    calls = _sources(nodes, {node.output: node.name for node in nodes if _LIBRARY.match(node.name)})
    launched = zip(launches.items(), answer["executed"], strict=False)
    return [
        Kernel(
            launch.symbol_name,
            _elements(written[str(n)].data, launch.output),
            operands[name],
            calls[name],
            (*lines,),
            launch.code,
        )
        for n, ((name, launch), lines) in enumerate(launched)
    ]


def _modules(program: RemoteProgram) -> list[list[_Instruction]]:
    """Return the instructions of a compiled program, module by module, the main one first."""
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        program.save(path := Path(folder) / "program.mxr")
        modules = msgspec.msgpack.decode(path.read_bytes(), type=_Program).modules
    return [module.nodes for _, module in sorted(modules.items(), key=lambda pair: pair[0] != "main")]


def _sources(nodes: list[_Instruction], known: Mapping[str, _T]) -> dict[str, frozenset[_T]]:
    """Return what is known of the instructions whose results each takes, directly or through views; kernels end it."""
    taken: dict[str, frozenset[_T]] = {}
    kernels = {node.output for node in nodes if node.name == _KERNEL}
    for node in nodes:
        direct = frozenset(known[name] for name in node.inputs if name in known)
        through = (taken[name] for name in node.inputs if name in taken and name not in known and name not in kernels)
        taken[node.output] = direct.union(*through)
    return taken


def _extent(shape: Shape) -> int:
    """Return the bytes from the first to the last element."""
    if 0 in shape.lens:
        return 0
    last = sum((length - 1) * stride for length, stride in zip(shape.lens, shape.strides, strict=True))
    return (last + 1) * shape.dtype.itemsize


def _elements(data: np.ndarray[Any, Any], shape: Shape) -> Array:
    dtype = shape.dtype
    if 0 in shape.lens:
        return np.zeros(shape.lens, dtype)
    strides = [stride * dtype.itemsize for stride in shape.strides]
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(data.view(dtype), shape.lens, strides, writeable=False))
