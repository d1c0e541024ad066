"""Many models into one folder: jobs in parallel, nothing lost, nothing done twice.

The truth is in the bundles: each knows the content key that it was made for, and appears whole or not at all. The
journal is the account of it: what failed and why, what was compared, what was tried how often. A batch that was
interrupted anywhere, by whatever, goes on with the same command: what is whole under its key is kept, what failed for a
reason in the model itself is told again, and the rest is done.
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

from onnx_bridge.batch.engine import Engine, Event
from onnx_bridge.batch.examine import Examined, examine
from onnx_bridge.batch.job_process import described
from onnx_bridge.batch.jobs import Job, Settings, gather
from onnx_bridge.batch.journal import Journal, Record
from onnx_bridge.batch.local_engine import Pool
from onnx_bridge.batch.outcome import Outcome, Result, Status
from onnx_bridge.batch.output import Output, output_at
from onnx_bridge.batch.progress import Silent, Watcher
from onnx_bridge.batch.run_history import Past
from onnx_bridge.conversion.keys import check_key, cleaning_key, conversion_key
from onnx_bridge.conversion.precision import Precision
from onnx_bridge.core.errors import BridgeError, nearest
from onnx_bridge.core.locations import Location, RemotePath, parse_location
from onnx_bridge.migraphx.machine import Machine

_ATTEMPTS = 3
"""How often a job is tried that fails by chance, or ends its process."""


def convert_all(
    sources: Sequence[str | os.PathLike[str] | RemotePath],
    out: str | os.PathLike[str] | RemotePath,
    settings: Settings | None = None,
    *,
    engine: Engine | None = None,
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
        sources: files, folders, globs, lists, job files (`onnx_bridge.batch.jobs`); paths, or URLs as texts.
        out: the folder, a path or a URL as a text; logs and the journal are in ``.batch`` there.
        settings: of every job, where nothing nearer to the model says otherwise.
        engine: where jobs are performed; default: processes here (`onnx_bridge.batch.local_engine.Pool`).
        jobs: of the default engine: how many at a time; default: by cores, and by the memory that they are foreseen to
            take.
        resume: whether to keep what was done before.
        retry: whether to try again what failed before for a reason in the model itself.
        dry_run: only say what would be done.
        passes: files with passes of your own.
        watcher: told what happens.

    Raises:
        InputError: a source is wrong, another program is working in ``out``, or it cannot be written.
        RuntimeNotFound: there is no MIGraphX, or not for a target.
        Unreachable: a URL, or a cluster, does not answer.
    """
    started, engine = time.monotonic(), engine or Pool(jobs)
    with contextlib.ExitStack() as stack:
        stack.callback(engine.close)
        output = output_at(out)
        records = output.records()
        found = gather(
            [parse_location(each) for each in sources], output.place, settings or Settings(), Past(records).names
        )
        machines = {target: engine.machine(target) for target in {each.settings.target for each in found}}
        journal = None if dry_run else stack.enter_context(output.held())
        past = Past(journal.records if journal else records, resume=resume, retry=retry)
        if journal is not None:
            journal.add("run", jobs=len(found), process=os.getpid())
        files = [str(each.absolute()) for each in passes]
        batch = _Batch(output, engine, found, machines, past, journal, watcher or Silent(), resume, files)
        results = batch.run()
        notes = (*engine.notes, *batch.notes)
    return Outcome(output.place, tuple(results), time.monotonic() - started, notes)


@dataclass(eq=False)
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
        aside: where the bundle of the present attempt is laid down for `Output.publish`; None for one that is not.
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
    aside: Location | None = None
    started: float = 0.0
    notes: tuple[str, ...] = ()
    how: Status = "converted"

    def __str__(self) -> str:
        return self.job.name

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
    """All of it, while it lasts. Everything but `_examine` and `_land` happens in the thread of `run`."""

    def __init__(
        self,
        output: Output,
        engine: Engine,
        jobs: Sequence[Job],
        machines: Mapping[str, tuple[Machine, str]],
        past: Past,
        journal: Journal | None,
        watcher: Watcher,
        resume: bool,
        passes: list[str],
    ) -> None:
        self._output, self._engine, self._machines, self._past, self._journal = output, engine, machines, past, journal
        self._watcher, self._resume, self._passes = watcher, resume, passes
        self._works = [_Work(job, job.settings) for job in jobs]
        self._ready: list[_Work] = []  # by the memory that they are foreseen to take, the least first
        self._sizes: list[int] = []  # that memory
        self._under_way: set[_Work] = set()
        self._owners: dict[str, _Work] = {}
        self._followers: dict[str, list[_Work]] = {}
        self._results: dict[str, Result] = {}
        self.notes: list[str] = []
        if journal is not None and journal.damaged:
            self.notes.append(f"{journal.damaged} lines of the journal could not be read and were passed over")

    def run(self) -> list[Result]:
        """Do all that is to be done; results are in the order of the jobs."""
        self._watcher.begin(len(self._works))
        if self._journal is not None:
            temporary = self._journal.folder / "tmp"
            shutil.rmtree(temporary, ignore_errors=True)  # of programs that were killed
            temporary.mkdir(parents=True)
            self._engine.open(self._journal, self._land)
        waiting = iter([(work, self._past.model(str(work.job.source))) for work in self._works])
        try:
            for _ in range(max(2, len(os.sched_getaffinity(0)))):
                threading.Thread(target=self._examine, args=(waiting,), daemon=True).start()
            while len(self._results) < len(self._works):
                self._handle(*self._engine.wait())
                self._start()
            self._look_back()
            if self._journal is not None:
                failed = sum(each.failed for each in self._results.values())
                self._journal.add("end", failed=failed, jobs=len(self._results))
        finally:
            for _ in waiting:  # nobody needs to look at these
                pass
            self._engine.close()
            for work in self._under_way:
                self._output.sweep(work.name)
            if self._journal is not None:
                shutil.rmtree(temporary, ignore_errors=True)
        return [self._results[each.name] for each in self._works]

    def _examine(self, waiting: Iterator[tuple[_Work, Mapping[str, Any] | None]]) -> None:
        for work, before in waiting:  # an iterator of a list, which threads may share
            try:
                found: Examined | Exception = examine(work.job.source, before)
            except Exception as error:  # whatever it is, it is this job's
                found = error
            self._engine.post(work, {"event": "examined", "found": found})

    def _land(self, work: _Work, event: Event) -> None:
        """Publish what was laid down aside, before it is told; in a thread of the engine."""
        if event["event"] == "converted" and work.aside is not None:
            self._output.publish(work.name, work.aside, work.job.source)

    def _handle(self, work: _Work, event: Event) -> None:
        if event["event"] in ("finished", "failed"):
            self._under_way.discard(work)
        match event["event"]:
            case "examined":
                self._on_examined(work, event["found"])
            case _ if work.name in self._results:
                pass  # all that matters of it has been told
            case "stage":
                self._watcher.stage(work.name, event["stage"], event["detail"])
            case "converted":
                self._on_converted(work, event)
            case "checked":
                self._on_checked(work, event)
            case "failed":
                self._on_failed(work, event["error"])
            case "finished":
                self._settle(work)

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
        if self._resume and (manifest := self._output.whole(work.name, work.key)):
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
        place = bisect.bisect(self._sizes, work.examined.memory)
        self._ready.insert(place, work)
        self._sizes.insert(place, work.examined.memory)

    def _plan(self, work: _Work) -> str:
        steps = [*(["convert"] if work.convert else []), *(["check"] if work.check else [])]
        return f"{' and '.join(steps)} ({work.examined.bytes / 2**20:.3g} MiB)"

    def _key(self, work: _Work) -> str:
        settings = work.settings
        machine, target = self._machines[settings.target]
        precision = Precision(settings.precision, settings.keep_fp32, settings.calibration)
        cleaned = cleaning_key(
            work.examined.digest,
            pipeline=settings.pipeline,
            dims=settings.dims,
            shapes=settings.shapes,
            freeze=settings.freeze,
            runtime=machine,
            precision=precision.to_json(),
        )
        key = conversion_key(
            cleaned,
            host=settings.host,
            target=target,
            runtime=machine,
            precision=precision.to_key(),
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
            manifest = None if name == work.name else self._output.whole(name, work.key)
            if manifest is None:
                continue
            if self._journal is None:
                return True
            with contextlib.suppress(BridgeError):
                work.notes = tuple(self._output.reuse(name, work.name, work.job.source).notes)
                self._record_done(work, "reused")
                return True
        return False

    def _start(self) -> None:
        """Give out what is ready, as far as the engine takes it."""
        while (index := self._engine.choose(self._sizes)) is not None:
            del self._sizes[index]
            self._give(self._ready.pop(index))

    def _give(self, work: _Work) -> None:
        assert self._journal is not None
        work.attempts += 1
        work.started = time.monotonic()
        self._journal.add("start", job=work.name, key=work.key, attempt=work.attempts, convert=work.convert)
        bundle = self._output.bundle(work.name)
        away = self._engine.far or isinstance(work.job.source, RemotePath) or isinstance(bundle, RemotePath)
        work.aside = self._output.aside().absolute() if away else None
        target = self._machines[work.settings.target][1]
        task = {
            "source": str(work.job.source),
            "bundle": str(bundle.absolute()),
            "aside": None if work.aside is None else str(work.aside),
            "settings": replace(work.settings, target=target).to_json(),
            "convert": work.convert,
            "check": work.check is not None,
            "reuse": self._resume,
            "log": str(self._log(work).absolute()),
            "passes": self._passes,
        }
        self._under_way.add(work)
        self._engine.submit(work, task, work.examined.memory)

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
        status: Status = "told" if told else "failed"
        result = Result(
            work.name, work.job.source, status, time.monotonic() - work.started, error, self._log_there(work)
        )
        self._end(work, result)
        for other in self._followers.pop(work.key, []):
            other.started = time.monotonic()
            self._fail(other, error, told=told)

    def _settle(self, work: _Work, check: Mapping[str, Any] | None = None) -> None:
        """It has a bundle, and that was compared, if it was to be."""
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
            self._log_there(work),
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

    def _log(self, work: _Work) -> Location:
        return self._output.log(work.name, self._engine.far)

    def _log_there(self, work: _Work) -> Location | None:
        log = self._log(work)
        there = work.attempts > 0 if isinstance(log, RemotePath) else log.exists()
        return log if there else None

    def _look_back(self) -> None:
        """Say which names from the command line or the defaults fitted no model at all."""
        examined = [each.examined for each in self._works if each.examined.problem is None]
        symbols = {name for each in examined for name in each.symbols}
        inputs = {name for each in examined for name in each.inputs}
        for kind, known in (("dims", symbols), ("shapes", inputs), ("freeze", inputs)):
            given = {name for each in self._works for name in getattr(each.job.settings, kind)}
            for name in sorted(given - known) if examined else ():
                hint = nearest(name, known)
                self.notes.append(f"{kind}: no model has {name!r}{f' ({hint})' if hint else ''}")
