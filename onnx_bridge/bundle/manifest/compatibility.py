"""Compatibility: can the MIGraphX and the GPU of this machine run the programs of a bundle?"""

from __future__ import annotations

from pathlib import Path

from onnx_bridge.bundle.manifest.manifest import Manifest, made_again
from onnx_bridge.core.errors import InputError, RuntimeNotFound
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.targets import gpu_architecture, resolve_target
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.request import fields_of


def require_compatible(manifest: Manifest, runtime: Runtime, bundle: Path) -> None:
    """Raise RuntimeNotFound if a runtime of this machine, or its GPU, cannot run the programs of a bundle."""
    compiled_by = manifest.versions["migraphx"]
    if minor_release(compiled_by) != minor_release(runtime.version):
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


def minor_release(version: str) -> str:
    """Return the minor release, within which programs stay readable."""
    return ".".join(version.split(".")[:2])


def require_own_settings(manifest: Manifest, conversion: ConvertRequest, where: Path, *names: str) -> None:
    """Raise InputError if some options of a conversion are not those with which a bundle was converted already."""
    for field in fields_of(ConvertRequest):
        own = manifest.target if field.name == "target" else getattr(manifest.request, field.name)
        if field.name in names and getattr(conversion, field.name) not in (field.default, own):
            what = f"a bundle has its own {field.name}, with which it was converted: {field.flag} has no effect"
            raise InputError(what, where=str(where), hint="leave it out, or name the ONNX file")
