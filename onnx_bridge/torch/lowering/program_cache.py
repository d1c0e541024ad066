"""The programs of a module, built or taken from the cache on disk.

An entry of the cache is a folder named by the hash of all that it was built from: the module's fingerprint, the call's
structure with dtypes, shapes and constants, the request, and the versions and sources of all libraries involved. It is
published atomically, built once even if several processes want it, and rebuilt if it is damaged. Before use, the module
is run on the samples of the entry: it must still return what it returned when the entry was built.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import filelock
import torch
from torch import nn

from onnx_bridge.conversion.keys import content_key
from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.files.atomic_write import atomic_folder
from onnx_bridge.core.files.code_digest import code_digest
from onnx_bridge.core.files.digest import json_digest
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.core.third_party import suppressed_output
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.requests.lowering import LowerRequest
from onnx_bridge.torch.lowering.build_programs import LoweringCall
from onnx_bridge.torch.lowering.in_process import require_in_process
from onnx_bridge.torch.lowering.packed_folder import Folder
from onnx_bridge.torch.lowering.programs import Programs, read_samples
from onnx_bridge.torch.modules.calls import FlatModule, run_module
from onnx_bridge.torch.modules.fingerprint import fingerprint
from onnx_bridge.torch.modules.modules import inference_copy
from onnx_bridge.torch.modules.structure import Structure, renamed
from onnx_bridge.torch.modules.tensors import to_array
from passes.core.doubts import Doubts

_LIBRARIES = ("torch", "onnxscript")


@dataclass(frozen=True)
class Obtained:
    """The loaded programs of a module, and how the value that it returns is built from the outputs."""

    programs: Programs
    result: Structure


def obtain_programs(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    request: LowerRequest,
    progress: Progress | None = None,
) -> Obtained:
    """Return the programs of a module for a call; raises like `onnx_bridge.lower`."""
    if request.in_process:
        require_in_process(request.convert.runtime, request.convert.target)
    # tensors of inference mode cannot be traced, and the user's random state must not change
    with torch.inference_mode(False), torch.random.fork_rng(devices=()):
        return _obtain(LoweringCall.of(module, args, kwargs, request), progress or silent)


def _obtain(call: LoweringCall, progress: Progress) -> Obtained:
    cache, key = call.request.cache_folder, None
    if cache is not None:
        key = _key(call)
        if key is None:
            progress("not cached: an attribute of the module has no fingerprint")
    if cache is None or key is None:
        return _built(call, progress)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(cache / f"{key}.lock")
        lock.acquire()
    except OSError:  # the cache cannot be written
        return _built(call, progress)
    entry = cache / key
    try:
        doubts, doubt = Doubts(), cache / f"{key}.doubt"
        kept = entry.is_dir() and not doubt.exists()
        if kept and (cached := _cached(call, Folder(entry), progress)) is not None:
            return cached
        shutil.rmtree(entry, ignore_errors=True)
        doubt.touch()  # the entry is not used again unless nothing lacked time or memory
        with atomic_folder(entry) as temporary:
            result = call.build(Folder(temporary), progress)
        if not doubts:
            doubt.unlink()
        return _opened(call, Folder(entry), result)
    finally:
        lock.release()


def _built(call: LoweringCall, progress: Progress) -> Obtained:
    folder = Folder()
    return _opened(call, folder, call.build(folder, progress))


def _opened(call: LoweringCall, folder: Folder, result: Structure) -> Obtained:
    programs = Programs(folder, call.request)
    programs.open()
    return Obtained(programs, result)


def _key(call: LoweringCall) -> str | None:
    """Return the name of the entry; None if the module has no fingerprint."""
    request = call.request
    digest = fingerprint(call.module, call.call.positional, dict(call.call.keywords))
    if digest is None:
        return None
    shapes = {name: tuple(tensor.shape) for name, tensor in call.tensors.items() if name not in call.dims}
    return json_digest(
        {
            "conversion": content_key(digest, replace(request.convert, shapes=shapes)),
            "inputs": {name: _describe(tensor, call.dims.get(name, {})) for name, tensor in call.tensors.items()},
            "exporter": request.export.exporter,
            "opset": request.export.opset,
            "code": code_digest(),
            "libraries": {name: metadata.version(name) for name in _LIBRARIES},
        }
    )


def _cached(call: LoweringCall, folder: Folder, progress: Progress) -> Obtained | None:
    """Return the programs in a folder; None if they are damaged or not proven, or the module's results have changed."""
    try:
        samples = read_samples(folder.path)
        with inference_copy(call.module) as copied, suppressed_output():
            flat = FlatModule(copied, call.call).eval()
            progress("check")
            results = [_result(flat, given, expected) for given, expected in samples]
        if not results or results[0] is None or None in results:
            return None
        progress("load")
        opened = _opened(call, folder, results[0])
        return opened if opened.programs.bundle.manifest.is_proven_for(call.request.convert.prove) else None
    except (BridgeError, OSError, ValueError, KeyError, RuntimeError, EOFError, TypeError, pickle.UnpicklingError):
        return None


def _describe(tensor: torch.Tensor, dims: Mapping[int, str]) -> list[Any]:
    return [str(tensor.dtype), [dims.get(axis, size) for axis, size in enumerate(tensor.shape)]]


def _result(
    flat: FlatModule, given: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> Structure | None:
    """Return the structure of the module's result for a sample; None if its tensors are not the expected ones."""
    result = run_module(flat, given)
    names = dict(zip(result.tensors, expected, strict=True))
    outputs = {names[name]: to_array(tensor) for name, tensor in result.tensors.items()}
    right = {name: to_array(tensor) for name, tensor in expected.items()}
    return renamed(result.structure, names) if compare(outputs, right).passed else None
