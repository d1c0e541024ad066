"""What a machine has a hand in of the bundles that are made on it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.runtime import Runtime

_UNHEEDED = ("MIGRAPHX_TRACE_", "MIGRAPHX_TIME_")
"""Variables that only make MIGraphX talk."""


@dataclass(frozen=True)
class Site:
    """A machine: two that are equal make the same bundle of the same job.

    Attributes:
        identity: of its MIGraphX (`Runtime.identity`).
        architecture: of its GPU ("gfx942"); None without one.
        environment: the variables with which MIGraphX makes another program.
        targets: that its MIGraphX has libraries for.
    """

    identity: str
    architecture: str | None
    environment: Mapping[str, str]
    targets: tuple[str, ...]

    @classmethod
    def here(cls, runtime: Runtime) -> Site:
        """This machine, with one of its MIGraphX."""
        return cls(runtime.identity, runtimes.gpu(), settings(os.environ), tuple(runtime.targets))

    @classmethod
    def of(cls, runtime: Runtime | Site) -> Site:
        """Itself, or this machine."""
        return runtime if isinstance(runtime, Site) else cls.here(runtime)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "targets": list(self.targets)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Site:
        """What `to_json` gave."""
        return cls(**{**values, "targets": tuple(values["targets"])})


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with which MIGraphX makes another program."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith("MIGRAPHX_") and not name.startswith(_UNHEEDED)
    }
