"""A runtime as the target of passes, which gives verdicts on probes, on large ones by their witnesses.

Verdicts are cached on disk.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.core.files.code_digest import code_digest
from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.core.progress import duration
from onnx_bridge.migraphx.rehearsal.depth import Rehearsal
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.provider.provider import Provider
from onnx_bridge.verdicts.answers import Answer
from onnx_bridge.verdicts.cache import CachedVerdict, VerdictCache, shared
from onnx_bridge.verdicts.index_tables import index_table
from onnx_bridge.verdicts.probe_request import TARGET
from onnx_bridge.verdicts.prober import Prober, Question
from onnx_bridge.verdicts.race_conditions import race_condition
from onnx_bridge.verdicts.run_time import compile_seconds, run_seconds, unrolling_seconds
from passes.core.doubts import Doubts
from passes.core.text import counted
from passes.graphs import lineage
from passes.probing.instructions import instructions
from passes.probing.node_verdicts import made_by_rule
from passes.probing.probe import Probe
from passes.probing.witness import witness
from passes.rewriting.base import Obstacle, Proof, Skip, Status, Unproven, Verdict

SECONDS = 10.0
"""The longest time limit of a probe."""
BUDGET = 2.0
"""The default budget of estimated seconds for runs at real size."""
_SHORT, _LARGEST_WITNESS = 0.05, 0.5
"""The most estimated seconds of a probe that is always run at real size, and of a witness."""
_UNCOMPILED = Answer(Verdict(Status.OK))
"""The answer on a probe that takes too long to compile, before its witness is looked at."""
LONGEST = 60.0
"""The most estimated seconds for compiling a node that MIGraphX unrolls, unless a limit is given."""
_RUN_BYTES = 512 << 20
"""The most bytes of constants, inputs and outputs of a probe that is run."""


class ProbedRuntime:
    """A runtime that probes are sent to; a `passes.rewriting.base.Target`.

    Args:
        cache: whether to use the verdicts on disk.
        progress: called as batches of probes are answered.
        timeout: the limit of each step of the verb. Parsing, compiling and running one probe, besides the estimated
            time of its run, takes no more than that, or `SECONDS`; a node that MIGraphX unrolls, and compiles as a part
            of the whole alone, no more than that, or `LONGEST`.
        budget: estimated seconds, in all, for runs at real size of probes that take longer than `_SHORT`; default:
            `BUDGET`.
        compile_for: the target of the whole model in the end; probes run on ``ref`` whatever it is.
        rehearsal: a rehearsal of the gpu target; what ``ref`` computes right must be right in it as well.
        provider: ONNX Runtime's provider; what MIGraphX computes right must be right by it as well.

    Attributes:
        rewritten: the names of nodes of the source model that are to be rewritten, whatever MIGraphX makes of them.
    """

    name = TARGET

    def __init__(
        self,
        runtime: Runtime,
        *,
        cache: bool = True,
        progress: Callable[[str], None] | None = None,
        timeout: float | None = None,
        budget: float | None = None,
        compile_for: str = TARGET,
        rehearsal: Rehearsal | None = None,
        provider: Provider | None = None,
    ) -> None:
        self.runtime = runtime
        self.rewritten: Collection[str] = ()
        self.budget = BUDGET if budget is None else budget
        self._left = self.budget
        self._longest = timeout or LONGEST
        self._timeout = timeout = min(timeout or SECONDS, SECONDS)
        self._compile_for = compile_for
        self._prober = Prober(runtime, timeout, compile_for, rehearsal, progress, provider)
        self.rehearses = rehearsal is not None
        asked = f"{rehearsal.key if rehearsal else ''}{provider.identity if provider else ''}"
        self._cache = shared(_cache_file(runtime, timeout, compile_for, asked)) if cache else VerdictCache(None)
        self._by_constants: set[str] = set()  # signatures of which other constants had another verdict
        self._cache.refresh()

    def launch(self) -> None:
        """Start the processes that are asked, if no verdicts are known: otherwise there may be nothing to ask."""
        if self._cache.is_empty:
            self._prober.launch()

    def verdicts(self, probes: Sequence[Probe]) -> list[Verdict]:
        """Return the verdict on each probe, in their order; equal probes are asked about once.

        Args:
            probes: the probes; one with a ``problem`` is rejected for that.

        Raises:
            RuntimeFailure: the runtime cannot be loaded.
        """
        clear = {probe: verdict for probe in probes if (verdict := self._clear_verdict(probe)) is not None}
        by_signature = {probe.signature: probe for probe in probes if probe not in clear}
        known = self._known(by_signature)
        new = [probe for signature, probe in by_signature.items() if signature not in known]
        known |= {probe.signature: answer.verdict for probe, answer in self._ask(new).items()}
        return [clear[probe] if probe in clear else known[probe.signature] for probe in probes]

    def _clear_verdict(self, probe: Probe) -> Verdict | None:
        """Return the verdict on a probe that need not be sent to MIGraphX; None for the others."""
        if probe.problem is not None:
            return Verdict(Status.REJECTED, probe.problem)
        if not probe.outputs:
            return Verdict(Status.OK, unproven=Unproven(Obstacle.UNUSED))
        if self.rewritten and any(map(self._is_rewritten, probe.nodes)):
            return Verdict(Status.REJECTED, "it is rewritten at real size")
        seconds = compile_seconds(probe.nodes, self.runtime)
        unrolling = unrolling_seconds(probe, self.runtime)
        if unrolling > self._longest or (not unrolling and seconds > self._timeout):
            count = counted(instructions(probe.nodes), "instruction")
            return Verdict(Status.HANGS, f"it becomes {count}, which would take about {duration(seconds)} to compile")
        race = race_condition(probe, self.runtime, self._compile_for)
        if race is not None:
            return Verdict(Status.WRONG, race)
        table = index_table(probe, self.runtime)
        return None if table is None else Verdict(Status.COSTLY, table)

    def _is_rewritten(self, node: ir.Node) -> bool:
        """Return whether a node stands for a single one of the source model that is to be rewritten, and is not yet."""
        return not made_by_rule(node) and lineage.sole_origin(node) in self.rewritten

    def _known(self, probes: Mapping[str, Probe]) -> dict[str, Verdict]:
        """Return the verdicts in the cache, of probes by signature."""
        known = self._look_up(probes)
        missing = {signature: probe for signature, probe in probes.items() if signature not in known}
        if missing:
            self._cache.refresh()
            known |= self._look_up(missing)
        return known

    def _look_up(self, probes: Mapping[str, Probe]) -> dict[str, Verdict]:
        verdicts: dict[str, Verdict] = {}
        for signature, probe in probes.items():
            cached = self._cache.get(signature, self.budget)
            if cached is not None and cached.by_constants:
                cached = self._cache.get(_own_signature(probe), self.budget)
                self._by_constants.add(signature)
            if cached is not None:
                verdicts[signature] = cached.verdict
        return verdicts

    def _ask(self, probes: Sequence[Probe]) -> dict[Probe, Answer]:
        """Ask about probes that are not in the cache, after their witnesses, and add the verdicts to it."""
        if not probes:
            return {}
        cases = {case.probe: case for case in self._cases(probes)}
        probes_of_cases = (case.witness for case in cases.values())
        witnesses = {small.signature: small for small in probes_of_cases if not isinstance(small, Skip)}
        known = {signature: Answer(verdict) for signature, verdict in self._known(witnesses).items()}
        slow = [
            case
            for case in cases.values()
            if not case.run and unrolling_seconds(case.probe, self.runtime) > self.budget
        ]
        # the longest first, so that no core waits for the last of them; those that are only compiled take no time
        rest = sorted((case for case in cases.values() if case not in slow), key=lambda case: -case.run_seconds)
        questions = [Question(small, run=True) for signature, small in witnesses.items() if signature not in known]
        answers = self._answers([*questions, *(case.question for case in rest)], cases, known)
        decided = {case.probe: case.answer(_UNCOMPILED, known) for case in slow if case.witness_passes(known)}
        self._store(decided)
        undecided = [case.question for case in slow if case.probe not in decided]
        return {**answers, **decided, **self._answers(undecided, cases, known)}

    def _answers(
        self, questions: Sequence[Question], cases: dict[Probe, _Case], known: dict[str, Answer]
    ) -> dict[Probe, Answer]:
        """Ask questions, and store the answers; those of witnesses are added to ``known``, by signature."""
        answers: dict[Probe, Answer] = {}
        while questions:
            again: list[Question] = []
            for batch in self._prober.ask(questions):
                final = {probe: _without_untried_loop(probe, answer) for probe, answer in batch.items()}
                known |= {probe.signature: answer for probe, answer in final.items() if probe not in cases}
                for probe in batch.keys() & cases.keys():
                    case = cases[probe]
                    if case.needs_edge_cases(batch[probe], known):
                        cases[probe] = replace(case, witness=Skip("the witness proves nothing"))
                        again.append(cases[probe].question)
                        del final[probe]
                    else:
                        final[probe] = case.answer(batch[probe], known)
                self._store(final)
                answers |= final
            questions = again
        return answers

    def _cases(self, probes: Sequence[Probe]) -> list[_Case]:
        """Decide how to ask about probes: those that the budget does not pay for are not run at real size."""
        cases = [self._case(probe) for probe in probes]
        large = [case for case in cases if not case.is_small]
        # first those without a witness, except replacements, of which the legalizer has one
        large.sort(key=lambda case: (case.has_witness or case.probe.replaces is not None, case.seconds))
        paid = set()
        for case in large:
            if case.seconds <= self._left:
                self._left -= case.seconds
                paid.add(case)
        return [replace(case, run=True) if case in paid else case for case in cases]

    def _case(self, probe: Probe) -> _Case:
        seconds = run_seconds(probe, self.runtime) if probe.bytes <= _RUN_BYTES else math.inf
        if seconds <= _SHORT:
            return _Case(probe, seconds, Skip("the probe is small itself"), run=True)
        return _Case(probe, seconds, _witness(probe, self.runtime), run=False)

    def _store(self, answers: Mapping[Probe, Answer]) -> None:
        lasting: dict[str, CachedVerdict] = {}
        for probe, answer in answers.items():
            if answer.transient:
                Doubts.add()
            else:
                lasting[probe.signature] = CachedVerdict(answer.verdict, self.budget, answer.by_constants)
                if answer.by_constants or probe.signature in self._by_constants:
                    lasting[_own_signature(probe)] = CachedVerdict(answer.verdict, self.budget)
        self._cache.add(lasting)


@dataclass(frozen=True, eq=False)
class _Case:
    """A probe that is not in the cache, and how it is asked about.

    Attributes:
        seconds: the estimated seconds of its run; infinite if it would need too much memory.
        witness: its witness if it is large, or why there is none.
        run: whether it is run at real size. A large one is run on edge cases only if its witness proves nothing.
    """

    probe: Probe
    seconds: float
    witness: Probe | Skip
    run: bool

    @property
    def is_small(self) -> bool:
        return self.seconds <= _SHORT

    @property
    def has_witness(self) -> bool:
        return not isinstance(self.witness, Skip)

    @property
    def run_seconds(self) -> float:
        return self.seconds if self.run and not self.is_small else 0.0

    @property
    def question(self) -> Question:
        return Question(self.probe, self.run, edge_cases=not self.has_witness)

    def needs_edge_cases(self, answer: Answer, known: Mapping[str, Answer]) -> bool:
        """Return whether a run without edge cases was right, and the witness, which has some, proves nothing."""
        if not self.run or isinstance(self.witness, Skip) or answer.verdict.status is not Status.OK:
            return False
        small = known[self.witness.signature].verdict
        return (small.status, small.proof) != (Status.OK, Proof.RUN)

    def witness_passes(self, known: Mapping[str, Answer]) -> bool:
        return not isinstance(self.witness, Skip) and known[self.witness.signature].verdict.status is Status.OK

    def answer(self, answer: Answer, known: Mapping[str, Answer]) -> Answer:
        """Return the answer on the probe; if it was only compiled, with the proof of its witness from ``known``."""
        if not self.run and answer.verdict.status is Status.OK:
            answer = self._witnessed(answer, known)
        return _without_untried_loop(self.probe, answer)

    def _witnessed(self, answer: Answer, known: Mapping[str, Answer]) -> Answer:
        if isinstance(self.witness, Skip):
            return _unproven(answer, self.witness.reason)
        small = known[self.witness.signature]
        verdict, transient = small.verdict, answer.transient or small.transient
        if verdict.status is Status.REJECTED or verdict.proof is Proof.NONE:
            why = verdict.message or str(verdict.unproven)
            return _unproven(replace(answer, transient=transient), f"the witness: {why}")
        verdict = replace(verdict, proof=Proof.WITNESS, unproven=Unproven(Obstacle.SIZE))
        return Answer(verdict, transient, small.by_constants)


def _witness(probe: Probe, runtime: Runtime) -> Probe | Skip:
    """Return the witness of a probe, if it is small enough to be run."""
    if probe.replaces is not None:
        return Skip("a replacement has no witness of its own")
    small = witness(probe)
    if not isinstance(small, Skip) and run_seconds(small, runtime) > _LARGEST_WITNESS:
        return Skip("the witness is too large as well")
    return small


def _without_untried_loop(probe: Probe, answer: Answer) -> Answer:
    """Return the answer; a rejection if a Loop was never run: MIGraphX compiles some that it cannot run."""
    verdict = answer.verdict
    tried = verdict.status is not Status.OK or verdict.proof is not Proof.NONE or verdict.unproven is None
    if tried or ("", "Loop") not in probe.operators:
        return answer
    message = f"MIGraphX may not run a Loop that it accepts: {verdict.unproven}"
    return replace(answer, verdict=Verdict(Status.REJECTED, message))


def _unproven(answer: Answer, why: str) -> Answer:
    return replace(answer, verdict=replace(answer.verdict, unproven=Unproven(Obstacle.SIZE, why)))


def _own_signature(probe: Probe) -> str:
    """Return a signature that covers the elements of all constants as well."""
    return f"{probe.signature}-{probe.constants_digest}"


def _cache_file(runtime: Runtime, timeout: float, target: str, asked: str) -> Path:
    """Return the cache file for a runtime, an environment, the code that decides on verdicts, and its settings."""
    settings = sorted(item for item in os.environ.items() if item[0].startswith("MIGRAPHX_"))
    decides = f"{settings}{code_digest(__name__)}{timeout}{target}{asked}"
    state = hashlib.blake2b(decides.encode(), digest_size=8).hexdigest()
    identity = re.sub(r"[^\w.-]", "_", runtime.identity)
    return cache_dir() / "verdicts" / f"{identity}-{state}.jsonl"
