"""The disassembler of AMD's code object manager (libamd_comgr), by ctypes.

The library may need a newer C library than the machine's: then the process must have been started by the loader that
was unpacked with it.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, byref, c_char_p, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path

from onnx_bridge.core.errors import RuntimeFailure

LIBRARY = "libamd_comgr.so.3"

_ReadMemory = CFUNCTYPE(c_uint64, c_uint64, c_void_p, c_uint64, c_void_p)
_PrintText = CFUNCTYPE(None, c_char_p, c_void_p)
_PrintAddress = CFUNCTYPE(None, c_uint64, c_void_p)


@dataclass(frozen=True)
class Line:
    """One instruction: its address, size and text, and the address that it refers to, if it is a branch.

    The text is empty if the bytes are no instruction.
    """

    address: int
    size: int
    text: str
    target: int | None = None


class Comgr:
    """The library, loaded from a path, or by the loader's search path."""

    def __init__(self, path: Path | str = LIBRARY) -> None:
        self._dll = ctypes.CDLL(str(path))

    def disassemble(self, code: bytes, address: int, isa: str) -> list[Line]:
        """Return the instructions in ``code``, which lies at ``address``.

        Args:
            code: the machine code.
            address: the address of its first byte.
            isa: the architecture, as in ``gfx942``.

        Raises:
            RuntimeFailure: the library does not know the architecture.
        """
        lines: list[Line] = []
        text: list[str] = []
        target: list[int] = []

        def read(start: int, to: int, size: int, _: object) -> int:
            piece = code[max(0, start - address) : max(0, start - address) + size]
            ctypes.memmove(to, piece, len(piece))
            return len(piece)

        callbacks = (
            _ReadMemory(read),
            _PrintText(lambda printed, _: text.append(printed.decode(errors="replace").strip())),
            _PrintAddress(lambda at, _: target.append(at)),
        )
        handle, size = c_uint64(), c_uint64()
        name = f"amdgcn-amd-amdhsa--{isa}".encode()
        if self._dll.amd_comgr_create_disassembly_info(name, *callbacks, byref(handle)):
            raise RuntimeFailure(f"the disassembler does not know {isa}")
        try:
            at, end = address, address + len(code)
            while at < end:
                text.clear()
                target.clear()
                failed = self._dll.amd_comgr_disassemble_instruction(handle, c_uint64(at), None, byref(size))
                step = 4 if failed or not size.value else size.value
                printed = "" if failed or not text else text[0]
                lines.append(Line(at, step, printed, target[0] if target else None))
                at += step
        finally:
            self._dll.amd_comgr_destroy_disassembly_info(handle)
        return lines
