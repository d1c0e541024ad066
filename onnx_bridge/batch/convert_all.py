"""Convert many models into one folder, in parallel; interrupted at any point, the same command resumes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from onnx_bridge.batch.engines.base import Engine
from onnx_bridge.batch.engines.local import Pool
from onnx_bridge.batch.jobs import gather
from onnx_bridge.batch.outcome import Observer, Outcome
from onnx_bridge.batch.output import output_at
from onnx_bridge.batch.run_history import RunBegun, RunHistory
from onnx_bridge.batch.scheduler import Scheduler
from onnx_bridge.core.files.locations import RemotePath, parse_location
from onnx_bridge.requests.batch import BatchRequest

if TYPE_CHECKING:
    from onnx_bridge.requests.keywords import BatchOptions


def convert_all(
    sources: Sequence[str | os.PathLike[str] | RemotePath],
    out: str | os.PathLike[str] | RemotePath,
    *,
    engine: Engine | None = None,
    observer: Observer | None = None,
    **options: Unpack[BatchOptions],
) -> Outcome:
    """Convert many models, each into a folder of its own under ``out``.

    Results of earlier runs are kept, unless an input of them has changed (`onnx_bridge.conversion.keys`). A job that
    fails does not stop the others. Only one program at a time may write to ``out``; this is checked for a local folder,
    and for a remote one on the same machine.

    Args:
        sources: files, folders, globs, lists, job files (`onnx_bridge.batch.jobs`); paths, or URLs as strings.
        out: a folder: a path, or a URL as a string; logs and the journal are in ``.batch`` there.
        engine: where jobs run; default: processes on this machine (`onnx_bridge.batch.engines.local.Pool`).
        observer: receives the progress.
        options: the fields of `onnx_bridge.requests.batch.BatchRequest`, among them those of `onnx_bridge.convert` for
            every job; a job file may override these.

    Raises:
        InputError: a source is invalid, another program writes to ``out``, or it cannot be written.
        RuntimeNotFound: there is no MIGraphX, or none for a target.
        Unreachable: a URL or a cluster does not respond.
    """
    places = tuple(parse_location(source) for source in sources)
    return run(replace(BatchRequest.of(options), sources=places, out=parse_location(out)), engine, observer)


def run(request: BatchRequest, engine: Engine | None = None, observer: Observer | None = None) -> Outcome:
    """Convert many models as a request says; errors are those of `convert_all`."""
    started, engine = time.monotonic(), engine or Pool(request.jobs, request.job.conversion.runtime)
    with contextlib.ExitStack() as stack:
        stack.callback(engine.close)
        output = output_at(request.out)
        records = output.records()
        jobs = gather(request.sources, output.location, request.job, RunHistory(records).names())
        machines = {target: engine.machine(target) for target in {job.request.conversion.target for job in jobs}}
        journal = None if request.dry_run else stack.enter_context(output.locked())
        earlier = records if journal is None else journal.records
        history = RunHistory(tuple(earlier), journal, resume=request.resume, retry=request.retry)
        history.add(RunBegun(len(jobs), os.getpid()))
        scheduler = Scheduler(request, output, engine, machines, history, journal, observer or Observer())
        results = scheduler.run(jobs)
        notes = (*engine.notes, *scheduler.notes)
    return Outcome(output.location, tuple(results), time.monotonic() - started, notes)
