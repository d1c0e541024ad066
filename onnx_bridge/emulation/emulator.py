"""The face of the package: load a code object, launch its kernels over memory of this process."""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnx_bridge.core.errors import InputError
from onnx_bridge.emulation import code_object
from onnx_bridge.emulation.code_object import CodeObject, Kernel
from onnx_bridge.emulation.comgr import Line
from onnx_bridge.emulation.errors import KernelFault, NotEmulated
from onnx_bridge.emulation.library import library
from onnx_bridge.emulation.translate import INSTRUCTION, Translation, translate
from onnx_bridge.emulation.translations import kept

Disassemble = Callable[[bytes, int, str], list[Line]]
"""`comgr.Comgr.disassemble`, or a process that has it."""
_MOST_INSTRUCTIONS = 1 << 40
_HIDDEN = {
    name: number
    for number, name in enumerate(
        (
            *(f"hidden_block_count_{axis}" for axis in "xyz"),
            *(f"hidden_group_size_{axis}" for axis in "xyz"),
            *(f"hidden_remainder_{axis}" for axis in "xyz"),
            *("hidden_grid_dims", "hidden_dynamic_lds_size"),
        )
    )
}
_ZERO = len(_HIDDEN)
_USER = {3: 1, 1: 2}
"""The kinds of user SGPRs that hold an address, by their bit in the properties: of the arguments, of the packet."""


class _Hidden(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint16), ("size", ctypes.c_uint16), ("kind", ctypes.c_uint16))


class _Kernel(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("entry", "vectors", "lds", "scratch", "arguments_size")),
        *((name, ctypes.c_uint32) for name in ("hidden_count", "flags", "user_scalars")),
        ("hidden", _Hidden * 32),
        ("user", ctypes.c_uint8 * 16),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        *(("grid", ctypes.c_uint32 * 3), ("size", ctypes.c_uint32 * 3)),
        *(("dynamic_lds", ctypes.c_uint32), ("threads", ctypes.c_uint32)),
        *(("arguments", ctypes.c_void_p), ("arguments_size", ctypes.c_uint64)),
        *(("memory", ctypes.c_void_p), ("memory_count", ctypes.c_uint64)),
        *(("limit", ctypes.c_uint64), ("reversed", ctypes.c_uint64)),
    )


class _Report(ctypes.Structure):
    _fields_ = (
        *(("state", ctypes.c_uint32), ("place", ctypes.c_uint32)),
        *(("executed", ctypes.c_uint64), ("address", ctypes.c_uint64)),
        *(("group", ctypes.c_uint32 * 3), ("lane", ctypes.c_uint32), ("what", ctypes.c_char * 200)),
    )


@dataclass(frozen=True)
class Launch:
    """The launch of a kernel.

    Attributes:
        grid: work-items along x, y, z; the last workgroup along an axis may have fewer than the others.
        size: work-items of a workgroup along x, y, z.
        arguments: the explicit arguments, as they lie in the kernel's argument memory.
        dynamic_lds: bytes of LDS beyond what the kernel declares.
        memory: the begin and end of each piece of memory that may be touched; empty means all of the process's.
        threads: how many threads compute workgroups.
        limit: the instructions that all waves together may execute.
        backwards: whether the waves of a workgroup take turns in descending order.
    """

    grid: tuple[int, int, int]
    size: tuple[int, int, int]
    arguments: bytes
    dynamic_lds: int = 0
    memory: Sequence[tuple[int, int]] = ()
    threads: int = 1
    limit: int = _MOST_INSTRUCTIONS
    backwards: bool = False


class Program:
    """A code object, translated and loaded.

    Args:
        data: the code object.
        disassemble: the disassembler.

    Raises:
        InputError: the code object is damaged, or for another architecture.
        RuntimeFailure: the machine cannot be built.
    """

    def __init__(self, data: bytes, disassemble: Disassemble) -> None:
        self.code_object: CodeObject = code_object.read(data)
        isa, (begin, end) = self.code_object.isa, self.code_object.code
        self._old = isa.startswith("gfx9")
        wave = 64 if self._old else 32
        self._machine = library(wave)
        self._machine.emulator_table.restype = ctypes.c_char_p
        self._machine.emulator_load.restype = self._machine.emulator_image.restype = ctypes.c_void_p
        table = [tuple(line.split(" ")) for line in self._machine.emulator_table().decode().splitlines()]
        code = self.code_object.image[begin:end]

        def made() -> Translation:
            return translate(disassemble(code, begin, isa), code, table, wave, self._old)

        self.translation = kept(self.code_object.digest, wave, made)
        self._handle = self._load()
        weakref.finalize(self, self._machine.emulator_unload, self._handle)

    def _load(self) -> ctypes.c_void_p:
        t, image = self.translation, self.code_object.image
        assert self._machine.emulator_instruction_size() == INSTRUCTION.itemsize
        constants = np.array(t.constants or [(0, 0)], np.uint32)
        sizes = map(
            ctypes.c_uint64, (len(image), self.code_object.code[0], len(t.records), len(t.index), len(constants))
        )
        image_size, code_at, count, index_size, constant_count = sizes
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (t.records, t.index, constants)]
        handle = ctypes.c_void_p(
            self._machine.emulator_load(
                *(image, image_size, code_at, pointers[0], count, pointers[1], index_size, pointers[2], constant_count)
            )
        )
        address = self._machine.emulator_image(handle)
        for place in self.code_object.relocations:
            pointer = ctypes.c_uint64.from_address(address + place)
            pointer.value += address
        return handle

    def launch(self, name: str, launch: Launch) -> int:
        """Execute a kernel; returns the number of executed instructions, each counted once for a wave.

        Raises:
            InputError: there is no such kernel, or the launch is impossible.
            NotEmulated: it executed what is not known.
            KernelFault: it touched memory that it must not, or exceeded the limit.
        """
        kernel = self.code_object.kernels.get(name)
        if kernel is None:
            raise InputError(f"the code object has no kernel {name}")
        if not 0 < np.prod(launch.size, dtype=object) <= 1024 or min(launch.grid) < 0:
            raise InputError(f"a workgroup of {launch.size} work-items is impossible", where=f"kernel {name}")
        described = self._described(kernel)
        memory = np.array(sorted(launch.memory), np.uint64).reshape(-1, 2)
        report = _Report()
        request = _Launch(
            *((ctypes.c_uint32 * 3)(*launch.grid), (ctypes.c_uint32 * 3)(*launch.size)),
            *(
                launch.dynamic_lds,
                launch.threads,
                ctypes.cast(ctypes.c_char_p(launch.arguments), ctypes.c_void_p),
                len(launch.arguments),
            ),
            *(memory.ctypes.data, len(memory), launch.limit, launch.backwards),
        )
        machine = self._machine
        if machine.emulator_launch(self._handle, *map(ctypes.byref, (described, request, report))):
            number = int(self.translation.index[report.place // 4])
            if number in self.translation.missing:
                raise NotEmulated(self.translation.missing[number], name)
            line, what = self.translation.lines[number], report.what.decode()
            raise KernelFault(what, name, line, report.address, tuple(report.group))
        return int(report.executed)

    def counts(self) -> Counter[str]:
        """Return how often each instruction was executed by a wave, by its text, over all launches."""
        numbers = (ctypes.c_uint64 * len(self.translation.records))()
        self._machine.emulator_counts(self._handle, numbers)
        total: Counter[str] = Counter()
        for line, number in zip(self.translation.lines, numbers, strict=True):
            total[line] += number
        return total

    def _described(self, kernel: Kernel) -> _Kernel:
        """Return what the machine must know of a kernel: how its registers are set up."""
        _, first, second = kernel.resources
        isa, place = self.code_object.isa, kernel.entry - self.code_object.code[0]
        if place % 4 or not 0 <= place // 4 < len(self.translation.index):
            raise InputError("the kernel lies outside the code", where=f"kernel {kernel.name}")
        if first >> 12 & 0xFF != 0xF0:
            raise NotEmulated("another mode of floats than the usual one", kernel.name)
        if not self._old and not kernel.properties >> 10 & 1:
            raise NotEmulated("waves of 64 lanes", kernel.name)
        in_trap, architected = isa.startswith("gfx12"), isa != "gfx90a"
        wanted = (second >> 7 & 1, second >> 8 & 1, second >> 9 & 1, second >> 10 & 1, second & 1 and not architected)
        flags = [*(bool(flag) and not in_trap for flag in wanted), in_trap]
        if kernel.scratch and not architected:
            raise NotEmulated("private memory", kernel.name)
        described = _Kernel(
            entry=int(self.translation.index[place // 4]),
            vectors=self.translation.vectors,
            lds=kernel.lds,
            scratch=kernel.scratch,
            arguments_size=kernel.arguments_size,
            flags=sum(flag << n for n, flag in enumerate(flags)),
            user_scalars=second >> 1 & 31,
        )
        # the user SGPRs: pairs of addresses in a fixed order, then arguments that are loaded ahead
        at = 0
        for bit, count in enumerate((4, 2, 2, 2, 2, 2, 1)):
            if kernel.properties >> bit & 1:
                if bit in _USER:
                    described.user[at] = _USER[bit]
                at += count
        length, offset = kernel.preload & 0x7F, kernel.preload >> 7
        for n in range(length if self._old else 0):
            described.user[at + n] = 16 + offset + n
        hidden = [argument for argument in kernel.arguments if argument.kind.startswith("hidden_")][:32]
        described.hidden_count = len(hidden)
        for n, argument in enumerate(hidden):
            described.hidden[n] = (argument.offset, argument.size, _HIDDEN.get(argument.kind, _ZERO))
        return described
