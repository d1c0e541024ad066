"""The scheduler of a batch: it decides what each job needs, gives jobs to the engine, and records their results.

Bundles are the ground truth: each states the content key that it was made for, and is published as a whole. The journal
records what they do not: failures, comparisons, attempts. So an interrupted batch resumes with the same command: intact
bundles with the right key are kept, failures that depend on the model are reported again, and the rest is done.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnx_bridge.batch.engines.base import LAST_EVENTS, Engine, Event
from onnx_bridge.batch.failure import Failure
from onnx_bridge.batch.jobs import Job
from onnx_bridge.batch.journal import Journal
from onnx_bridge.batch.model_info import ModelInfo, read_model_info
from onnx_bridge.batch.outcome import Result, Status
from onnx_bridge.batch.output import Output
from onnx_bridge.batch.progress import Observer
from onnx_bridge.batch.run_history import Limits, RunHistory
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.proof import BundleProof
from onnx_bridge.conversion.decoders.encoder_decoder.files import digest_with_encoder
from onnx_bridge.conversion.keys import check_key, cleaning_key, conversion_key
from onnx_bridge.core.errors import BridgeError, InputError, nearest
from onnx_bridge.core.files.locations import Location, RemotePath
from onnx_bridge.core.progress import Stage
from onnx_bridge.core.schema import read_as
from onnx_bridge.migraphx.machine import Machine
from onnx_bridge.requests.batch import BatchRequest, JobRequest

_ATTEMPTS = 3
"""How often a job is tried whose failures may be transient."""

Machines = Mapping[str, tuple[Machine, str]]
"""By target: the machine that its jobs run on, and the resolved target."""


@dataclass(eq=False)
class _JobState:
    """A job in progress.

    Attributes:
        job: what is to be done.
        request: that of the job, fitted to the model.
        model: the model.
        key: of the conversion.
        check_key: of the comparison; None without one.
        convert: whether it must be converted, not just compared.
        attempts: how often it was tried.
        staging: where the current attempt writes the bundle for `Output.publish`; None if it writes to its location.
        started: when the current attempt began.
        notes: of the bundle.
        proof: of the bundle.
        status: what it will be if the job succeeds.
    """

    job: Job
    request: JobRequest
    model: ModelInfo = field(default_factory=lambda: ModelInfo(None))
    key: str = ""
    check_key: str | None = None
    convert: bool = True
    attempts: int = 0
    staging: Location | None = None
    started: float = 0.0
    notes: tuple[str, ...] = ()
    proof: BundleProof | None = None
    status: Status = "converted"

    def __str__(self) -> str:
        return self.job.name

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def next_key(self) -> str | None:
        """The key of what is still to be done."""
        return self.key if self.convert else self.check_key

    @property
    def limits(self) -> Limits:
        """What can make it fail without being a part of its keys."""
        conversion = self.request.conversion
        return {"timeout": conversion.timeout, "memory": conversion.memory, "prove": conversion.prove}


class Scheduler:
    """Runs the jobs of a batch; everything but `_read_models` and `_publish` happens in the thread of `run`.

    Attributes:
        notes: sentences for the user.
    """

    def __init__(
        self,
        request: BatchRequest,
        output: Output,
        engine: Engine,
        machines: Machines,
        history: RunHistory,
        journal: Journal | None,
        observer: Observer,
    ) -> None:
        self._request, self._output, self._engine, self._machines = request, output, engine, machines
        self._history, self._journal, self._observer = history, journal, observer
        self._passes = [str(each.absolute()) for each in request.passes]
        self._jobs: list[_JobState] = []
        self._ready: list[_JobState] = []  # by predicted memory, ascending
        self._sizes: list[int] = []  # that memory
        self._running: set[_JobState] = set()
        self._owners: dict[str, _JobState] = {}  # by key: the first job that makes it
        self._followers: dict[str, list[_JobState]] = {}  # by key: jobs that wait for its owner
        self._results: dict[str, Result] = {}
        self.notes: list[str] = []
        if journal is not None and journal.damaged:
            self.notes.append(f"{journal.damaged} lines of the journal are unreadable and were ignored")

    def run(self, jobs: Sequence[Job]) -> list[Result]:
        """Do all jobs; the results are in their order."""
        self._jobs = [_JobState(job, job.request) for job in jobs]
        self._observer.begin(len(self._jobs))
        waiting = iter([(each, self._history.model(str(each.job.source))) for each in self._jobs])
        with self._temporary_folder():
            try:
                for _ in range(max(2, len(os.sched_getaffinity(0)))):
                    threading.Thread(target=self._read_models, args=(waiting,), daemon=True).start()
                while len(self._results) < len(self._jobs):
                    self._handle(*self._engine.wait())
                    self._submit_ready()
                self._note_unknown_names()
                if self._journal is not None:
                    failed = sum(each.failed for each in self._results.values())
                    self._journal.add("end", failed=failed, jobs=len(self._results))
            finally:
                for _ in waiting:  # the threads need not read the rest
                    pass
                self._engine.close()
                for each in self._running:
                    self._output.clean_up(each.name)
        return [self._results[each.name] for each in self._jobs]

    @contextlib.contextmanager
    def _temporary_folder(self) -> Iterator[None]:
        """Open the engine, with a folder for the temporary files of its processes."""
        if self._journal is None:
            yield
            return
        folder = self._journal.folder / "tmp"
        shutil.rmtree(folder, ignore_errors=True)  # of killed programs
        folder.mkdir(parents=True)
        self._engine.open(self._journal, self._publish)
        try:
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _read_models(self, waiting: Iterator[tuple[_JobState, Mapping[str, Any] | None]]) -> None:
        for state, before in waiting:  # threads may share the iterator of a list
            try:
                found: ModelInfo | Exception = _with_encoder(state.job, read_model_info(state.job.source, before))
            except Exception as error:  # whatever it is, it fails this job only
                found = error
            self._engine.post(state, {"event": "model", "found": found})

    def _publish(self, state: _JobState, event: Event) -> None:
        """Publish a staged bundle before its event is handled; in a thread of the engine."""
        if event["event"] == "converted" and state.staging is not None:
            self._output.publish(state.name, state.staging, state.job.source)

    def _handle(self, state: _JobState, event: Event) -> None:
        if event["event"] in LAST_EVENTS:
            self._running.discard(state)
        match event["event"]:
            case "model":
                self._on_model(state, event["found"])
            case _ if state.name in self._results:
                pass  # it has ended, for example with its comparison
            case "stage":
                self._observer.stage(state.name, Stage(event["stage"]), event["detail"])
            case "converted":
                self._on_converted(state, event)
            case "checked":
                self._on_checked(state, event)
            case "failed":
                self._on_failed(state, Failure.from_json(event["error"]))
            case "finished":
                self._succeed(state)

    def _on_model(self, state: _JobState, found: ModelInfo | Exception) -> None:
        """Compute the keys of a job, and plan it."""
        state.started = time.monotonic()
        if isinstance(found, Exception):
            self._fail(state, Failure.of(found, Stage.LOAD))
            return
        state.model = found
        state.request = state.job.request.fitting(found.symbols, found.inputs, state.job.own)
        if found.digest is None:
            assert found.problem is not None
            self._fail(state, Failure.of(found.problem, Stage.LOAD).as_transient())
            return
        source, info = str(state.job.source), found.to_json()
        known = self._history.model(source) == info and self._history.names.get(source) == state.name
        if self._journal is not None and not known:
            self._journal.add("seen", durable=False, job=state.name, source=source, model=info)
        try:
            state.key = self._key(state)
            state.check_key = self._check_key(state)
        except (BridgeError, OSError) as error:
            self._fail(state, Failure.of(error, Stage.LOAD).as_transient())
            return
        if found.problem is not None:
            skipped = self._history.failure(state.key, state.limits) is not None
            self._fail(state, Failure.of(found.problem, Stage.LOAD), skipped=skipped)
        else:
            self._follow_or_plan(state)

    def _follow_or_plan(self, state: _JobState) -> None:
        """Wait for the job that makes the same, or plan this one."""
        if (owner := self._owners.get(state.key)) and owner.name not in self._results:
            self._followers.setdefault(state.key, []).append(state)
        else:
            self._owners[state.key] = state
            self._plan(state)

    def _plan(self, state: _JobState) -> None:
        """Keep or copy an existing bundle, if there is one, and plan what is left."""
        bundles = self._history.bundles(state.key)
        if self._request.resume and (manifest := self._intact_manifest(state, state.name)):
            state.convert, state.status, state.notes, state.proof = False, "kept", tuple(manifest.notes), manifest.proof
            if state.name not in bundles:
                self._record_done(state, "found")
        elif self._copy_bundle(state, bundles):
            state.convert, state.status = False, "reused"
        if not state.convert and state.check_key is None:
            self._succeed(state)
        elif not state.convert and (check := self._history.check(state.check_key)) is not None:
            self._succeed(state, check)
        elif (failure := self._history.failure(state.next_key, state.limits)) is not None:
            self._fail(state, failure, skipped=True)
        elif self._journal is None:
            self._end_dry_run(state)
        else:
            self._add_ready(state)

    def _intact_manifest(self, state: _JobState, name: str) -> Manifest | None:
        """The manifest of the bundle of that name, if it is what the job would make."""
        prove, whole = state.request.conversion.prove, self._request.verify
        return self._output.intact_manifest(name, state.key, prove, whole)

    def _end_dry_run(self, state: _JobState) -> None:
        steps = [*(["convert"] if state.convert else []), *(["check"] if state.check_key else [])]
        note = f"{' and '.join(steps)} ({state.model.bytes / 2**20:.3g} MiB)"
        self._end(state, Result(state.name, state.job.source, "planned", notes=(note,)))
        for other in self._followers.pop(state.key, []):
            note = f"same content as {state.name}"
            self._end(other, Result(other.name, other.job.source, "planned", notes=(note,)))

    def _add_ready(self, state: _JobState) -> None:
        index = bisect.bisect(self._sizes, state.model.memory)
        self._ready.insert(index, state)
        self._sizes.insert(index, state.model.memory)

    def _key(self, state: _JobState) -> str:
        request = state.request.conversion
        machine, target = self._machines[request.target]
        cleaned = cleaning_key(state.model.whole or state.model.digest, request, machine)
        key = conversion_key(cleaned, request, machine, target=target)
        assert key is not None
        return key

    def _check_key(self, state: _JobState) -> str | None:
        if not state.request.check:
            return None
        parity = state.request.parity
        values = {name: getattr(parity, name) for name in ("seed", "samples", "rtol", "atol", "tolerance")}
        return check_key(state.key, **values, data=state.request.inputs)

    def _copy_bundle(self, state: _JobState, names: Sequence[str]) -> bool:
        """Copy the bundle of another job that has the same content."""
        for name in names:
            if name == state.name or self._intact_manifest(state, name) is None:
                continue
            if self._journal is None:
                return True
            with contextlib.suppress(BridgeError):
                manifest = self._output.copy_bundle(name, state.name, state.job.source)
                state.notes, state.proof = tuple(manifest.notes), manifest.proof
                self._record_done(state, "reused")
                return True
        return False

    def _submit_ready(self) -> None:
        """Submit the ready jobs that the engine accepts."""
        while (index := self._engine.choose(self._sizes)) is not None:
            del self._sizes[index]
            self._submit(self._ready.pop(index))

    def _submit(self, state: _JobState) -> None:
        assert self._journal is not None
        state.attempts += 1
        state.started = time.monotonic()
        target = self._machines[state.request.conversion.target][1]
        request = replace(state.request, conversion=replace(state.request.conversion, target=target)).to_json()
        attempt: dict[str, Any] = {"key": state.key, "attempt": state.attempts, "convert": state.convert}
        self._journal.add("start", job=state.name, **attempt, request=request)
        bundle = self._output.bundle(state.name)
        staged = self._engine.remote or isinstance(state.job.source, RemotePath) or isinstance(bundle, RemotePath)
        state.staging = self._output.new_staging_folder().absolute() if staged else None
        task = {
            "source": str(state.job.source),
            "bundle": str(bundle.absolute()),
            "staging": None if state.staging is None else str(state.staging),
            "request": request,
            "convert": state.convert,
            "check": state.check_key is not None,
            "reuse": self._request.resume,
            "log": str(self._log(state).absolute()),
            "passes": self._passes,
        }
        self._running.add(state)
        self._engine.submit(state, task, state.model.memory)

    def _on_converted(self, state: _JobState, event: Mapping[str, Any]) -> None:
        state.notes, state.proof = tuple(event["notes"]), read_as(BundleProof, event["proof"])
        if (before := state.key) != event["key"]:  # the file has changed since it was read
            state.key = event["key"]
            state.check_key = self._check_key(state)
            self._owners.pop(before, None)
            for other in self._followers.pop(before, []):
                self._follow_or_plan(other)
        state.convert = False
        self._record_done(state, "converted", seconds=event["seconds"], timings=event["timings"])

    def _record_done(self, state: _JobState, how: str, **more: Any) -> None:
        self._history.add_bundle(state.key, state.name)
        if self._journal is not None:
            self._journal.add("done", job=state.name, key=state.key, how=how, **more)

    def _on_checked(self, state: _JobState, event: Mapping[str, Any]) -> None:
        assert self._journal is not None
        if state.status == "kept":
            state.status = "checked"
        record = {"passed": event["passed"], "summary": event["summary"]}
        self._journal.add("checked", job=state.name, key=state.check_key, **record)
        self._succeed(state, record)

    def _on_failed(self, state: _JobState, failure: Failure) -> None:
        if failure.retry and state.attempts < _ATTEMPTS:
            assert self._journal is not None
            self._journal.add("again", job=state.name, key=state.key, error=failure.to_json())
            self._add_ready(state)
        else:
            self._fail(state, failure)

    def _fail(self, state: _JobState, failure: Failure, *, skipped: bool = False) -> None:
        """End a job with a failure; ``skipped`` if it is that of an earlier run."""
        if self._journal is not None and not skipped:
            error, limits = failure.to_json(), state.limits
            self._journal.add("failed", job=state.name, key=state.next_key, error=error, limits=limits)
            self._history.add_failure(state.next_key, failure, state.limits)
        seconds, log = time.monotonic() - state.started, self._existing_log(state)
        status: Status = "skipped" if skipped else "failed"
        self._end(state, Result(state.name, state.job.source, status, seconds, failure, log))
        for other in self._followers.pop(state.key, []):
            other.started = time.monotonic()
            self._fail(other, failure, skipped=skipped)

    def _succeed(self, state: _JobState, check: Mapping[str, Any] | None = None) -> None:
        """End a job that has a bundle, with the result of its comparison if there is one."""
        failure, summary = None, None
        if check is not None:
            summary = str(check["summary"])
            if not check["passed"]:
                failure = Failure("Difference", summary, Stage.CHECK, exit_code=1)
        status: Status = "failed" if failure else state.status
        seconds, log = time.monotonic() - state.started, self._existing_log(state)
        source, notes = state.job.source, state.notes
        self._end(state, Result(state.name, source, status, seconds, failure, log, notes, summary, state.proof))
        for other in self._followers.pop(state.key, []):
            other.started = time.monotonic()
            self._plan(other)

    def _end(self, state: _JobState, result: Result) -> None:
        self._results[state.name] = result
        self._observer.ended(result)

    def _log(self, state: _JobState) -> Location:
        return self._output.log(state.name, self._engine.remote)

    def _existing_log(self, state: _JobState) -> Location | None:
        log = self._log(state)
        exists = state.attempts > 0 if isinstance(log, RemotePath) else log.exists()
        return log if exists else None

    def _note_unknown_names(self) -> None:
        """Note the names of dimensions and inputs, given for all models, that no model has."""
        models = [each.model for each in self._jobs if each.model.problem is None]
        symbols = {name for each in models for name in each.symbols}
        inputs = {name for each in models for name in each.inputs}
        for kind, known in (("dims", symbols), ("shapes", inputs), ("freeze", inputs)):
            given = {name for each in self._jobs for name in getattr(each.job.request.conversion, kind)}
            for name in sorted(given - known) if models else ():
                hint = nearest(name, known)
                self.notes.append(f"{kind}: no model has {name!r}{f' ({hint})' if hint else ''}")


def _with_encoder(job: Job, found: ModelInfo) -> ModelInfo:
    """What is known of a model, with the digest of all its files where it is a decoder behind an encoder."""
    if not job.request.conversion.decoder or not isinstance(job.source, Path) or found.problem is not None:
        return found
    try:
        return replace(found, whole=digest_with_encoder(job.source))
    except InputError as error:
        return ModelInfo(None, problem=error)
