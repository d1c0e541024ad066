"""A process that performs jobs, one after the other: all that may crash, leak or be killed in a batch is in here.

It reads tasks as lines of JSON and answers with events: ``stage`` as often as one begins, ``converted``, ``checked``,
and at the end ``finished`` or ``failed``. What it and its libraries print goes to the log of the job. It ends
with the program that started it, also in the middle of a call.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import resource
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from onnx_bridge.batch import transfer
from onnx_bridge.batch.jobs import Settings
from onnx_bridge.bundle.buckets import Buckets
from onnx_bridge.bundle.bundle import Bundle, manifest_path
from onnx_bridge.conversion.buckets import convert_buckets
from onnx_bridge.conversion.convert import convert
from onnx_bridge.core.atomic_write import synchronize
from onnx_bridge.core.errors import BridgeError, ProgramLost, RuntimeFailure, Unreachable, WorkerCrashed
from onnx_bridge.core.locations import parse_location
from onnx_bridge.parity.check import check

Tell = Callable[[dict[str, Any]], None]

_STAGE_OF = {
    "clean": "clean",
    "reuse": "clean",
    "legalize": "legalize",
    "write": "clean",
    "start": "parse",
    "parse": "parse",
    "quantize": "quantize",
    "compile": "compile",
    "save": "save",
    "finish": "save",
    "reference": "check",
}
"""What `convert` and `check` tell, as stages of a job; what else they tell is a detail of the stage before."""
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
"""What the system says in passing: it says nothing of the model."""


def by_chance(error: BaseException) -> bool:
    """Whether another attempt may well go otherwise: a full disk, a process that was killed from outside."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _PASSING:
            return True
        if isinstance(cause, (ProgramLost, MemoryError, Unreachable)):
            return True
        if isinstance(cause, WorkerCrashed) and cause.signal is signal.SIGKILL:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def described(error: BaseException, stage: str) -> dict[str, Any]:
    """A failure as JSON values."""
    known = isinstance(error, BridgeError)
    what = error.what if isinstance(error, BridgeError) else f"unexpected {type(error).__name__}: {error}"
    return {
        "kind": type(error).__name__,
        "what": what,
        "where": error.where if isinstance(error, BridgeError) else None,
        "hint": error.hint if isinstance(error, BridgeError) else "this is a defect; the log shows where",
        "exit_code": error.exit_code if isinstance(error, BridgeError) else 3,
        "stage": stage,
        "chance": by_chance(error),
        "defect": not known,
    }


def perform(task: Mapping[str, Any], tell: Tell) -> None:
    """Convert a model, or compare its bundle with the reference, or both.

    Args:
        task: ``source``, ``bundle`` (where), ``settings`` (`Settings.to_json`), whether to ``convert`` and ``check``,
            whether the cleaned model of an earlier bundle may be taken (``reuse``), and ``aside``: where the bundle is
            laid down instead, for another program to publish; None where it is not.
        tell: takes the events.
    """
    settings, scratch = Settings.from_json(task["settings"]), contextlib.ExitStack()
    stage, source = "load", Path(task["source"])

    def progress(said: str) -> None:
        nonlocal stage
        stage = _STAGE_OF.get(said, stage)
        tell({"event": "stage", "stage": stage, "detail": said})
        print(f"{time.strftime('%H:%M:%S')} {stage}: {said}", flush=True)

    progress("load")
    started = time.perf_counter()
    try:
        source, out = transfer.bring(task, scratch)
        for file in task["passes"]:
            _load_passes(file)
        if task["convert"]:
            bundle: Bundle | Buckets
            arguments = {**settings.conversion(), "reuse": task["reuse"]}
            if settings.buckets:
                bundle = convert_buckets(
                    source, out, settings.buckets, pad=settings.pad, **arguments, progress=progress
                )
            else:
                bundle = convert(source, out, **arguments, progress=progress)
            if task["aside"] is None:
                _sync(bundle)
            else:
                transfer.lay_down(out, parse_location(task["aside"]), parse_location(task["source"]))
            manifest = bundle.manifest
            said = {"key": manifest.key, "notes": manifest.notes, "timings": manifest.timings}
            tell({"event": "converted", "seconds": _since(started), **said, "partitions": manifest.partition_line})
        if task["check"]:
            stage = "check"
            progress("check")
            started = time.perf_counter()
            report = check(
                out,
                timeout=settings.timeout,
                memory=settings.memory,
                reference=source,
                inputs=settings.data,
                seed=settings.seed,
                samples=settings.samples,
                rtol=settings.rtol,
                atol=settings.atol,
                tolerance=settings.tolerance,
                progress=progress,
            )
            print(json.dumps(report.to_json()), flush=True)
            report.raise_failure()
            tell({"event": "checked", "passed": report.passed, "summary": report.summary, "seconds": _since(started)})
        tell({"event": "finished"})
    except BaseException as error:
        traceback.print_exc()
        if isinstance(error, RuntimeFailure) and error.output:
            print(f"MIGraphX printed:\n{error.output}")
        if not isinstance(error, Exception):
            raise
        failure = described(error, stage)
        for name in ("what", "where"):  # what was brought here has another name elsewhere
            failure[name] = failure[name] and failure[name].replace(str(source), task["source"])
        tell({"event": "failed", "seconds": _since(started), "error": failure})
    finally:
        scratch.close()


def _since(started: float) -> float:
    return round(time.perf_counter() - started, 4)


def _sync(bundle: Bundle | Buckets) -> None:
    """Have a bundle on the disk before anybody says that it is done."""
    place = manifest_path(bundle.path)
    if isinstance(bundle, Buckets):
        names = [each.file for each in bundle.manifest.files]
        for each in bundle.bundles:
            _sync(each)
    else:
        names = [each.file for each in bundle.manifest.files]
    for name in (place.name, *names):
        synchronize(place.parent / name)
    for folder in (place.parent, place.parent.parent):
        synchronize(folder)


def main(connection: int, lifeline: int) -> None:
    """Perform the tasks that come over a socket until it is closed."""
    # the kernel ends this process (SIGIO) once the other end of the lifeline is gone, whatever it is doing
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    link = socket.socket(fileno=connection)
    link.set_inheritable(False)
    os.set_inheritable(lifeline, False)
    tasks, events = link.makefile("r", encoding="utf-8"), link.makefile("w", encoding="utf-8")

    def tell(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    for line in tasks:
        task = json.loads(line)
        with _logging(Path(task["log"])):
            perform(task, tell)


@functools.cache
def _load_passes(file: str) -> None:
    """A file with passes of the user's own; once, since they register themselves."""
    import passes

    passes.load_file(Path(file))


@contextlib.contextmanager
def _logging(path: Path) -> Iterator[None]:
    """Send standard output and error to a file; where it cannot be written, nowhere."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError:
        file = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    before = os.dup(1), os.dup(2)
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)
    try:
        yield
    finally:
        for number, old in enumerate(before, 1):
            os.dup2(old, number)
            os.close(old)
