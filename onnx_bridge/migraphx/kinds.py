"""The ways in which a user names an installation of MIGraphX."""

from __future__ import annotations

from typing import Literal, get_args

Kind = Literal["module", "system", "private"]
KINDS: tuple[str, ...] = get_args(Kind)

VARIABLE = "ONNX_BRIDGE_RUNTIME"
"""The environment variable with a kind, or a path."""
