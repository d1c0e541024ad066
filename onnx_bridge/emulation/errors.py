"""Errors that end an emulation."""

from __future__ import annotations

import re

from onnx_bridge.core.errors import RuntimeFailure

_PIECE = re.compile(r"[ST]\w?_|L[a-z]\d+E|(\d+)")
"""A piece of a mangled name: a back reference, a literal number, or the length of the identifier that follows."""
_AROUND = re.compile(r"(migraphx|version_\w+|gpu|device|\w*launch\w*|ihipStream_t|hip_shape)?")
"""Identifiers around the function that a kernel of MIGraphX's libraries is a part of."""


def readable(kernel: str) -> str:
    """Return the name of a kernel; of one that C++ has mangled, the function that launches it."""
    at = len("_Z") if kernel.startswith("_Z") else len(kernel)
    while piece := _PIECE.search(kernel, at):
        at = piece.end() + int(piece[1] or 0)
        if piece[1] and not _AROUND.fullmatch(name := kernel[piece.end() : at]):
            return f"{name} of MIGraphX's libraries"
    return kernel


class NotEmulated(RuntimeFailure):
    """A kernel needs what the emulator does not have.

    Attributes:
        instruction: the instruction's text, or the property of the kernel.
        kernel: the kernel's name.
    """

    def __init__(self, instruction: str, kernel: str) -> None:
        super().__init__(f"not emulated: {instruction}", where=f"kernel {readable(kernel)}")
        self.instruction, self.kernel = instruction, kernel


class KernelFault(RuntimeFailure):
    """A kernel did what a GPU would not survive, or exceeded its limit.

    Attributes:
        kernel: the kernel's name.
        instruction: the text of the instruction at fault.
        address: the address that it touched.
        group: the workgroup.
    """

    def __init__(self, what: str, kernel: str, instruction: str, address: int, group: tuple[int, ...]) -> None:
        at = f" at {address:#x}" if address else ""
        super().__init__(f"{instruction} {what}{at}", where=f"kernel {readable(kernel)}, workgroup {group}")
        self.kernel, self.instruction, self.address, self.group = kernel, instruction, address, group
