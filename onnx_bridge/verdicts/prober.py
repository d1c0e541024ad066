"""Sending probes to MIGraphX's worker, in batches, and making sure of each failure.

Probes are parsed, compiled and run in forks of a worker whose heap checks itself where the runtime has glibc's
debugging library. ``ok`` is certain also in a fork with other probes; any other verdict is given only to a probe that
was alone in its fork, so that a crash or a corrupted heap is attributed to the probe that caused it. Large constants
are sent only to confirm a rejection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from onnx_bridge.core.background import Background
from onnx_bridge.core.countdown import Countdown
from onnx_bridge.core.delta_debug import bisect_first
from onnx_bridge.core.progress import silent
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.program import Tensor
from onnx_bridge.migraphx.rehearsal.rehearsal import Rehearsal
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference import evaluations
from onnx_bridge.verdicts.judge import Judgement, judge
from onnx_bridge.verdicts.probe_request import TARGET, ProbeRequest, prepare
from onnx_bridge.verdicts.run_time import longest_seconds
from passes.isolation.limits import Limits
from passes.probing.probe import Probe
from passes.rewriting.base import Obstacle, Status

_T = TypeVar("_T")

_BATCH, _BATCH_BYTES = 16, 24 << 20
"""The most probes, and bytes of those that are run, in one request."""
_REHEARSED = 3.0
"""How many times longer a probe may take with the gpu target's passes."""
_MEMORY = 4 << 30
_SLOWER = 30
"""How many times as long as estimated a probe may take: verdicts do not depend on the load of the machine."""
_WHOLE_BYTES = 1 << 30
"""The most bytes of constants that are sent to confirm a failure."""


class Question(NamedTuple):
    """What is asked about a probe.

    Attributes:
        probe: the probe.
        run: whether it is run, and not only compiled.
        edge_cases: whether on samples of edge cases as well.
    """

    probe: Probe
    run: bool
    edge_cases: bool = True


@dataclass(frozen=True)
class Prober:
    """Sends probes to a runtime, and judges its answers.

    Attributes:
        runtime: the runtime.
        timeout: seconds for parsing, compiling and running one probe, besides the estimated time of its run.
        compile_for: the target of the whole model in the end; probes run on ``ref`` whatever it is.
        rehearsal: passes of the gpu target; what ``ref`` computes right must be right after them as well.
        progress: called as batches of probes are judged.
    """

    runtime: Runtime
    timeout: float
    compile_for: str
    rehearsal: Rehearsal | None
    progress: Callable[[str], None] | None

    def judge(self, questions: Sequence[Question]) -> Iterator[dict[Probe, Judgement]]:
        """Judge probes in batches, in their order: MIGraphX has one while the one before is compared, and the next is
        prepared.
        """
        if not questions:
            return
        self.launch()
        countdown = Countdown(self.progress or silent, "judging", len(questions), step_name="kind of node")
        with Background() as one, Background() as other:
            sent: deque[Future[dict[Probe, Judgement]]] = deque()
            for batch in _batches(questions, lambda each: each.probe.bytes if each.run else 0):
                requests = [prepare(each.probe, run=each.run, edge_cases=each.edge_cases) for each in batch]
                if len(sent) == 2:
                    yield self._told(sent.popleft().result(), countdown)
                sent.append(one.submit(self._judge_requests, requests))
                one, other = other, one
            while sent:
                yield self._told(sent.popleft().result(), countdown)

    @staticmethod
    def _told(judged: dict[Probe, Judgement], countdown: Countdown) -> dict[Probe, Judgement]:
        countdown.step(len(judged))
        return judged

    def launch(self) -> None:
        """Start the processes that `judge` needs, without waiting until they are ready."""
        workers.shared_with_heap_checks(self.runtime).launch()
        evaluations.launch()

    def _judge_requests(self, requests: Sequence[ProbeRequest]) -> dict[Probe, Judgement]:
        found = self._certain(requests)
        if self.rehearsal is None:
            return found
        right = [each for each in requests if found[each.probe].verdict.status is Status.OK]
        rehearsed = self._certain(right, len(self.rehearsal.groups))
        for request in right:
            if rehearsed[request.probe].verdict.status is not Status.OK:
                found[request.probe] = self._attributed(request, rehearsed[request.probe], self.rehearsal.groups)
        return found

    def _attributed(self, request: ProbeRequest, after_all: Judgement, groups: Sequence[str]) -> Judgement:
        """The judgement of a probe that is right on ``ref``, and not after all groups of passes: after the first."""
        judged = {len(groups): after_all}
        # what does not end is not waited for as long again, several times
        hangs = after_all.verdict.status is Status.HANGS
        prober = replace(self, timeout=self.timeout / _REHEARSED) if hangs else self

        def fails(count: int) -> bool:
            judged[count] = prober._certain([request], count)[request.probe]
            return judged[count].verdict.status is not Status.OK

        first = bisect_first(range(1, len(groups) + 1), fails)
        found, group = judged[first], groups[first - 1]
        message = f"rehearsed as gpu, after {group}: {found.verdict.message}"
        return replace(found, verdict=replace(found.verdict, message=message, group=group))

    def _certain(self, requests: Sequence[ProbeRequest], groups: int = 0) -> dict[Probe, Judgement]:
        """Judge probes, after some groups of passes of the gpu target; failures are judged alone, and confirmed."""
        if len(requests) == 1:
            return self._confirmed(requests, self._alone(requests, groups), groups)
        together = self._send(requests, alone=False, groups=groups)
        # in a common fork another probe may be the cause; rejections are certain where all probes were answered
        certain = {Status.OK} if any(map(_ends_fork, together)) else {Status.OK, Status.REJECTED}
        found = {
            request.probe: each
            for request, each in zip(requests, together, strict=True)
            if each is not None and each.verdict.status in certain
        }
        found |= self._alone([each for each in requests if each.probe not in found], groups)
        return self._confirmed(requests, found, groups)

    def _confirmed(
        self, requests: Sequence[ProbeRequest], found: dict[Probe, Judgement], groups: int
    ) -> dict[Probe, Judgement]:
        """The judgements; failures judged again with all constants of the probe, and with another reference."""
        failed = [
            each.probe
            for each in requests
            if found[each.probe].verdict.status not in (Status.OK, Status.HANGS)
            and not each.whole
            and each.probe.data_bytes <= _WHOLE_BYTES
        ]
        for batch in _batches(failed, lambda probe: probe.data_bytes):
            found |= self._alone([prepare(probe, run=False, full=True) for probe in batch], groups)
        # ONNX Runtime may be wrong, or less accurate than MIGraphX: its DFT is off by 1e-4
        wrong = [
            each.probe
            for each in requests
            if found[each.probe].verdict.status is Status.WRONG and each.probe.replaces is not None and _runs(each)
        ]
        second = self._alone([prepare(probe, run=True, by_onnx=True) for probe in wrong], groups)
        found |= {probe: each for probe, each in second.items() if each.verdict.status is Status.OK}
        return {
            probe: replace(each, by_constants=each.verdict.status is Status.WRONG and not probe.has_all_data)
            for probe, each in found.items()
        }

    def _alone(self, requests: Sequence[ProbeRequest], groups: int) -> dict[Probe, Judgement]:
        """Judge probes, each in a fork of its own."""
        judged = self._send(requests, alone=True, groups=groups)
        return {request.probe: each for request, each in zip(requests, judged, strict=True) if each is not None}

    def _send(self, requests: Sequence[ProbeRequest], *, alone: bool, groups: int) -> list[Judgement | None]:
        """Judge probes, each in a fork of its own, or several in one, which may end before all are answered."""
        if not requests:
            return []
        tensors: dict[str, Tensor] = {}
        for index, request in enumerate(requests):
            tensors |= request.tensors(str(index))
        seconds = [longest_seconds(each.probe, self.runtime, run=bool(each.samples)) for each in requests]
        message: dict[str, Any] = {
            "do": "probe",
            "timeout": self.timeout + _SLOWER * max(seconds),
            "alone": alone,
            "seconds": seconds,
            "probes": [request.to_json() for request in requests],
            "passes": None,
        }
        runtime, stands_in = self.runtime, self.compile_for != TARGET
        if groups and self.rehearsal is not None:
            runtime, stands_in = self.rehearsal.runtime, True
            message["passes"] = {"library": str(self.rehearsal.library), "count": groups}
            message["timeout"] *= _REHEARSED
        worker = workers.shared_with_heap_checks(runtime)
        with worker.limited(Limits(growth=_MEMORY)):
            answer, outputs = worker.request("probing", message, tensors)
        found: list[Judgement | None] = []
        for index, (request, each) in enumerate(zip(requests, answer["answers"], strict=True)):
            prefix = f"{index}:"
            own = {name.removeprefix(prefix): each for name, each in outputs.items() if name.startswith(prefix)}
            found.append(None if each is None else judge(request, each, own, stands_in=stands_in))
        return found


def _ends_fork(judgement: Judgement | None) -> bool:
    """Whether a fork ended with, or before, the probe."""
    return judgement is None or judgement.verdict.status in (Status.CRASHES, Status.HANGS)


def _runs(request: ProbeRequest) -> bool:
    """Whether the probe is not too large to run."""
    return request.unproven is None or request.unproven.obstacle is not Obstacle.SIZE


def _batches(items: Iterable[_T], size: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Batches of a limited number of items and bytes."""
    batch: list[_T] = []
    total = 0
    for item in items:
        more = size(item)
        if batch and (len(batch) >= _BATCH or total + more > _BATCH_BYTES):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += more
    if batch:
        yield batch
