"""A runtime as the target of passes: nodes are judged by probes, large ones by their witnesses; verdicts are cached on
disk.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from onnx_bridge.core.files.code_digest import code_digest
from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.migraphx.rehearsal.rehearsal import Rehearsal
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.verdicts.cache import CachedVerdict, VerdictCache, shared
from onnx_bridge.verdicts.judge import Judgement
from onnx_bridge.verdicts.probe_request import TARGET
from onnx_bridge.verdicts.prober import Prober, Question
from onnx_bridge.verdicts.race_conditions import race_condition
from onnx_bridge.verdicts.run_time import compile_seconds, run_seconds
from passes.graphs.traversal import with_nested
from passes.probing.probe import Probe
from passes.probing.witness import witness
from passes.rewriting.base import Obstacle, Proof, Skip, Status, Unproven, Verdict

SECONDS = 10.0
"""The default time limit of a probe."""
BUDGET = 2.0
"""The default budget of estimated seconds for runs at real size."""
_SHORT, _LARGEST_WITNESS = 0.05, 0.5
"""The most estimated seconds of a probe that is always run at real size, and of a witness."""
_UNCOMPILED = Judgement(Verdict(Status.OK))
"""Of a probe that takes too long to compile, before its witness is looked at."""
_MOST_NODES = 4000
"""The most nodes of a probe, with those in subgraphs, that is compiled: MIGraphX takes 40 seconds for 5,000, and many
minutes for 20,000."""
_RUN_BYTES = 512 << 20
"""The most bytes of constants, inputs and outputs of a probe that is run."""


class ProbedRuntime:
    """A runtime that probes are sent to; a `passes.rewriting.base.Target`.

    Args:
        runtime: the runtime.
        cache: whether to use the verdicts on disk.
        progress: called as batches of probes are judged.
        timeout: seconds for parsing, compiling and running one probe, besides the estimated time of its run.
        budget: estimated seconds, in all, for runs at real size of probes that take longer than `_SHORT`; default:
            `BUDGET`.
        compile_for: the target of the whole model in the end; probes run on ``ref`` whatever it is.
        rehearsal: passes of the gpu target; what ``ref`` computes right must be right after them as well.
    """

    name = TARGET

    def __init__(
        self,
        runtime: Runtime,
        *,
        cache: bool = True,
        progress: Callable[[str], None] | None = None,
        timeout: float = SECONDS,
        budget: float | None = None,
        compile_for: str = TARGET,
        rehearsal: Rehearsal | None = None,
    ) -> None:
        self.runtime = runtime
        self.budget = BUDGET if budget is None else budget
        self._left = self.budget
        self._compile_for = compile_for
        self._prober = Prober(runtime, timeout, compile_for, rehearsal, progress)
        self.rehearses = rehearsal is not None
        self._cache = shared(_cache_file(runtime, timeout, compile_for, rehearsal)) if cache else VerdictCache(None)
        self._by_constants: set[str] = set()  # signatures of which other constants had another verdict
        self._cache.refresh()

    def launch(self) -> None:
        """Start the processes that judge, if no verdicts are known: otherwise there may be nothing to judge."""
        if self._cache.is_empty:
            self._prober.launch()

    def verdicts(self, probes: Sequence[Probe]) -> list[Verdict]:
        """The verdict of each probe, in their order; equal probes are judged once.

        Args:
            probes: one with a ``problem`` is rejected for that.

        Raises:
            RuntimeFailure: the runtime cannot be loaded.
        """
        clear = {probe: verdict for probe in probes if (verdict := self._clear_verdict(probe)) is not None}
        by_signature = {probe.signature: probe for probe in probes if probe not in clear}
        found = self._known(by_signature)
        new = [probe for signature, probe in by_signature.items() if signature not in found]
        found |= {probe.signature: judgement.verdict for probe, judgement in self._judge(new).items()}
        return [clear[probe] if probe in clear else found[probe.signature] for probe in probes]

    def _clear_verdict(self, probe: Probe) -> Verdict | None:
        """The verdict of a probe that need not be sent to MIGraphX; None for the others."""
        if probe.problem is not None:
            return Verdict(Status.REJECTED, probe.problem)
        if not probe.outputs:
            return Verdict(Status.OK, unproven=Unproven(Obstacle.UNUSED))
        if (nodes := sum(1 for _ in with_nested(probe.nodes))) > _MOST_NODES:
            return Verdict(Status.HANGS, f"{nodes} nodes in one program are not compiled in time")
        race = race_condition(probe, self.runtime, self._compile_for)
        return None if race is None else Verdict(Status.WRONG, race)

    def _known(self, probes: Mapping[str, Probe]) -> dict[str, Verdict]:
        """The verdicts in the cache, of probes by signature."""
        found = self._look_up(probes)
        missing = {signature: probe for signature, probe in probes.items() if signature not in found}
        if missing:
            self._cache.refresh()
            found |= self._look_up(missing)
        return found

    def _look_up(self, probes: Mapping[str, Probe]) -> dict[str, Verdict]:
        found: dict[str, Verdict] = {}
        for signature, probe in probes.items():
            known = self._cache.get(signature, self.budget)
            if known is not None and known.by_constants:
                known = self._cache.get(_own_signature(probe), self.budget)
                self._by_constants.add(signature)
            if known is not None:
                found[signature] = known.verdict
        return found

    def _judge(self, probes: Sequence[Probe]) -> dict[Probe, Judgement]:
        """Judge probes that are not in the cache, after their witnesses, and add the verdicts to it.

        A large probe has the edge cases tried by its witness alone, unless that proves nothing.
        """
        if not probes:
            return {}
        large = {probe: seconds for probe in probes if (seconds := self._seconds(probe)) > _SHORT}
        witnesses = {probe: _witness(probe, self.runtime) for probe in large}
        not_run = self._beyond_budget(large, witnesses)
        by_signature = {each.signature: each for each in witnesses.values() if not isinstance(each, Skip)}
        known = {signature: Judgement(verdict) for signature, verdict in self._known(by_signature).items()}
        new = {each for signature, each in by_signature.items() if signature not in known}
        judged: dict[Probe, Judgement] = {}

        def of_witness(probe: Probe) -> Judgement | Skip:
            small = witnesses[probe]
            return small if isinstance(small, Skip) else known[small.signature]

        def judge(questions: Sequence[Question]) -> None:
            again: list[Question] = []
            without_edges = {each.probe for each in questions if each.run and not each.edge_cases}
            for batch in self._prober.judge(questions):
                known.update((each.signature, _without_untried_loop(each, batch[each])) for each in batch.keys() & new)
                for probe in batch.keys() & not_run:
                    batch[probe] = _with_witness(batch[probe], of_witness(probe))
                for probe in batch.keys() & without_edges:
                    if batch[probe].verdict.status is Status.OK and not _proves(of_witness(probe)):
                        del batch[probe]
                        again.append(Question(probe, run=True))
                batch = {probe: _without_untried_loop(probe, each) for probe, each in batch.items()}
                self._store(batch)
                judged.update(batch)
            if again:
                judge(again)

        def question(probe: Probe) -> Question:
            return Question(probe, probe not in not_run, isinstance(witnesses.get(probe, Skip("small")), Skip))

        slow = {probe for probe in not_run if compile_seconds(probe) > self.budget}
        first = [Question(each, run=True) for each in by_signature.values() if each in new]
        # the longest first, so that no core waits for the last of them; those that are only compiled take no time
        rest = sorted(
            (question(probe) for probe in probes if probe not in slow),
            key=lambda each: -large.get(each.probe, 0.0) if each.run else 0.0,
        )
        judge([*first, *rest])
        passed = {probe: _with_witness(_UNCOMPILED, of_witness(probe)) for probe in slow if _passes(of_witness(probe))}
        self._store(passed)
        judged |= passed
        judge([Question(probe, run=False) for probe in probes if probe in slow - passed.keys()])
        return judged

    def _beyond_budget(self, large: Mapping[Probe, float], witnesses: Mapping[Probe, Probe | Skip]) -> set[Probe]:
        """The probes that are not run at real size, of those that take so many seconds; the others are paid for."""
        # first those without a witness, except replacements, of which the legalizer has one
        doubted = {probe for probe, each in witnesses.items() if isinstance(each, Skip) and probe.replaces is None}
        not_run = set(large)
        for probe in sorted(large, key=lambda each: (each not in doubted, large[each])):
            if large[probe] <= self._left:
                self._left -= large[probe]
                not_run.remove(probe)
        return not_run

    def _store(self, judged: Mapping[Probe, Judgement]) -> None:
        lasting: dict[str, CachedVerdict] = {}
        for probe, each in judged.items():
            if not each.transient:
                lasting[probe.signature] = CachedVerdict(each.verdict, self.budget, each.by_constants)
                if each.by_constants or probe.signature in self._by_constants:
                    lasting[_own_signature(probe)] = CachedVerdict(each.verdict, self.budget)
        self._cache.add(lasting)

    def _seconds(self, probe: Probe) -> float:
        """The estimated seconds of a run; infinite if it would need too much memory."""
        return run_seconds(probe, self.runtime) if probe.bytes <= _RUN_BYTES else math.inf


def _witness(probe: Probe, runtime: Runtime) -> Probe | Skip:
    """The witness of a probe, if it is small."""
    if probe.replaces is not None:
        return Skip("a replacement has no witness of its own")
    found = witness(probe)
    if not isinstance(found, Skip) and run_seconds(found, runtime) > _LARGEST_WITNESS:
        return Skip("its witness is too large as well")
    return found


def _passes(small: Judgement | Skip) -> bool:
    return not isinstance(small, Skip) and small.verdict.status is Status.OK


def _proves(small: Judgement | Skip) -> bool:
    """Whether a witness was run, and is right."""
    return not isinstance(small, Skip) and (small.verdict.status, small.verdict.proof) == (Status.OK, Proof.RUN)


def _with_witness(judgement: Judgement, small: Judgement | Skip) -> Judgement:
    """The judgement of a probe that was only compiled, with that of its witness, or why there is none."""
    if judgement.verdict.status is not Status.OK:
        return judgement
    if isinstance(small, Skip):
        return _unproven(judgement, small.reason)
    verdict, transient = small.verdict, judgement.transient or small.transient
    if verdict.status is Status.REJECTED or verdict.proof is Proof.NONE:
        why = verdict.message or str(verdict.unproven)
        return _unproven(replace(judgement, transient=transient), f"its witness: {why}")
    verdict = replace(verdict, proof=Proof.WITNESS, unproven=Unproven(Obstacle.SIZE))
    return Judgement(verdict, transient, small.by_constants)


def _without_untried_loop(probe: Probe, judgement: Judgement) -> Judgement:
    """The judgement; of a Loop that was never run, that it is rejected: MIGraphX compiles some that it cannot run."""
    found = judgement.verdict
    tried = found.status is not Status.OK or found.proof is not Proof.NONE or found.unproven is None
    if tried or ("", "Loop") not in probe.operators:
        return judgement
    return replace(
        judgement, verdict=Verdict(Status.REJECTED, f"it may not run a Loop that it accepts: {found.unproven}")
    )


def _unproven(judgement: Judgement, why: str) -> Judgement:
    return replace(judgement, verdict=replace(judgement.verdict, unproven=Unproven(Obstacle.SIZE, why)))


def _own_signature(probe: Probe) -> str:
    """A signature that covers the elements of all constants as well."""
    return f"{probe.signature}-{probe.constants_digest}"


def _cache_file(runtime: Runtime, timeout: float, target: str, rehearsal: Rehearsal | None) -> Path:
    """The cache of a runtime, an environment, the code that decides on verdicts, a time limit, a target, and passes."""
    settings = sorted(item for item in os.environ.items() if item[0].startswith("MIGRAPHX_"))
    decides = f"{settings}{code_digest(__name__)}{timeout}{target}{rehearsal.key if rehearsal else ''}"
    state = hashlib.blake2b(decides.encode(), digest_size=8).hexdigest()
    identity = re.sub(r"[^\w.-]", "_", runtime.identity)
    return cache_dir() / "verdicts" / f"{identity}-{state}.jsonl"
