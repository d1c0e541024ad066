"""The library with the gpu target's passes (``gpu_passes.cpp``), in the process that has loaded MIGraphX."""

from __future__ import annotations

import ctypes
import functools
import json
from ctypes import c_bool, c_char_p, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from onnx_bridge.migraphx.c_api import CProgram


class PassFailure(Exception):
    """A pass raised an exception."""


class PassLibrary:
    """The library, loaded; MIGraphX's C library must be loaded already."""

    def __init__(self, path: Path) -> None:
        self._dll = ctypes.CDLL(str(path))
        for name in ("groups", "run", "operators"):
            self._symbol(name).restype = c_char_p
        self._symbol("run").argtypes = [c_void_p, c_size_t, c_bool]

    @property
    def groups(self) -> list[str]:
        return self._text("groups").splitlines()

    def run(self, program: CProgram, count: int, *, fast_math: bool = True) -> list[dict[str, Any]]:
        """Run the first ``count`` groups on a program, in place.

        Returns:
            Its convolutions, matrix products, quantizelinear and dequantizelinear after ``simplify_qdq``.

        Raises:
            PassFailure: a pass failed; the program must not be used any more.
        """
        problem = self._symbol("run")(program.address, count, fast_math)
        if problem is not None:
            raise PassFailure(problem.decode(errors="replace"))
        return [json.loads(line) for line in self._text("operators").splitlines()]

    def _text(self, function: str) -> str:
        answer: bytes = self._symbol(function)()
        return answer.decode()

    def _symbol(self, function: str) -> Any:
        return getattr(self._dll, f"rehearsal_{function}")


@functools.cache
def load(path: Path) -> PassLibrary:
    """Return the library at ``path``, loaded once in a process and its forks."""
    return PassLibrary(path)
