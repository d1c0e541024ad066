"""Errors that end an emulation."""

from __future__ import annotations

from onnx_bridge.core.errors import RuntimeFailure


class NotEmulated(RuntimeFailure):
    """A kernel needs what the emulator does not have.

    Attributes:
        instruction: the instruction's text, or the property of the kernel.
        kernel: the kernel's name.
    """

    def __init__(self, instruction: str, kernel: str) -> None:
        super().__init__(f"not emulated: {instruction}", where=f"kernel {kernel}")
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
        super().__init__(f"{instruction} {what}{at}", where=f"kernel {kernel}, workgroup {group}")
        self.kernel, self.instruction, self.address, self.group = kernel, instruction, address, group
