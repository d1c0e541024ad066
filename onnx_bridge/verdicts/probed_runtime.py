"""A runtime as the target of passes: nodes are probed in batches and judged, verdicts are cached on disk.

Probes are parsed, compiled and run in a fork of a worker whose heap checks itself where the runtime has glibc's
debugging library. ``ok`` is certain also in a fork with other probes; any other verdict is given only to a probe that
was alone in its fork, so that a crash or a corrupted heap is attributed to the probe that caused it. Large constants
are sent only to confirm a rejection.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from onnx_bridge.core.code_digest import code_digest
from onnx_bridge.core.user_cache import cache_dir
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.limits import Limits
from onnx_bridge.migraphx.program import Tensor
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.verdicts.cache import CachedVerdict, VerdictCache, shared
from onnx_bridge.verdicts.judge import Judgement, judge
from onnx_bridge.verdicts.probe_request import TARGET, ProbeRequest, prepare
from onnx_bridge.verdicts.race_conditions import race_condition
from onnx_bridge.verdicts.reference_worker import ReferenceWorker
from passes.core.base import Status, Verdict
from passes.target.probe import Probe

_BATCH = 64
SECONDS = 10.0
"""The default time limit of a probe."""
_MEMORY = 4 << 30
_WHOLE_BYTES = 1 << 30
"""The most bytes of constants that are sent to confirm a failure."""


class ProbedRuntime:
    """A runtime that probes are sent to; a `passes.core.base.Target`.

    Args:
        runtime: the runtime.
        cache: whether to use the verdicts on disk.
        progress: called as batches of probes are judged.
        timeout: seconds for parsing, compiling and running one probe.
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
        """The verdict of each probe, in their order; equal probes are judged once.

        Args:
            probes: one with a ``problem`` is rejected for that.
            run: also compile them and, where that is cheap, compare what they compute with the reference.

        Raises:
            RuntimeFailure: the runtime cannot be loaded.
        """
        clear = {probe: verdict for probe in probes if (verdict := self._clear_verdict(probe)) is not None}
        open_ = [probe for probe in probes if probe not in clear]
        found = self._look_up(open_, run)
        if len(found) < len({probe.signature for probe in open_}):
            self._cache.refresh()
            found |= self._look_up(open_, run)
        new = {probe.signature: probe for probe in open_ if probe.signature not in found}
        done = 0
        for batch in _batches(new.values()):
            judged = self._probe(batch, run)
            lasting = {probe.signature: each.verdict for probe, each in judged.items() if not each.transient}
            self._cache.add({signature: CachedVerdict(verdict, run) for signature, verdict in lasting.items()})
            found |= {probe.signature: each.verdict for probe, each in judged.items()}
            done += len(batch)
            if self._progress is not None:
                self._progress(f"MIGraphX has judged {done} of {len(new)} kinds of nodes")
        return [clear[probe] if probe in clear else found[probe.signature] for probe in probes]

    def _clear_verdict(self, probe: Probe) -> Verdict | None:
        """The verdict of a probe that need not be sent to MIGraphX; None for the others."""
        if probe.problem is not None:
            return Verdict(Status.REJECTED, probe.problem)
        if not probe.outputs:
            return Verdict(Status.OK)
        race = race_condition(probe, self.runtime, self._compile_for)
        return None if race is None else Verdict(Status.WRONG, race)

    def _look_up(self, probes: Sequence[Probe], run: bool) -> dict[str, Verdict]:
        found = {probe.signature: self._cache.get(probe.signature, run=run) for probe in probes}
        return {signature: verdict for signature, verdict in found.items() if verdict is not None}

    def _probe(self, probes: Sequence[Probe], run: bool) -> dict[Probe, Judgement]:
        workers.shared_with_heap_checks(self.runtime).launch()  # it loads MIGraphX while the reference computes
        reference = _reference_worker()
        if run:
            reference.launch()
        requests = [prepare(probe, reference, run=run) for probe in probes]
        together = self._send(requests, alone=False)
        found = dict(zip(probes, together, strict=False))
        # in a common fork another probe may be the cause; rejections are certain where all probes were answered
        certain = {Status.OK} if _ended_early(together, requests) else {Status.OK, Status.REJECTED}
        doubted = [
            each for each in requests if each.probe not in found or found[each.probe].verdict.status not in certain
        ]
        found |= zip([request.probe for request in doubted], self._send(doubted, alone=True), strict=True)
        for request in requests:
            found[request.probe] = self._confirmed(request, found[request.probe], reference, run)
        return found

    def _confirmed(
        self, request: ProbeRequest, judgement: Judgement, reference: ReferenceWorker, run: bool
    ) -> Judgement:
        """A failure, judged again with all constants of the probe, and with another reference."""
        probe = request.probe
        if judgement.verdict.status is not Status.OK and not request.whole and probe.data_bytes <= _WHOLE_BYTES:
            (judgement,) = self._send([prepare(probe, reference, run=run, full=True)], alone=True)
        if judgement.verdict.status is Status.WRONG and probe.replaces is not None and run:
            # ONNX Runtime may be wrong, or less accurate than MIGraphX: its DFT is off by 1e-4
            (second,) = self._send([prepare(probe, reference, run=run, by_onnx=True)], alone=True)
            judgement = second if second.verdict.status is Status.OK else judgement
        return judgement

    def _send(self, requests: Sequence[ProbeRequest], *, alone: bool) -> list[Judgement]:
        """Judge probes, each in a fork of its own, or all in one, which may end before all are answered."""
        if not requests:
            return []
        tensors: dict[str, Tensor] = {}
        for index, request in enumerate(requests):
            tensors |= request.tensors(str(index))
        message: dict[str, Any] = {
            "do": "probe",
            "timeout": self._timeout,
            "alone": alone,
            "probes": [request.to_json() for request in requests],
        }
        worker = workers.shared_with_heap_checks(self.runtime)
        with worker.limited(Limits(memory=_MEMORY)):
            answer, outputs = worker.request("probing", message, tensors)
        found = []
        for index, (request, each) in enumerate(zip(requests, answer["answers"], strict=False)):
            prefix = f"{index}:"
            own = {name.removeprefix(prefix): each for name, each in outputs.items() if name.startswith(prefix)}
            found.append(judge(request, each, own))
        return found


def _ended_early(judgements: Sequence[Judgement], requests: Sequence[ProbeRequest]) -> bool:
    ends = (Status.CRASHES, Status.HANGS)
    return len(judgements) < len(requests) or any(each.verdict.status in ends for each in judgements)


def _batches(probes: Iterable[Probe]) -> Iterator[list[Probe]]:
    rest = iter(probes)
    while batch := list(islice(rest, _BATCH)):
        yield batch


@functools.cache
def _reference_worker() -> ReferenceWorker:
    return ReferenceWorker()


def _cache_file(runtime: Runtime, timeout: float) -> Path:
    """The cache of a runtime, an environment, the code that decides on verdicts, and a time limit."""
    settings = sorted(item for item in os.environ.items() if item[0].startswith("MIGRAPHX_"))
    state = hashlib.blake2b(f"{settings}{code_digest(__name__)}{timeout}".encode(), digest_size=8).hexdigest()
    identity = re.sub(r"[^\w.-]", "_", runtime.identity)
    return cache_dir() / "verdicts" / f"{identity}-{state}.jsonl"
