"""Running a program for a GPU on the CPU: its kernels by the emulator, its products and convolutions by numpy.

The stub of the GPU's libraries calls the hooks of this module, in the process that has loaded MIGraphX.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_bridge.core.errors import NotEmulated
from onnx_bridge.emulation import errors
from onnx_bridge.emulation.comgr import Comgr
from onnx_bridge.emulation.emulator import Launch, Program
from onnx_bridge.migraphx.gpu import host_libraries as host

_MOST_RANGES = 1 << 16


class _Launched(ctypes.Structure):
    _fields_ = (
        *(("code", c_void_p), ("code_size", c_size_t), ("kernel", c_char_p)),
        *(("threads", c_uint32 * 3), ("workgroup", c_uint32 * 3), ("lds", c_size_t)),
        *(("arguments", c_void_p), ("arguments_size", c_size_t), ("parameters", POINTER(c_void_p))),
    )


_Hook = tuple[type[ctypes.Structure], Callable[[Any], None]]
_BY_HOST: dict[str, _Hook] = {
    "product": (host.Product, host.multiply),
    "convolution": (host.Convolution, host.convolve),
    "pooling": (host.Pooling, host.pool),
    "normalization": (host.Normalization, host.normalize),
}
"""The calls of AMD's libraries: their form, and what carries them out."""


@dataclass
class Trace:
    """The bytes that kernels wrote, and the instructions that they executed, as text, each once.

    A kernel's last argument is the address that it writes to.
    """

    wanted: Sequence[tuple[str, int]]
    written: list[bytes] = field(default_factory=list)
    executed: list[list[str]] = field(default_factory=list)

    def add(self, kernel: str, arguments: bytes, executed: Counter[str]) -> None:
        """Add a launch, if it is the next one that is wanted."""
        name, size = self.wanted[len(self.written)] if len(self.written) < len(self.wanted) else ("", 0)
        if kernel == name:
            self.written.append(ctypes.string_at(int.from_bytes(arguments[-8:], "little"), size))
            self.executed.append(list(executed))


class Emulation:
    """What carries out launches and products; `coverage` counts them since it was last read.

    Args:
        stub: the library of the stub, which the process has loaded.
    """

    def __init__(self, stub: Path) -> None:
        self._stub = ctypes.CDLL(str(stub))
        self._stub.gpustub_absent.restype = c_char_p
        self._disassemble = Comgr().disassemble
        self._programs: dict[bytes, Program] = {}
        self._counts: Counter[str] = Counter()
        self._running = False
        self._error: Exception | None = None
        self._trace: Trace | None = None
        carried_out: dict[str, _Hook] = {"launch": (_Launched, self._launch), **_BY_HOST}
        self._hooks = {
            name: CFUNCTYPE(c_int, POINTER(form))(functools.partial(self._computed, name, work))
            for name, (form, work) in carried_out.items()
        }
        for name, hook in self._hooks.items():
            getattr(self._stub, f"gpustub_set_{name}_hook")(hook)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Carry out what is launched within the block; raises the error of a launch instead of MIGraphX's."""
        self._running, self._error = True, None
        try:
            yield
        finally:
            self._running = False
            if self._error is not None:
                raise self._error
            if (symbol := self._stub.gpustub_absent()) is not None:
                raise NotEmulated(f"not emulated: {symbol.decode()}")

    def coverage(self) -> dict[str, int]:
        """Return the numbers of launches, instructions of waves, and products since the last call."""
        counts, self._counts = self._counts, Counter()
        return dict(counts)

    def traced(self, wanted: Sequence[tuple[str, int]], run: Callable[[], object]) -> Trace:
        """Return what the launches of a run write, of those that are wanted, in order.

        Args:
            wanted: the name of each kernel, and the bytes that it writes.
            run: runs a program.
        """
        trace = self._trace = Trace(wanted)
        try:
            run()
        finally:
            self._trace = None
        return trace

    def _launch(self, launched: _Launched) -> None:
        data = ctypes.string_at(launched.code, launched.code_size)
        key = hashlib.sha256(data).digest()
        if key not in self._programs:
            self._programs[key] = Program(data, self._disassemble)
        program, name = self._programs[key], launched.kernel.decode()
        if launched.arguments is None:
            arguments = _packed(program, name, launched.parameters)
        else:
            arguments = ctypes.string_at(launched.arguments, launched.arguments_size)
        grid, size = ((axes[0], axes[1], axes[2]) for axes in (launched.threads, launched.workgroup))
        launch = Launch(grid, size, arguments, launched.lds, self._allocations())
        before = program.counts() if self._trace is not None else Counter[str]()
        self._counts["instruction"] += program.launch(name, launch)
        if self._trace is not None:
            self._trace.add(name, arguments, program.counts() - before)

    def _computed(self, what: str, work: Callable[[Any], None], call: Any) -> int:
        """Carry out a call, unless MIGraphX only compiles, and count it; returns 0, or another number if it failed."""
        if not self._running:
            return 0
        try:
            work(call.contents)
            self._counts[what] += 1
            return 0
        except errors.NotEmulated as error:
            self._error = self._error or NotEmulated(str(error))
        except Exception as error:  # nothing passes through MIGraphX's C++
            self._error = self._error or error
        return 1

    def _allocations(self) -> list[tuple[int, int]]:
        ranges = (c_uint64 * 2 * _MOST_RANGES)()
        count = self._stub.gpustub_allocations(ranges, c_size_t(_MOST_RANGES))
        return [(pair[0], pair[1]) for pair in ranges[:count]]


def _packed(program: Program, kernel: str, parameters: Any) -> bytes:
    """Return the arguments of a kernel, given a pointer to each, as they lie in its argument memory."""
    explicit = [a for a in program.code_object.kernels[kernel].arguments if not a.kind.startswith("hidden_")]
    memory = bytearray(max((argument.offset + argument.size for argument in explicit), default=0))
    for argument, address in zip(explicit, parameters, strict=False):
        memory[argument.offset : argument.offset + argument.size] = ctypes.string_at(address, argument.size)
    return bytes(memory)
