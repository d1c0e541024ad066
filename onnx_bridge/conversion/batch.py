"""Many models into one folder: jobs in parallel, nothing lost, nothing done twice.

The truth is in the bundles: each knows the content key that it was made for, and appears whole or not at all. The
journal is the account of it: what failed and why, what was compared, what was tried how often. A batch that was
interrupted anywhere, by whatever, goes on with the same command: what is whole under its key is kept, what failed for a
reason in the model itself is told again, and the rest is done.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_bridge.conversion import journal as journals
from onnx_bridge.conversion.convert import adopt
from onnx_bridge.conversion.examining import Examined, examine, whole
from onnx_bridge.conversion.jobs import Job, Settings, gather
from onnx_bridge.conversion.journal import STATE, Journal, Record
from onnx_bridge.conversion.keys import check_key, conversion_key
from onnx_bridge.conversion.memory import available
from onnx_bridge.conversion.outcome import Outcome, Result, Status
from onnx_bridge.conversion.past import Past
from onnx_bridge.conversion.performer import described
from onnx_bridge.conversion.pool import Performer
from onnx_bridge.conversion.stages import STAGES
from onnx_bridge.conversion.watching import Silent, Watcher
from onnx_bridge.errors import BridgeError, InputError, nearest
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.precision import Precision

_ATTEMPTS = 3
"""How often a job is tried that fails by chance, or ends its process."""
_SHARE = 0.9
"""Of the free memory, how much may be taken."""


def convert_all(
    sources: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    settings: Settings | None = None,
    *,
    jobs: int | None = None,
    resume: bool = True,
    retry: bool = False,
    dry_run: bool = False,
    passes: Sequence[Path] = (),
    watcher: Watcher | None = None,
) -> Outcome:
    """Convert many models, in parallel, each into a folder of its own under ``out``.

    What was done before is not done again, unless something that matters has changed (`onnx_bridge.conversion.keys`).
    A job that fails does not stop the others.

    Args:
        sources: files, folders, globs, lists, job files (`onnx_bridge.conversion.jobs`).
        out: the folder; logs and the journal are in ``.batch`` there.
        settings: of every job, where nothing nearer to the model says otherwise.
        jobs: how many at a time; default: by cores, and by the memory that they are foreseen to take.
        resume: whether to keep what was done before.
        retry: whether to try again what failed before for a reason in the model itself.
        dry_run: only say what would be done.
        passes: files with passes of your own.
        watcher: told what happens.

    Raises:
        InputError: a source is wrong, another program is working in ``out``, or it cannot be written.
        RuntimeNotFound: there is no MIGraphX, or not for a target.
    """
    started, out = time.monotonic(), Path(out)
    if out.exists() and not out.is_dir():
        raise InputError("this is a file already", where=str(out), hint="many models need a folder")
    paths = [Path(each) for each in sources]
    with contextlib.ExitStack() as stack:
        records, _, _ = journals.read(out / STATE)
        found = gather(paths, out, settings or Settings(), Past(records).names)
        targets = {each.settings.target for each in found}
        resolved = {target: runtimes.resolve_target(target, runtimes.find()) for target in targets}
        journal = None if dry_run else stack.enter_context(journals.held(out))
        past = Past(journal.records if journal else records, resume=resume, retry=retry)
        if journal is not None:
            journal.add("run", jobs=len(found), process=os.getpid())
        files = [str(each.absolute()) for each in passes]
        batch = _Batch(out, found, resolved, past, journal, watcher or Silent(), resume, files)
        results = batch.run(jobs or len(os.sched_getaffinity(0)))
    return Outcome(out, tuple(results), time.monotonic() - started, tuple(batch.notes))


@dataclass
class _Work:
    """A job on its way.

    Attributes:
        job: what is to be done.
        examined: its model.
        settings: the job's, as they fit the model.
        key: of the conversion.
        check: the key of the comparison; None where none is wanted.
        convert: whether it must be converted, not just compared.
        attempts: how often it was tried.
        stage: where it is.
        started: when the present attempt began.
        notes: of the bundle.
        how: how it came to have a bundle.
    """

    job: Job
    settings: Settings
    examined: Examined = field(default_factory=lambda: Examined(None))
    key: str = ""
    check: str | None = None
    convert: bool = True
    attempts: int = 0
    stage: str = STAGES[0]
    started: float = 0.0
    notes: tuple[str, ...] = ()
    how: Status = "converted"

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def left(self) -> str | None:
        """The key of what is left to do."""
        return self.key if self.convert else self.check

    @property
    def limits(self) -> dict[str, float | None]:
        """What may make it fail, without being a part of what it makes."""
        return {"timeout": self.settings.timeout, "memory": self.settings.memory}


class _Batch:
    """All of it, while it lasts. Everything happens in the thread of `run`; others only put events into the queue."""

    def __init__(
        self,
        out: Path,
        jobs: Sequence[Job],
        targets: Mapping[str, str],
        past: Past,
        journal: Journal | None,
        watcher: Watcher,
        resume: bool,
        passes: list[str],
    ) -> None:
        self._out, self._targets, self._past, self._journal = out, targets, past, journal
        self._watcher, self._resume, self._passes = watcher, resume, passes
        self._runtime = runtimes.find()
        self._works = [_Work(job, job.settings) for job in jobs]
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ready: list[_Work] = []
        self._performers: list[Performer] = []
        self._owners: dict[str, _Work] = {}
        self._followers: dict[str, list[_Work]] = {}
        self._results: dict[str, Result] = {}
        self._memory = available()
        self.notes: list[str] = []
        if journal is not None and journal.damaged:
            self.notes.append(f"{journal.damaged} lines of the journal could not be read and were passed over")

    def run(self, parallel: int) -> list[Result]:
        """Do all that is to be done; results are in the order of the jobs."""
        self._watcher.begin(len(self._works))
        temporary = self._out / STATE / "tmp"
        if self._journal is not None:
            shutil.rmtree(temporary, ignore_errors=True)  # of programs that were killed
            temporary.mkdir(parents=True)
        waiting = iter([(work, self._past.model(str(work.job.source))) for work in self._works])
        try:
            for _ in range(max(2, parallel)):
                threading.Thread(target=self._examine, args=(waiting,), daemon=True).start()
            while len(self._results) < len(self._works):
                self._handle(*self._events.get())
                self._start(parallel, temporary)
            self._look_back()
            if self._journal is not None:
                failed = sum(each.failed for each in self._results.values())
                self._journal.add("end", failed=failed, jobs=len(self._results))
        finally:
            for _ in waiting:  # nobody needs to look at these
                pass
            running = [each.task for each in self._performers if each.task is not None]
            for performer in self._performers:
                performer.close()
            for work in running:
                self._sweep(work)
            if self._journal is not None:
                shutil.rmtree(temporary, ignore_errors=True)
        return [self._results[each.name] for each in self._works]

    def _examine(self, waiting: Iterator[tuple[_Work, Mapping[str, Any] | None]]) -> None:
        for work, before in waiting:  # an iterator of a list, which threads may share
            try:
                found: Examined | Exception = examine(work.job.source, before)
            except Exception as error:  # whatever it is, it is this job's
                found = error
            self._events.put((None, {"event": "examined", "work": work, "found": found}))

    def _handle(self, performer: Performer | None, event: dict[str, Any]) -> None:
        if performer is None:
            self._on_examined(event["work"], event["found"])
            return
        work: _Work | None = performer.task
        match event["event"]:
            case "stage" if work is not None:
                work.stage = event["stage"]
                self._watcher.stage(work.name, work.stage, event["detail"])
            case "converted" if work is not None:
                self._on_converted(work, event)
            case "checked" if work is not None:
                self._on_checked(work, event)
            case "failed" if work is not None:
                performer.task = None
                self._on_failed(work, event["error"])
            case "finished":
                performer.task = None
                if work is not None and work.name not in self._results:
                    self._settle(work)
            case "ended":
                self._performers.remove(performer)
                performer.close()
                if work is not None and work.name not in self._results:
                    self._on_failed(work, _obituary(event["status"], work.stage))

    def _on_examined(self, work: _Work, found: Examined | Exception) -> None:
        """Decide what there is to do."""
        work.started = time.monotonic()
        if isinstance(found, Exception):
            self._fail(work, described(found, "load"))
            return
        work.examined = found
        work.settings = work.job.settings.fitting(found.symbols, found.inputs)
        if found.digest is None:
            assert found.problem is not None
            self._fail(work, {**described(found.problem, "load"), "chance": True})
            return
        source, model = str(work.job.source), found.to_json()
        known = self._past.model(source) == model and self._past.names.get(source) == work.name
        if self._journal is not None and not known:
            self._journal.add("seen", wait=False, job=work.name, source=source, model=model)
        try:
            work.key = self._key(work)
            work.check = self._check_key(work)
        except (BridgeError, OSError) as error:
            self._fail(work, {**described(error, "load"), "chance": True})
            return
        if found.problem is not None:
            told = self._past.failure(work.key, work.limits) is not None
            self._fail(work, described(found.problem, "load"), told=told)
        elif (owner := self._owners.get(work.key)) and owner.name not in self._results:  # the same, and under way
            self._followers.setdefault(work.key, []).append(work)
        else:
            self._owners[work.key] = work
            self._decide(work)

    def _decide(self, work: _Work) -> None:
        """Keep, take from elsewhere, tell, or do."""
        bundles = self._past.bundles(work.key)
        if self._resume and (manifest := whole(self._out / work.name, work.key)):
            work.convert, work.how, work.notes = False, "kept", tuple(manifest.notes)
            if work.name not in bundles:
                self._record_done(work, "found")
        elif self._reuse(work, bundles):
            work.convert, work.how = False, "reused"
        self._go_on(work)

    def _go_on(self, work: _Work) -> None:
        """What is left to do for a job after its bundle was looked for."""
        if not work.convert and work.check is None:
            self._settle(work)
        elif not work.convert and (before := self._past.check(work.check)) is not None:
            self._settle(work, before)
        elif (error := self._past.failure(work.left, work.limits)) is not None:
            self._fail(work, error, told=True)
        elif self._journal is None:
            self._end(work, Result(work.name, work.job.source, "planned", notes=(self._plan(work),)))
            for other in self._followers.pop(work.key, []):
                notes = (f"as {work.name}, which is the same",)
                self._end(other, Result(other.name, other.job.source, "planned", notes=notes))
        else:
            self._put(work)

    def _put(self, work: _Work) -> None:
        self._ready.append(work)
        self._ready.sort(key=lambda each: each.examined.memory)  # the largest is taken first

    def _plan(self, work: _Work) -> str:
        steps = [*(["convert"] if work.convert else []), *(["check"] if work.check else [])]
        return f"{' and '.join(steps)} ({work.examined.bytes / 2**20:.3g} MiB)"

    def _key(self, work: _Work) -> str:
        settings = work.settings
        key = conversion_key(
            work.examined.digest,
            pipeline=settings.pipeline,
            dims=settings.dims,
            inputs=settings.inputs,
            freeze=settings.freeze,
            host=settings.host,
            target=self._targets[settings.target],
            runtime=self._runtime,
            precision=Precision(settings.precision, settings.keep_fp32, settings.calibration).to_key(),
            options=settings.options,
            buckets=settings.buckets,
            pad=settings.pad if settings.buckets else {},
        )
        assert key is not None
        return key

    def _check_key(self, work: _Work) -> str | None:
        settings = work.settings
        if not settings.check:
            return None
        names = ("seed", "samples", "rtol", "atol", "tolerance", "data")
        return check_key(work.key, **{name: getattr(settings, name) for name in names})

    def _reuse(self, work: _Work, names: Sequence[str]) -> bool:
        """Take the bundle of another job that has the same content."""
        for name in names:
            manifest = None if name == work.name else whole(self._out / name, work.key)
            if manifest is None:
                continue
            if self._journal is None:
                return True
            with contextlib.suppress(BridgeError):
                work.notes = tuple(adopt(self._out / name, self._out / work.name, work.job.source).notes)
                self._record_done(work, "reused")
                return True
        return False

    def _start(self, parallel: int, temporary: Path) -> None:
        """Give out what is ready, the largest first, to as many processes as may be."""
        while self._ready:
            busy = [each.task for each in self._performers if each.task is not None]
            free = self._memory * _SHARE - sum(each.examined.memory for each in busy)
            fitting = [each for each in self._ready if each.examined.memory <= free]
            if len(busy) >= parallel or (busy and not fitting):
                return
            work = fitting[-1] if fitting else self._ready[-1]  # what is too large for the memory is tried alone
            self._ready.remove(work)
            idle = [each for each in self._performers if each.task is None]
            performer = idle[0] if idle else self._new_performer(temporary)
            self._give(performer, work)

    def _new_performer(self, temporary: Path) -> Performer:
        assert self._journal is not None
        output = self._journal.folder / "processes.log"
        performer = Performer(self._events, self._journal.lock, temporary.absolute(), output)
        self._performers.append(performer)
        return performer

    def _give(self, performer: Performer, work: _Work) -> None:
        assert self._journal is not None
        work.attempts += 1
        work.started, work.stage = time.monotonic(), STAGES[0]
        self._journal.add("start", job=work.name, key=work.key, attempt=work.attempts, convert=work.convert)
        task = {
            "source": str(work.job.source),
            "bundle": str((self._out / work.name).absolute()),
            "settings": work.settings.to_json(),
            "convert": work.convert,
            "check": work.check is not None,
            "log": str(self._log(work).absolute()),
            "passes": self._passes,
        }
        performer.give(work, task)

    def _on_converted(self, work: _Work, event: Mapping[str, Any]) -> None:
        work.notes = tuple(event["notes"])
        if event["key"] != work.key:  # the file was changed after it was examined
            work.key = event["key"]
            work.check = self._check_key(work)
        work.convert = False
        self._record_done(work, "converted", seconds=event["seconds"], timings=event["timings"])

    def _record_done(self, work: _Work, how: str, **more: Any) -> None:
        self._past.did(work.key, work.name)
        if self._journal is not None:
            self._journal.add("done", job=work.name, key=work.key, how=how, **more)

    def _on_checked(self, work: _Work, event: Mapping[str, Any]) -> None:
        assert self._journal is not None
        if work.how == "kept":
            work.how = "checked"
        record = {"passed": event["passed"], "summary": event["summary"]}
        self._journal.add("checked", job=work.name, key=work.check, **record)
        self._settle(work, record)

    def _on_failed(self, work: _Work, error: Record) -> None:
        if error["chance"] and work.attempts < _ATTEMPTS:
            assert self._journal is not None
            self._journal.add("again", job=work.name, key=work.key, error=error)
            self._put(work)
            return
        self._fail(work, {**error, "chance": error["chance"] and error["kind"] != "Crashed"})

    def _fail(self, work: _Work, error: Record, *, told: bool = False) -> None:
        error = {"where": None, "hint": None, **error}
        if self._journal is not None and not told:
            self._journal.add("failed", job=work.name, key=work.left, error=error, limits=work.limits)
            self._past.failed(work.left, error, work.limits)
        log = self._log(work)
        result = Result(
            work.name,
            work.job.source,
            "told" if told else "failed",
            time.monotonic() - work.started,
            error,
            log if log.exists() else None,
        )
        self._end(work, result)
        for other in self._followers.pop(work.key, []):
            other.started = time.monotonic()
            self._fail(other, error, told=told)

    def _settle(self, work: _Work, check: Mapping[str, Any] | None = None) -> None:
        """It has a bundle, and that was compared, if it was to be."""
        log = self._log(work)
        failed = check is not None and not check["passed"]
        error = None
        if check is not None and failed:
            why = {"kind": "Difference", "what": check["summary"], "where": None, "hint": None}
            error = {**why, "stage": "check", "exit_code": 1, "chance": False}
        result = Result(
            work.name,
            work.job.source,
            "failed" if failed else work.how,
            time.monotonic() - work.started,
            error,
            log if log.exists() else None,
            work.notes,
            str(check["summary"]) if check is not None else None,
        )
        self._end(work, result)
        for other in self._followers.pop(work.key, []):
            other.started = time.monotonic()
            self._decide(other)

    def _end(self, work: _Work, result: Result) -> None:
        self._results[work.name] = result
        self._watcher.ended(result, work.examined.memory)

    def _log(self, work: _Work) -> Path:
        return self._out / STATE / "logs" / f"{work.name}.log"

    def _sweep(self, work: _Work) -> None:
        """Take away what a job that was stopped had begun."""
        bundle = self._out / work.name
        for stale in bundle.glob(".converting-*"):
            shutil.rmtree(stale, ignore_errors=True)
        for folder in (bundle, *bundle.relative_to(self._out).parents):
            with contextlib.suppress(OSError):
                (self._out / folder).rmdir()

    def _look_back(self) -> None:
        """Say which names from the command line or the defaults fitted no model at all."""
        examined = [each.examined for each in self._works if each.examined.problem is None]
        symbols = {name for each in examined for name in each.symbols}
        inputs = {name for each in examined for name in each.inputs}
        for kind, known in (("dims", symbols), ("inputs", inputs), ("freeze", inputs)):
            given = {name for each in self._works for name in getattr(each.job.settings, kind)}
            for name in sorted(given - known) if examined else ():
                hint = nearest(name, known)
                self.notes.append(f"{kind}: no model has {name!r}{f' ({hint})' if hint else ''}")


def _obituary(status: int, stage: str) -> Record:
    """The failure of a job whose process ended in the middle."""
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"left with status {status}"
    killed = status == -signal.SIGKILL
    hint = "the system does that when memory is short: --jobs 1 leaves more to each" if killed else None
    what = f"the process that converted it {how}"
    return {
        "kind": "Killed" if killed else "Crashed",
        "what": what,
        "where": None,
        "hint": hint,
        "stage": stage,
        "exit_code": 3,
        "chance": True,
    }
