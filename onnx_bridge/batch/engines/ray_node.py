"""The part of the Ray engine that runs on the nodes: a job process, and its events as a stream.

A node uses its own MIGraphX, and rejects a job that was planned for a different one. Models and bundles are transferred
by their locations; the scratch folder is local to the node.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import queue
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from onnx_bridge.batch.engines.local import JobProcess
from onnx_bridge.batch.events import LAST, Event, Exited, Task, Unsuitable
from onnx_bridge.batch.failure import lost
from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.files.code_digest import code_digest
from onnx_bridge.core.files.locations import RemotePath, parse_location
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.machine import Machine
from passes.core.doubts import Doubts, cached

_VISIBLE = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that Ray sets to nothing for a task that requests none of the GPUs that it counts itself."""


@cached()
def facts() -> dict[str, Any]:
    """Return what of this node influences bundles, as JSON values; ``problem`` says why it can make none."""
    code = code_digest()
    try:
        return {"code": code, "machine": msgspec.to_builtins(Machine.here(runtimes.find())), "problem": None}
    except BridgeError as error:
        Doubts.add()  # the node may have what it lacks the next time
        return {"code": code, "machine": None, "problem": str(error)}


def perform_on_node(task: Task, expected: Mapping[str, Any]) -> Iterator[Event]:
    """Perform a job on this node, and yield its events; the last is one of `onnx_bridge.batch.events.LAST`.

    If the facts of the node differ from the ``expected`` ones that the job was planned for, it is `Unsuitable`.
    """
    if facts() != expected:
        why = facts()["problem"] or "its onnx-bridge, MIGraphX, environment or GPU is different"
        yield Unsuitable(lost("UnsuitableNode", f"the node cannot be used: {why}"))
        return
    process, events = _job_process()
    log = parse_location(task.log)
    local_log = _scratch() / "job.log" if isinstance(log, RemotePath) else log
    process.perform(None, replace(task, log=str(local_log)))
    while not isinstance(event := events.get(), LAST):
        yield event
    if isinstance(log, RemotePath):
        with contextlib.suppress(BridgeError):  # the job matters more than its log
            log.upload(local_log)
            local_log.unlink()
    if isinstance(event, Exited):
        _job_process.cache_clear()
        process.close()
    yield event


@functools.cache
def _job_process() -> tuple[JobProcess, queue.SimpleQueue[Event]]:
    """Start the job process of this Ray worker, which is kept from job to job."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    for name in _VISIBLE:
        if os.environ.get(name) == "":
            del os.environ[name]
    scratch = _scratch()
    return JobProcess(lambda _process, event: events.put(event), None, scratch, scratch / "process.log"), events


@functools.cache
def _scratch() -> Path:
    """Create and lock a folder of this process; those of processes that have exited are removed."""
    home = Path(tempfile.gettempdir()) / f"onnx-bridge-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    creating = _lock(home, wait=True)  # or another process would remove the folder before it is locked
    try:
        for path in home.iterdir():
            with contextlib.suppress(OSError):
                lock = _lock(path)
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)
        folder = Path(tempfile.mkdtemp(dir=home))
        _lock(folder)
    finally:
        os.close(creating)
    return folder


def _lock(folder: Path, *, wait: bool = False) -> int:
    """Lock a folder until the returned descriptor is closed.

    Raises:
        OSError: another process has locked it, unless this one is to ``wait``.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
