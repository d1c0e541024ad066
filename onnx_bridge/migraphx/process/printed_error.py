"""Errors that MIGraphX prints, parsed into fields: its C library returns a bare status.

No other module looks at the text of these errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LOCATION = re.compile(r"\S+\.[ch]pp:\d+: (?:[\w~()]+: )?")
"""Source file, line and function, which MIGraphX puts in front of a message."""
_NO_PRODUCER = re.compile(r'PARSE_GRAPH: invalid onnx file\. Input "(.*)" is unavailable due to .*')
"""The text that MIGraphX prints for a value that it has not parsed, also if the file is valid."""
_KERNEL = re.compile(r"^(?:.*: )?error: (.+)$(?=(?s:.*)^\d+ errors? generated when compiling for \S+$)", re.MULTILINE)
"""The first error of the compiler of GPU kernels, after which MIGraphX fails in some other way."""


@dataclass(frozen=True)
class PrintedError:
    """An error that MIGraphX printed, without source locations; empty if there is none."""

    text: str
    out_of_memory: bool

    @classmethod
    def parse(cls, printed: str) -> PrintedError:
        """Read the last error in what was printed."""
        if kernel := _KERNEL.search(printed):
            return cls(f"a kernel cannot be compiled: {kernel[1]}", False)
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("migraphx_") or "Error:" in line] or lines[-1:]
        text = re.sub(r"^migraphx_\w+: ", "", errors[-1]) if errors else ""
        text = _LOCATION.sub("", text.removeprefix("Error: ")).strip()
        return cls(_NO_PRODUCER.sub(r"it has parsed no node that computes '\1'", text), "bad_alloc" in printed)
