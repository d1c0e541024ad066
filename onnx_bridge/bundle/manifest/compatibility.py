"""Compatibility: can the MIGraphX and the GPU of this machine run the programs of a bundle?"""

from __future__ import annotations

from pathlib import Path

from onnx_bridge.bundle.manifest.manifest import Manifest, made_again
from onnx_bridge.core.errors import RuntimeNotFound
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.targets import gpu_architecture, resolve_target


def require_compatible(manifest: Manifest, runtime: Runtime, bundle: Path) -> None:
    """Raise RuntimeNotFound if a runtime of this machine, or its GPU, cannot run the programs of a bundle."""
    compiled_by = manifest.versions["migraphx"]
    if _release(compiled_by) != _release(runtime.version):
        raise RuntimeNotFound(
            f"the program was compiled by MIGraphX {compiled_by}, and the one here is {runtime.version} "
            f"({runtime.path})",
            where=str(bundle),
            hint=f"{made_again(manifest.source['path'])}, or choose a runtime with ONNX_BRIDGE_RUNTIME",
        )
    if manifest.target == "gpu":
        resolve_target("gpu", runtime)
        here = gpu_architecture() or "none"
        if manifest.architecture not in (None, here):
            raise RuntimeNotFound(
                f"the program was compiled for {manifest.architecture}, and the GPU here is {here}",
                where=str(bundle),
                hint="convert again on this machine",
            )


def _release(version: str) -> str:
    """Return the minor release, within which programs stay readable."""
    return ".".join(version.split(".")[:2])
