"""The ways in which a user names an installation of MIGraphX."""

from __future__ import annotations

from typing import Literal, get_args

Kind = Literal["module", "system", "private"]
KINDS: tuple[str, ...] = get_args(Kind)

STUB = "ONNX_BRIDGE_GPU_STUB"
"""The variable of a worker process whose libraries of a GPU are a stub: the stub's library."""

VARIABLE = "ONNX_BRIDGE_RUNTIME"
"""The environment variable with a kind, or a path."""
