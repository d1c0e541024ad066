"""The scheduler of a batch: it decides what each job needs, gives jobs to the engine, and records their results.

Bundles are the ground truth: each states the content key that it was made for, and is published as a whole. The journal
records what they do not: failures, comparisons, attempts. So an interrupted batch resumes with the same command: intact
bundles with the right key are kept, failures that depend on the model are reported again, and the rest is done.
"""

from __future__ import annotations

import bisect
import contextlib
import enum
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onnx_bridge.batch.engines.base import Engine
from onnx_bridge.batch.events import Checked, Converted, Event, Failed, Finished, StageBegun, Task
from onnx_bridge.batch.failure import Failure
from onnx_bridge.batch.jobs import Job
from onnx_bridge.batch.journal import Journal
from onnx_bridge.batch.model_info import ModelInfo, read_model_info
from onnx_bridge.batch.outcome import Observer, Result, Status
from onnx_bridge.batch.output import Output
from onnx_bridge.batch.run_history import (
    AttemptBegun,
    AttemptFailed,
    BundleChecked,
    BundleDone,
    JobFailed,
    Limits,
    ModelSeen,
    RunEnded,
    RunHistory,
)
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.proof import BundleProof
from onnx_bridge.conversion.keys import check_key, cleaning_key, conversion_key
from onnx_bridge.core.errors import BridgeError, nearest
from onnx_bridge.core.files.locations import Location, RemotePath
from onnx_bridge.core.progress import Stage
from onnx_bridge.migraphx.machine import Machine
from onnx_bridge.requests.batch import BatchRequest, JobRequest
from passes.core.text import counted

_ATTEMPTS = 3
"""The number of attempts at a job whose failures may be transient."""

Machines = Mapping[str, tuple[Machine, str]]
"""By target: the machine that its jobs run on, and the resolved target."""


class State(enum.Enum):
    """The state of a job; a job begins with the first, and ends with the last."""

    READING = "its model is read"
    WAITING = "another job makes the same bundle"
    READY = "it can be given to the engine"
    RUNNING = "the engine has it"
    ENDED = "it has a result"


_NEXT = {
    State.READING: {State.WAITING, State.READY, State.ENDED},
    State.WAITING: {State.WAITING, State.READY, State.ENDED},
    State.READY: {State.RUNNING},
    State.RUNNING: {State.READY, State.ENDED},
    State.ENDED: set[State](),
}
"""The states that may follow a state."""


@dataclass(eq=False)
class _JobState:
    """A job on its way.

    Attributes:
        state: changed by `enter` alone.
        check_key: the key of the comparison; None without one.
        convert: whether it must be converted, not just compared.
        staging: the folder of the current attempt's bundle for `Output.publish`; None if it writes to its location.
        started: when the current attempt began.
        status: the status of its result if it succeeds.
        result: its result, once it has ended.
    """

    job: Job
    request: JobRequest
    state: State = State.READING
    model: ModelInfo = field(default_factory=lambda: ModelInfo(None))
    key: str = ""
    check_key: str | None = None
    convert: bool = True
    attempts: int = 0
    staging: Location | None = None
    started: float = 0.0
    notes: tuple[str, ...] = ()
    proof: BundleProof | None = None
    chosen: dict[str, dict[str, int]] = field(default_factory=dict)
    status: Status = "converted"
    result: Result | None = None

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
        """The limits that can make it fail without being a part of its keys."""
        conversion = self.request.conversion
        return {"timeout": conversion.timeout, "memory": conversion.memory, "prove": conversion.prove}

    def enter(self, state: State) -> None:
        assert state in _NEXT[self.state], f"{self}: {state} after {self.state}"
        self.state = state

    def keep(self, manifest: Manifest, status: Status) -> None:
        """Take an existing bundle for the conversion."""
        self.convert, self.status, self.notes, self.proof = False, status, tuple(manifest.notes), manifest.proof
        self.chosen = manifest.chosen


class _ModelRead(Event, frozen=True, tag="model"):
    """The model of a job was read, or could not be."""

    info: Any


class Scheduler:
    """Runs the jobs of a batch; everything but `_read_models` and `_publish` happens in the thread of `run`."""

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
        self._passes = tuple(str(file.absolute()) for file in request.passes)
        self._jobs: list[_JobState] = []
        self._left = 0  # jobs that have not ended
        self._ready: list[_JobState] = []  # by predicted memory, ascending
        self._sizes: list[int] = []  # that memory
        self._owners: dict[str, _JobState] = {}  # by key: the first job that makes it
        self._followers: dict[str, list[_JobState]] = {}  # by key: jobs that wait for its owner
        self.notes: list[str] = []
        if journal is not None and journal.damaged:
            self.notes.append(f"ignored {counted(journal.damaged, 'line')} of the journal, unreadable")

    def run(self, jobs: Sequence[Job]) -> list[Result]:
        """Do all jobs, and return their results in the same order."""
        self._jobs = [_JobState(job, job.request) for job in jobs]
        self._left = len(jobs)
        self._observer.begin(len(jobs))
        waiting = iter([(job, self._history.model(str(job.job.source))) for job in self._jobs])
        with self._temporary_folder():
            try:
                for _ in range(max(2, len(os.sched_getaffinity(0)))):
                    threading.Thread(target=self._read_models, args=(waiting,), daemon=True).start()
                while self._left:
                    self._handle(*self._engine.wait())
                    self._submit_ready()
                results = [job.result for job in self._jobs if job.result is not None]
                self._note_unknown_names()
                self._history.add(RunEnded(sum(result.failed for result in results), len(results)))
                return results
            finally:
                for _ in waiting:  # the threads need not read the rest
                    pass
                self._engine.close()
                for job in self._jobs:
                    if job.state is State.RUNNING:
                        self._output.clean_up(job.name)

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
        for job, before in waiting:  # threads may share the iterator of a list
            info: ModelInfo | Exception
            try:
                info = read_model_info(job.job.source, before, has_encoder=bool(job.request.conversion.decoder))
            except Exception as error:  # whatever it is, it fails this job only
                info = error
            self._engine.post(job, _ModelRead(info))

    def _publish(self, job: _JobState) -> None:
        """Publish a staged bundle before its event is handled; in a thread of the engine."""
        if job.staging is not None:
            self._output.publish(job.name, job.staging, job.job.source)

    def _handle(self, job: _JobState, event: Event) -> None:
        if job.state is State.ENDED:  # for example with its comparison
            return
        match event:
            case _ModelRead(info):
                self._on_model(job, info)
            case StageBegun(stage, detail):
                self._observer.stage(job.name, stage, detail)
            case Converted():
                self._on_converted(job, event)
            case Checked(passed, summary, in_doubt):
                check = BundleChecked(job.name, "" if in_doubt else job.check_key or "", passed, summary)
                self._history.add(check)
                job.status = "checked" if job.status == "kept" else job.status
                self._succeed(job, check)
            case Failed(failure):
                self._on_failed(job, failure)
            case Finished():
                self._succeed(job)

    def _on_model(self, job: _JobState, info: ModelInfo | Exception) -> None:
        """Compute the keys of a job, and decide what to do."""
        job.started = time.monotonic()
        if isinstance(info, Exception):
            self._fail(job, Failure.of(info, Stage.LOAD))
            return
        job.model = info
        job.request = job.job.request.fitting(info.symbols, info.inputs, job.job.own)
        try:
            if info.digest is None:
                assert info.problem is not None
                raise info.problem
            source, model = str(job.job.source), info.to_json()
            if not self._history.has_seen(job.name, source, model):
                self._history.add(ModelSeen(job.name, source, model), durable=False)
            job.key = self._key(job)
            job.check_key = self._check_key(job)
        except (BridgeError, OSError) as error:
            self._fail(job, Failure.of(error, Stage.LOAD).as_transient())
            return
        if info.problem is not None:
            skipped = self._history.failure(job.key, job.limits) is not None
            self._fail(job, Failure.of(info.problem, Stage.LOAD), skipped=skipped)
        else:
            self._decide(job)

    def _decide(self, job: _JobState) -> None:
        """Decide what a job with a valid model needs: nothing, another job with the same key, or the engine."""
        owner = self._owners.setdefault(job.key, job)
        if owner is not job and owner.state is not State.ENDED:
            job.enter(State.WAITING)
            self._followers.setdefault(job.key, []).append(job)
            return
        self._owners[job.key] = job
        self._take_existing_bundle(job)
        if not job.convert and job.check_key is None:
            self._succeed(job)
        elif not job.convert and (check := self._history.check(job.check_key)) is not None:
            self._succeed(job, check)
        elif (failure := self._history.failure(job.next_key, job.limits)) is not None:
            self._fail(job, failure, skipped=True)
        elif self._journal is None:
            self._end_dry_run(job)
        else:
            self._add_ready(job)

    def _take_existing_bundle(self, job: _JobState) -> None:
        """Keep the bundle under the name of a job, or copy that of another name, if one is what the job would make."""
        names = self._history.bundles(job.key)
        if self._request.resume and (manifest := self._intact_manifest(job, job.name)):
            job.keep(manifest, "kept")
            if job.name not in names:
                self._history.add(BundleDone(job.name, job.key, "found"))
            return
        # a model for ONNX Runtime is named in programs and in what opens them, so it is not copied to another name
        for name in () if job.request.conversion.application else names:
            if name == job.name or (manifest := self._intact_manifest(job, name)) is None:
                continue
            with contextlib.suppress(BridgeError):
                if self._journal is not None:
                    manifest = self._output.copy_bundle(name, job.name, job.job.source)
                    self._history.add(BundleDone(job.name, job.key, "reused"))
                job.keep(manifest, "reused")
                return

    def _intact_manifest(self, job: _JobState, name: str) -> Manifest | None:
        """Return the manifest of the bundle of that name, if it is what the job would make."""
        return self._output.intact_manifest(name, job.key, job.request.conversion.prove, self._request.verify)

    def _key(self, job: _JobState) -> str:
        request = job.request.conversion
        machine, target = self._machines[request.target]
        cleaned = cleaning_key(job.model.whole or job.model.digest, request, machine)
        key = conversion_key(cleaned, request, machine, target=target)
        assert key is not None
        return key

    def _check_key(self, job: _JobState) -> str | None:
        if not job.request.check:
            return None
        parity = job.request.parity
        values = {name: getattr(parity, name) for name in ("seed", "samples", "rtol", "atol", "tolerance")}
        return check_key(job.key, **values, data=job.request.inputs)

    def _add_ready(self, job: _JobState) -> None:
        job.enter(State.READY)
        index = bisect.bisect(self._sizes, job.model.memory)
        self._ready.insert(index, job)
        self._sizes.insert(index, job.model.memory)

    def _submit_ready(self) -> None:
        """Submit the ready jobs that the engine accepts."""
        while (index := self._engine.choose(self._sizes)) is not None:
            del self._sizes[index]
            self._submit(self._ready.pop(index))

    def _submit(self, job: _JobState) -> None:
        job.enter(State.RUNNING)
        job.attempts += 1
        job.started = time.monotonic()
        target = self._machines[job.request.conversion.target][1]
        request = replace(job.request, conversion=replace(job.request.conversion, target=target)).to_json()
        self._history.add(AttemptBegun(job.name, job.key, job.attempts, job.convert, request))
        bundle = self._output.bundle(job.name)
        staged = self._engine.remote or isinstance(job.job.source, RemotePath) or isinstance(bundle, RemotePath)
        job.staging = self._output.new_staging_folder().absolute() if staged else None
        task = Task(
            source=str(job.job.source),
            bundle=str(bundle.absolute()),
            staging=None if job.staging is None else str(job.staging),
            request=request,
            convert=job.convert,
            check=job.check_key is not None,
            reuse=self._request.resume,
            log=str(self._log(job).absolute()),
            passes=self._passes,
        )
        self._engine.submit(job, task, job.model.memory)

    def _on_converted(self, job: _JobState, event: Converted) -> None:
        job.convert, job.notes, job.proof, job.chosen = False, event.notes, event.proof, event.chosen
        if (before := job.key) != event.key:  # the file has changed since it was read
            job.key = event.key
            job.check_key = self._check_key(job)
            self._owners.pop(before, None)
            for follower in self._followers.pop(before, []):
                self._decide(follower)
        self._history.add(BundleDone(job.name, job.key, "converted", event.seconds, event.timings))

    def _on_failed(self, job: _JobState, failure: Failure) -> None:
        if failure.retry and job.attempts < _ATTEMPTS:
            self._history.add(AttemptFailed(job.name, job.key, failure))
            self._add_ready(job)
        else:
            self._fail(job, failure)

    def _fail(self, job: _JobState, failure: Failure, *, skipped: bool = False) -> None:
        """End a job, and those that wait for it, with a failure; ``skipped`` if it is that of an earlier run."""
        if self._journal is not None and not skipped:
            self._history.add(JobFailed(job.name, job.next_key, failure, job.limits))
        seconds, log = time.monotonic() - job.started, self._existing_log(job)
        status: Status = "skipped" if skipped else "failed"
        self._end(job, Result(job.name, job.job.source, status, seconds, failure, log))
        for follower in self._followers.pop(job.key, []):
            follower.started = time.monotonic()
            self._fail(follower, failure, skipped=skipped)

    def _succeed(self, job: _JobState, check: BundleChecked | None = None) -> None:
        """End a job that has a bundle, with the result of its comparison if there is one."""
        failure, summary, status = None, None, job.status
        if check is not None:
            summary = check.summary
            if not check.passed:
                failure, status = Failure("Difference", summary, Stage.CHECK, exit_code=1), "failed"
        seconds, log = time.monotonic() - job.started, self._existing_log(job)
        source, notes = job.job.source, job.notes
        sizes = {name: size for dims in job.chosen.values() for name, size in dims.items()}
        self._end(job, Result(job.name, source, status, seconds, failure, log, notes, summary, job.proof, sizes))
        for follower in self._followers.pop(job.key, []):
            follower.started = time.monotonic()
            self._decide(follower)

    def _end_dry_run(self, job: _JobState) -> None:
        steps = [*(["convert"] if job.convert else []), *(["check"] if job.check_key else [])]
        note = f"{' and '.join(steps)} ({job.model.bytes / 2**20:.3g} MiB)"
        self._end(job, Result(job.name, job.job.source, "planned", notes=(note,)))
        for follower in self._followers.pop(job.key, []):
            note = f"same content as {job.name}"
            self._end(follower, Result(follower.name, follower.job.source, "planned", notes=(note,)))

    def _end(self, job: _JobState, result: Result) -> None:
        job.enter(State.ENDED)
        job.result = result
        self._left -= 1
        self._observer.ended(result)

    def _log(self, job: _JobState) -> Location:
        return self._output.log(job.name, self._engine.remote)

    def _existing_log(self, job: _JobState) -> Location | None:
        log = self._log(job)
        exists = job.attempts > 0 if isinstance(log, RemotePath) else log.exists()
        return log if exists else None

    def _note_unknown_names(self) -> None:
        """Note the names of dimensions and inputs, given for all models, that no model has."""
        models = [job.model for job in self._jobs if job.model.problem is None]
        symbols = {name for model in models for name in model.symbols}
        inputs = {name for model in models for name in model.inputs}
        for kind, known in (("dims", symbols), ("shapes", inputs), ("freeze", inputs)):
            given = {name for job in self._jobs for name in getattr(job.job.request.conversion, kind)}
            for name in sorted(given - known) if models else ():
                hint = nearest(name, known)
                self.notes.append(f"{kind}: no model has {name!r}{f' ({hint})' if hint else ''}")
