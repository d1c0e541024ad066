"""The process that runs jobs, one after the other, so that a crash, a leak or a kill ends a job and not the batch.

It receives tasks and answers each with events (`onnx_bridge.batch.events`). Standard output and error go to the log of
the job.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

import passes
from onnx_bridge.batch import transfer
from onnx_bridge.batch.events import Checked, Converted, Event, Failed, Finished, StageBegun, Task
from onnx_bridge.batch.failure import Failure, exceeded_limit
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.conversion import convert as conversion
from onnx_bridge.core.errors import RuntimeFailure
from onnx_bridge.core.files.atomic_write import synchronize
from onnx_bridge.core.files.locations import parse_location
from onnx_bridge.core.progress import Stage
from onnx_bridge.parity.checking import check as parity
from onnx_bridge.requests.batch import JobRequest
from passes.core.doubts import Doubts
from passes.core.text import printable
from passes.isolation import messages

Emit = Callable[[Event], None]


def perform(task: Task, emit: Emit) -> None:
    """Convert a model, compare its bundle with the reference, or both, and emit the events."""
    _Attempt(task, emit).run()


class _Attempt:
    """A task that is carried out; ``stage`` is its current stage."""

    def __init__(self, task: Task, emit: Emit) -> None:
        self._task, self._emit = task, emit
        self._request = JobRequest.from_json(task.request)
        self._source = Path(task.source)
        self._started, self._doubts = time.perf_counter(), Doubts()
        self.stage = Stage.LOAD

    def run(self) -> None:
        """Carry it out; every exception becomes the event `Failed`, except those that end the process."""
        self._progress(Stage.LOAD)
        try:
            with contextlib.ExitStack() as scratch:
                self._source, out = transfer.fetch_inputs(self._task, scratch)
                for file in self._task.passes:
                    _load_passes(file)
                if self._task.convert:
                    self._convert(out)
                if self._task.check:
                    self._check(out)
            self._emit(Finished())
        except BaseException as error:
            print(*map(printable, traceback.format_exc().splitlines()), sep="\n")
            if isinstance(error, RuntimeFailure) and error.output:
                print("MIGraphX printed:", *map(printable, error.output.splitlines()), sep="\n")
            if not isinstance(error, Exception):
                raise
            failure = self._with_original_path(Failure.of(error, self.stage))
            limit = exceeded_limit(error)
            if self._doubts and (limit is None or getattr(self._request.conversion, limit) is None):
                failure = failure.as_transient()
            self._emit(Failed(failure))

    def _convert(self, out: Path) -> None:
        request = replace(self._request.conversion, reuse=self._task.reuse)
        bundle = conversion.run(self._source, out, request, self._progress)
        if self._task.staging is None:
            _synchronize(bundle)
        else:
            transfer.stage_bundle(out, parse_location(self._task.staging), parse_location(self._task.source))
        manifest = bundle.manifest
        seconds = round(time.perf_counter() - self._started, 4)
        notes, timings = tuple(manifest.notes), dict(manifest.timings)
        self._emit(Converted(seconds, manifest.key or "", notes, timings, manifest.proof, manifest.chosen))

    def _check(self, out: Path) -> None:
        self._progress(Stage.CHECK)
        request = self._request.check_request(self._source)
        # the stages of the comparison are details of this one
        report = parity.run(out, request, lambda message: self._progress(str(message)))
        print(json.dumps(report.to_json()), flush=True)
        report.raise_failure()
        self._emit(Checked(report.passed, report.summary, bool(self._doubts)))

    def _progress(self, message: str) -> None:
        if isinstance(message, Stage):
            self.stage = message
        self._emit(StageBegun(self.stage, str(message)))
        print(f"{time.strftime('%H:%M:%S')} {self.stage}: {printable(str(message))}", flush=True)

    def _with_original_path(self, failure: Failure) -> Failure:
        """Name the user's file instead of a downloaded copy of it."""
        copy, original = str(self._source), self._task.source
        where = failure.where and failure.where.replace(copy, original)
        return replace(failure, what=failure.what.replace(copy, original), where=where)


def _synchronize(bundle: Bundle) -> None:
    """Wait until a bundle is on the disk."""
    manifest = manifest_path(bundle.path)
    files = [manifest, *(manifest.parent / file.file for file in bundle.manifest.files)]
    synchronize(*files, *dict.fromkeys(file.parent for file in files), manifest.parent.parent)


def main(connection: socket.socket) -> None:
    """Perform tasks until the connection is closed (see `passes.isolation.process.Child`)."""
    with contextlib.suppress(EOFError):
        while True:
            message, _ = messages.receive(connection)
            task = msgspec.convert(message, Task)
            with _logging_to(Path(task.log)):
                perform(task, lambda event: messages.send(connection, msgspec.to_builtins(event), {}))


@functools.cache
def _load_passes(file: str) -> None:
    """Load a file with passes of the user; once, since they register themselves."""
    passes.load_file(Path(file))


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Redirect standard output and error to a file, or discard them if it cannot be written."""
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
