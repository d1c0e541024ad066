"""Opening a bundle of any kind."""

from __future__ import annotations

import os

from onnx_bridge.bundle.buckets import Buckets, has_buckets
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.decoding.decoder import open_buckets


def load(
    path: str | os.PathLike[str],
    *,
    runtime: str | None = None,
    timeout: float | None = None,
    memory: float | None = None,
) -> Bundle | Buckets:
    """Load a bundle, ready to run.

    Args:
        path: its folder, its program (``.mxr``), or the file that it was packed into.
        runtime: which MIGraphX (see `onnx_bridge.migraphx.runtime.find`).
        timeout: limit in seconds for each of MIGraphX's steps.
        memory: limit in GiB for MIGraphX's process.

    Raises:
        InputError: there is no bundle, or it is damaged or of an unknown format.
        RuntimeNotFound: no MIGraphX here can run it: another version, no GPU, or another kind of GPU.
        RuntimeFailure: MIGraphX cannot read the program.
    """
    kind = open_buckets if has_buckets(path) else Bundle
    bundle = kind(path, runtime=runtime, timeout=timeout, memory=memory)
    bundle.open()
    return bundle
