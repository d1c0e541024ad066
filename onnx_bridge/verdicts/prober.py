"""Sending probes to MIGraphX's worker, in batches, and making sure of each failure.

Probes are parsed, compiled and run in forks of a worker whose heap checks itself if the runtime has glibc's
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
from onnx_bridge.migraphx.rehearsal.depth import Rehearsal
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.provider.provider import Provider
from onnx_bridge.reference import evaluations
from onnx_bridge.verdicts.answers import Answer, answer_of
from onnx_bridge.verdicts.probe_request import TARGET, ProbeRequest, prepare
from onnx_bridge.verdicts.provider_answers import provider_answer
from onnx_bridge.verdicts.run_time import longest_seconds
from passes.isolation.limits import Limits
from passes.probing.probe import Probe
from passes.rewriting.base import Obstacle, Proof, Status

_T = TypeVar("_T")

_BATCH, _BATCH_BYTES = 16, 24 << 20
"""The most probes, and bytes of those that are run, in one request."""
_MEMORY = 4 << 30
_SLOWER = 30
"""The multiple of its estimated time that a probe may take: verdicts do not depend on the load of the machine."""
_WHOLE_BYTES = 1 << 30
"""The most bytes of constants that are sent to confirm a failure."""


class Question(NamedTuple):
    """A probe, whether it is run, and not only compiled, and whether on samples of edge cases as well."""

    probe: Probe
    run: bool
    edge_cases: bool = True


@dataclass(frozen=True)
class Prober:
    """Asks a runtime about probes.

    Attributes:
        timeout: seconds for parsing, compiling and running one probe, besides the estimated time of its run.
        compile_for: the target of the whole model in the end; probes run on ``ref`` whatever it is.
        rehearsal: a rehearsal of the gpu target; what ``ref`` computes right must be right in it as well.
        progress: called as batches of probes are answered.
        provider: ONNX Runtime's provider; what MIGraphX computes right must be right by it as well.
    """

    runtime: Runtime
    timeout: float
    compile_for: str
    rehearsal: Rehearsal | None
    progress: Callable[[str], None] | None
    provider: Provider | None = None

    def ask(self, questions: Sequence[Question]) -> Iterator[dict[Probe, Answer]]:
        """Yield answers in batches, in the order of the questions.

        MIGraphX has one batch while the one before is compared, and the next is prepared.
        """
        if not questions:
            return
        self.launch()
        countdown = Countdown(self.progress or silent, "judging", len(questions), step_name="kind of node")

        def told(future: Future[dict[Probe, Answer]]) -> dict[Probe, Answer]:
            answers = future.result()
            countdown.step(len(answers))
            return answers

        with Background() as thread, Background() as other:
            sent: deque[Future[dict[Probe, Answer]]] = deque()
            for batch in _batches(questions, lambda question: question.probe.bytes if question.run else 0):
                requests = [prepare(probe, run=run, edge_cases=edge_cases) for probe, run, edge_cases in batch]
                if len(sent) == 2:
                    yield told(sent.popleft())
                sent.append(thread.submit(self._answers, requests))
                thread, other = other, thread
            while sent:
                yield told(sent.popleft())

    def launch(self) -> None:
        """Start the processes that `ask` needs, without waiting until they are ready."""
        workers.shared_with_heap_checks(self.runtime).launch()
        evaluations.launch()

    def _answers(self, requests: Sequence[ProbeRequest]) -> dict[Probe, Answer]:
        answers = self._certain(requests)
        if self.provider is not None:
            for request in requests:
                if (answer := answers[request.probe]).verdict.status is Status.OK:
                    stands_in = self.compile_for != TARGET
                    answers[request.probe] = provider_answer(request, answer, self.provider, stands_in)
        if self.rehearsal is None:
            return answers
        right = [request for request in requests if answers[request.probe].verdict.status is Status.OK]
        if not self.rehearsal.computes:
            right = [replace(request, samples=[], expected=[]) for request in right]
        elif self.rehearsal.target != TARGET:  # kernels, which may lose NaN
            right = [request.with_special_sample() for request in right]
        rehearsed = self._certain(right, len(self.rehearsal.groups))
        for request in right:
            answer = rehearsed[request.probe]
            if answer.verdict.status is not Status.OK:
                answers[request.probe] = self._attributed(request, answer, self.rehearsal.groups)
            elif answer.verdict.message:
                known = answers[request.probe]
                message = f"{self.rehearsal.leg}, {answer.verdict.message}"
                answers[request.probe] = replace(known, verdict=replace(known.verdict, message=message))
        return answers

    def _attributed(self, request: ProbeRequest, after_all: Answer, groups: Sequence[str]) -> Answer:
        """Return the answer after the first group of passes after which a probe that is right on ``ref`` is not."""
        answers = {len(groups): after_all}
        # a probe that hangs is not waited for as long again, several times
        hangs = after_all.verdict.status is Status.HANGS
        prober = self
        if hangs and self.rehearsal is not None:
            prober = replace(self, timeout=self.timeout / self.rehearsal.slower)

        def fails(count: int) -> bool:
            answers[count] = prober._certain([request], count)[request.probe]
            return answers[count].verdict.status is not Status.OK

        first = bisect_first(range(1, len(groups) + 1), fails)
        answer, group = answers[first], groups[first - 1]
        message = f"rehearsed as gpu, after {group}: {answer.verdict.message}"
        transient = any(answer.transient for answer in answers.values())
        return replace(answer, verdict=replace(answer.verdict, message=message, group=group), transient=transient)

    def _certain(self, requests: Sequence[ProbeRequest], groups: int = 0) -> dict[Probe, Answer]:
        """Return answers after some groups of passes of the gpu target, with failures confirmed by asking alone."""
        if len(requests) == 1:
            return self._confirmed(requests, self._alone(requests, groups), groups)
        together = self._send(requests, alone=False, groups=groups)
        # in a common fork another probe may be the cause; rejections are certain if all probes were answered
        ended = any(answer is None or answer.verdict.status in (Status.CRASHES, Status.HANGS) for answer in together)
        certain = {Status.OK} if ended else {Status.OK, Status.REJECTED}
        answers = {
            request.probe: answer
            for request, answer in zip(requests, together, strict=True)
            if answer is not None and answer.verdict.status in certain
        }
        answers |= self._alone([request for request in requests if request.probe not in answers], groups)
        return self._confirmed(requests, answers, groups)

    def _confirmed(
        self, requests: Sequence[ProbeRequest], answers: dict[Probe, Answer], groups: int
    ) -> dict[Probe, Answer]:
        """Return the answers; those on failures with all constants of the probe, and with another reference."""
        failed = [
            request.probe
            for request in requests
            if answers[request.probe].verdict.status not in (Status.OK, Status.HANGS)
            and not request.whole
            and request.probe.data_bytes <= _WHOLE_BYTES
        ]
        for batch in _batches(failed, lambda probe: probe.data_bytes):
            answers |= self._alone([prepare(probe, run=False, full=True) for probe in batch], groups)
        # ONNX Runtime may be wrong, or less accurate than MIGraphX: its DFT is off by 1e-4
        small = [request for request in requests if not request.unproven or request.unproven.obstacle != Obstacle.SIZE]
        replacements = [request.probe for request in small if request.probe.replaces is not None]
        wrong = [probe for probe in replacements if answers[probe].verdict.status is Status.WRONG]
        second = self._alone([prepare(probe, run=True, by_onnx=True) for probe in wrong], groups)
        for probe, answer in second.items():
            if answer.verdict.proof is Proof.RUN and answer.verdict.status is Status.OK:
                answers[probe] = answer
            answers[probe] = replace(answers[probe], transient=answers[probe].transient or answer.transient)
        return {
            probe: replace(answer, by_constants=answer.verdict.status is Status.WRONG and not probe.has_all_data)
            for probe, answer in answers.items()
        }

    def _alone(self, requests: Sequence[ProbeRequest], groups: int) -> dict[Probe, Answer]:
        """Return the answers on probes, each in a fork of its own."""
        answers = self._send(requests, alone=True, groups=groups)
        return {request.probe: answer for request, answer in zip(requests, answers, strict=True) if answer is not None}

    def _send(self, requests: Sequence[ProbeRequest], *, alone: bool, groups: int) -> list[Answer | None]:
        """Return the answers on probes, each in a fork of its own, or in one, which may end before all are answered."""
        if not requests:
            return []
        tensors: dict[str, Tensor] = {}
        for index, request in enumerate(requests):
            tensors |= request.tensors(str(index))
        seconds = [longest_seconds(request.probe, self.runtime, run=bool(request.samples)) for request in requests]
        message: dict[str, Any] = {
            "do": "probe",
            "timeout": self.timeout + _SLOWER * max(seconds),
            "alone": alone,
            "seconds": seconds,
            "probes": [request.to_json() for request in requests],
            "target": TARGET,
        }
        rehearsed = bool(groups) and self.rehearsal is not None
        worker, stands_in = workers.shared_with_heap_checks(self.runtime), self.compile_for != TARGET
        if groups and self.rehearsal is not None:
            worker, stands_in = self.rehearsal.worker(checks_heap=True), True
            message |= self.rehearsal.to_json(groups)
            message["timeout"] *= self.rehearsal.slower
        with worker.limited(Limits(growth=_MEMORY)):
            replies, outputs = worker.request("probing", message, tensors)
        answers: list[Answer | None] = []
        for index, (request, reply) in enumerate(zip(requests, replies["answers"], strict=True)):
            prefix = f"{index}:"
            own = {name.removeprefix(prefix): array for name, array in outputs.items() if name.startswith(prefix)}
            answers.append(None if reply is None else answer_of(request, reply, own, stands_in, rehearsed))
        return answers


def _batches(items: Iterable[_T], size: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Yield batches of a limited number of items and bytes."""
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
