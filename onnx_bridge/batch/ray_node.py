"""What runs on a node of a Ray cluster: a process that performs jobs, and what it tells, as a stream.

The node finds its own MIGraphX, and refuses a job that was planned for another. Models and bundles come and go by
their places; the scratch folder is this node's.
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
from pathlib import Path
from typing import Any

from onnx_bridge.batch.engine import Event, ended, failure
from onnx_bridge.batch.local_engine import Performer
from onnx_bridge.batch.stages import STAGES
from onnx_bridge.conversion.keys import code
from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.locations import RemotePath, parse_location
from onnx_bridge.core.version import VERSION
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.machine import Machine

UNLIKE = "UnlikeNode"
"""The kind of failure of a job that came to a node that it was not planned for."""
_VISIBLE = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""What Ray empties for a task that asks for none of the GPUs that it counts itself."""


@functools.cache
def facts() -> dict[str, Any]:
    """What this node has a hand in of bundles, as JSON values; ``problem`` where it can make none."""
    said: dict[str, Any] = {"version": VERSION, "passes": code()}
    try:
        return {**said, "machine": Machine.here(runtimes.find()).to_json(), "problem": None}
    except BridgeError as error:
        return {**said, "machine": None, "problem": str(error)}


def errand(task: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[Event]:
    """Perform a job, and tell what happens.

    Args:
        task: as for `onnx_bridge.batch.job_process.perform`; its ``log`` may be elsewhere.
        expected: what `facts` must be.

    Yields:
        The events; the last is ``finished`` or ``failed``.
    """
    if facts() != expected:
        why = facts()["problem"] or "another version of onnx-bridge, of MIGraphX, or of its settings, or another GPU"
        yield failure(UNLIKE, f"the node is not like the others: {why}", STAGES[0])
        return
    performer, told = _performer()
    log = parse_location(task["log"])
    here = _scratch() / "job.log" if isinstance(log, RemotePath) else log
    performer.give(task, {**task, "log": str(here)})
    stage = STAGES[0]
    while True:
        event = told.get()
        if event["event"] == "stage":
            stage = event["stage"]
        last = event["event"] in ("finished", "failed", "ended")
        if last and isinstance(log, RemotePath):
            with contextlib.suppress(BridgeError):  # the job is worth more than its log
                log.upload(here)
                here.unlink()
        if event["event"] == "ended":
            _performer.cache_clear()
            performer.close()
            event = ended(event["status"], stage)
        yield event
        if last:
            return


@functools.cache
def _performer() -> tuple[Performer, queue.SimpleQueue[Event]]:
    """This Ray process's own, kept from job to job."""
    told: queue.SimpleQueue[Event] = queue.SimpleQueue()
    for name in _VISIBLE:
        if os.environ.get(name) == "":
            del os.environ[name]
    scratch = _scratch()
    return Performer(lambda _performer, event: told.put(event), None, scratch, scratch / "process.log"), told


@functools.cache
def _scratch() -> Path:
    """A folder that this process holds; those of processes that are gone are removed."""
    home = Path(tempfile.gettempdir()) / f"onnx-bridge-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    for each in home.iterdir():
        with contextlib.suppress(OSError):
            held = _hold(each)  # or it is in use
            shutil.rmtree(each, ignore_errors=True)
            os.close(held)
    mine = Path(tempfile.mkdtemp(dir=home))
    _hold(mine)
    return mine


def _hold(folder: Path) -> int:
    """Lock a folder until the descriptor is closed; raises OSError where another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
