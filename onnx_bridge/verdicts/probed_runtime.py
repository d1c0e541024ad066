"""What one MIGraphX really says of nodes: probed in batches, judged, remembered on disk.

Probes are parsed, compiled and run in a fork of a worker whose heap checks itself where the runtime has glibc's
debugging library. What is right among others is right; whatever else is said of a probe counts only when it is said of
it alone in a fork: a crash or a corrupted heap is the verdict of the one that caused it. Large constants are not handed
over unless their absence makes MIGraphX refuse.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

from onnx_bridge.core.user_cache import cache_dir
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.limits import Limits
from onnx_bridge.migraphx.program import Tensor
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.verdicts.cache import CachedVerdict, VerdictCache, shared
from onnx_bridge.verdicts.probing import TARGET, Question, ask, judge
from onnx_bridge.verdicts.race_conditions import race_condition
from onnx_bridge.verdicts.reference_worker import ReferenceWorker
from passes.core.base import Status, Verdict
from passes.target.probes import Probe

_BATCH = 64
SECONDS = 10.0
"""That one probe may take, where nothing else is said."""
_MEMORY = 4 << 30
_WHOLE_BYTES = 1 << 30
"""The most bytes of constants that are handed over to confirm a refusal."""
_CHECKER = "libc_malloc_debug.so.0"
"""glibc's own: with it and ``glibc.malloc.check=3`` a corrupted heap ends the process when memory is freed."""
_ROOT = Path(__file__).resolve().parents[2]
_CODE = (
    "passes/target/probes.py passes/analysis/randomness.py passes/analysis/cost.py onnx_bridge/verdicts/probing.py "
    "onnx_bridge/verdicts/probe_samples.py onnx_bridge/verdicts/reference_server.py onnx_bridge/migraphx/server.py "
    "onnx_bridge/migraphx/forked.py onnx_bridge/migraphx/runtime_messages.py "
    "onnx_bridge/samples/inputs.py onnx_bridge/samples/roles.py onnx_bridge/samples/generated.py "
    "onnx_bridge/reference/compare.py onnx_bridge/reference/metrics.py onnx_bridge/reference/tolerances.py"
)
"""What decides on verdicts: when it changes, those on disk count no more."""


class ProbedRuntime:
    """The verdicts of one runtime; a `passes.core.base.Target`.

    Args:
        runtime: whose.
        cache: whether to read and write those on disk.
        progress: told how far a batch of probes is.
        timeout: seconds that parsing, compiling and running one probe may take.
        compile_for: the target of the whole model in the end; probes run on ``ref`` whatever it is.
    """

    name = TARGET

    def __init__(
        self,
        runtime: Runtime,
        *,
        cache: bool = True,
        progress: Callable[[str], None] | None = None,
        timeout: float = SECONDS,
        compile_for: str = TARGET,
    ) -> None:
        self.runtime = runtime
        self._progress = progress
        self._timeout = timeout
        self._compile_for = compile_for
        self._cache = shared(_cache_file(runtime, timeout)) if cache else VerdictCache(None)
        self._cache.refresh()

    def verdicts(self, probes: Sequence[Probe], *, run: bool = True) -> list[Verdict]:
        """What MIGraphX makes of each probe, in their order; equal ones are asked about once.

        Args:
            probes: one with a ``problem`` is rejected in the words of that.
            run: also compile them and, where that is cheap, compare what they compute with the reference.

        Raises:
            RuntimeFailure: the runtime cannot be loaded.
        """
        able = [probe for probe in probes if probe.problem is None and probe.outputs]
        by_chance = {probe: said for probe in able if (said := race_condition(probe, self.runtime, self._compile_for))}
        able = [probe for probe in able if probe not in by_chance]
        found = self._look_up(able, run)
        if len(found) < len({probe.signature for probe in able}):
            self._cache.refresh()
            found |= self._look_up(able, run)
        new = {probe.signature: probe for probe in able if probe.signature not in found}
        done = 0
        for batch in _batches(new.values()):
            fresh = self._probe(batch, run)
            lasting = {signature: verdict for signature, verdict in fresh.items() if not _by_chance(verdict)}
            self._cache.add({signature: CachedVerdict(verdict, run) for signature, verdict in lasting.items()})
            found |= fresh
            done += len(batch)
            if self._progress is not None:
                self._progress(f"MIGraphX has judged {done} of {len(new)} kinds of nodes")
        return [
            Verdict(Status.REJECTED, probe.problem)
            if probe.problem is not None
            else Verdict(Status.WRONG, by_chance[probe])
            if probe in by_chance
            else found[probe.signature]
            if probe.outputs
            else Verdict(Status.OK)
            for probe in probes
        ]

    def _look_up(self, probes: Sequence[Probe], run: bool) -> dict[str, Verdict]:
        found = {probe.signature: self._cache.get(probe.signature, run=run) for probe in probes}
        return {signature: verdict for signature, verdict in found.items() if verdict is not None}

    def _probe(self, probes: Sequence[Probe], run: bool) -> dict[str, Verdict]:
        worker, reference = checked_worker(self.runtime), _reference_worker()
        worker.launch()  # it loads MIGraphX while the reference computes
        if run:
            reference.launch()
        questions = [ask(probe, reference, run=run) for probe in probes]
        together = self._put(questions, alone=False)
        found = dict(zip(probes, together, strict=False))
        # in the company of others the others may be to blame; refusals are clear where all of them were answered
        clear = {Status.OK} if _ended_early(together, questions) else {Status.OK, Status.REJECTED}
        doubted = [each for each in questions if each.probe not in found or found[each.probe].status not in clear]
        found |= zip([question.probe for question in doubted], self._put(doubted, alone=True), strict=True)
        # and a failure counts only of the real thing
        for question in questions:
            probe = question.probe
            failed = found[probe].status is not Status.OK
            if failed and not question.whole and probe.data_bytes <= _WHOLE_BYTES:
                (found[probe],) = self._put([ask(probe, reference, run=run, full=True)], alone=True)
            if found[probe].status is Status.WRONG and probe.instead_of is not None and run:
                # ONNX Runtime can be the one that errs, or the coarser of the two: its DFT is off by 1e-4
                (second,) = self._put([ask(probe, reference, run=run, by_onnx=True)], alone=True)
                found[probe] = second if second.status is Status.OK else found[probe]
        return {probe.signature: verdict for probe, verdict in found.items()}

    def _put(self, questions: Sequence[Question], *, alone: bool) -> list[Verdict]:
        """Verdicts, each of a fork of its own, or all of one, which may end before all are answered."""
        if not questions:
            return []
        tensors: dict[str, Tensor] = {}
        for index, question in enumerate(questions):
            tensors |= question.tensors(str(index))
        request: dict[str, Any] = {
            "do": "probe",
            "timeout": self._timeout,
            "alone": alone,
            "probes": [
                [each.target, each.reload, each.empty, [list(sample) for sample in each.samples]] for each in questions
            ],
        }
        worker = checked_worker(self.runtime)
        with worker.limited(Limits(memory=_MEMORY)):
            message, outputs = worker.request("probing", request, tensors)
        found = []
        for index, (question, answer) in enumerate(zip(questions, message["answers"], strict=False)):
            prefix = f"{index}:"
            mine = {name.removeprefix(prefix): each for name, each in outputs.items() if name.startswith(prefix)}
            found.append(judge(question, answer, mine))
        return found


def _ended_early(verdicts: Sequence[Verdict], questions: Sequence[Question]) -> bool:
    ends = (Status.CRASHES, Status.HANGS)
    return len(verdicts) < len(questions) or any(verdict.status in ends for verdict in verdicts)


def _by_chance(verdict: Verdict) -> bool:
    """Whether the machine had a part in it: the system kills processes when memory is short."""
    return verdict.status is Status.CRASHES and verdict.message.startswith("SIGKILL")


def _batches(probes: Iterable[Probe]) -> Iterator[list[Probe]]:
    rest = iter(probes)
    while batch := list(islice(rest, _BATCH)):
        yield batch


def checked_worker(runtime: Runtime) -> workers.Worker:
    """The shared worker of a runtime whose heap checks itself, where glibc's library for that is there."""
    checked = any((folder / _CHECKER).is_file() for folder in runtime.library_path)
    tunables = ":".join(filter(None, (os.environ.get("GLIBC_TUNABLES"), "glibc.malloc.check=3")))
    preload = ":".join(filter(None, (os.environ.get("LD_PRELOAD"), _CHECKER)))
    return workers.shared(runtime, {"GLIBC_TUNABLES": tunables, "LD_PRELOAD": preload} if checked else {})


@functools.cache
def _reference_worker() -> ReferenceWorker:
    return ReferenceWorker()


def _cache_file(runtime: Runtime, timeout: float) -> Path:
    """The file of a runtime, an environment, this code, and the time that it gives."""
    settings = sorted(item for item in os.environ.items() if item[0].startswith("MIGRAPHX_"))
    state = hashlib.blake2b(f"{settings}{_code()}{timeout}".encode(), digest_size=8).hexdigest()
    identity = re.sub(r"[^\w.-]", "_", runtime.identity)
    return cache_dir() / "verdicts" / f"{identity}-{state}.jsonl"


@functools.cache
def _code() -> str:
    parts = [(_ROOT / name).read_bytes() for name in _CODE.split()]
    parts += [metadata.version(name).encode() for name in ("onnx", "onnxruntime")]
    return hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()
