"""Targets of compilation: ``ref`` runs on any CPU, ``gpu`` needs an AMD GPU and a runtime with its libraries.

``gpu:gfx942`` is an architecture: on a machine without such a GPU programs are compiled for it, and ``ref`` runs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from onnx_bridge.core.errors import InputError, RuntimeNotFound, nearest
from onnx_bridge.migraphx.architectures import named_architecture
from onnx_bridge.migraphx.runtime import Runtime


def resolve_target(target: str, runtime: Runtime, root: Path = Path("/")) -> str:
    """Return the target to run on: ``ref`` or ``gpu``.

    Args:
        target: ``ref``, ``gpu``, ``auto``: ``gpu`` if there are an AMD GPU and the library for it, else ``ref``; or an
            architecture, ``gpu:gfx942``: ``gpu`` if the GPU is of it, else ``ref``.

    Raises:
        InputError: the target is unknown.
        RuntimeNotFound: ``gpu`` was asked for and cannot be had; says what is missing.
    """
    known = ("auto", "ref", "gpu")
    if (named := named_architecture(target)) is not None:
        there = gpu_architecture(root) == named.name and "gpu" in runtime.targets
        return "gpu" if there else "ref"
    if target not in known:
        hint = nearest(target, known) or f"one of: {', '.join(known)}"
        raise InputError("there is no such target", where=f"target {target!r}", hint=hint)
    if target == "ref":
        return target
    architecture = gpu_architecture(root)
    if architecture and "gpu" in runtime.targets:
        return "gpu"
    if target == "auto":
        return "ref"
    if architecture:
        raise RuntimeNotFound(
            f"this machine has a {architecture}, but this runtime lacks libmigraphx_gpu or the ROCm libraries under it",
            where=str(runtime.path),
            hint="onnx-bridge runtime install --gpu, or AMD's official ROCm packages",
        )
    if listed := gpu_architectures(root):
        raise RuntimeNotFound(
            f"there is an AMD GPU ({listed[0]}), but this user may not open it",
            where=str(root / "dev/kfd"),
            hint="add the user to the groups render and video; in a container: --device /dev/kfd --device /dev/dri",
        )
    raise RuntimeNotFound(
        "this machine has no AMD GPU, or its driver (amdgpu) is not loaded",
        where="target gpu",
        hint="use the target ref, or auto",
    )


def target_architecture(target: str) -> str | None:
    """Return the architecture that programs for a target are for in the end; None for ``ref``, and if it is unknown."""
    if (named := named_architecture(target)) is not None:
        return named.name
    return gpu_architecture() if target in ("auto", "gpu") else None


def gpu_architecture(root: Path = Path("/")) -> str | None:
    """Return the architecture of this machine's AMD GPU ("gfx942"); None without one that this process may use."""
    architectures = gpu_architectures(root)
    return architectures[0] if architectures and os.access(root / "dev/kfd", os.R_OK | os.W_OK) else None


def gpu_architectures(root: Path = Path("/")) -> list[str]:
    """Return the architectures of all AMD GPUs that the kernel's driver lists, usable by this process or not."""
    architectures = []
    for properties in sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")):
        try:
            version = re.search(r"^gfx_target_version (\d+)$", properties.read_text(), re.MULTILINE)
        except OSError:  # a container may not read the nodes of the GPUs it was not given
            continue
        if version and (number := int(version.group(1))):  # processors have 0
            major, rest = divmod(number, 10000)
            architectures.append(f"gfx{major}{rest // 100:x}{rest % 100:x}")
    return architectures
