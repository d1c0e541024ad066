"""A failure that depends on the state of the machine is never kept: once it is gone, the next attempt is right."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import onnx_bridge
from onnx_bridge.batch.failure import Failure, exceeded_limit
from onnx_bridge.batch.run_history import BundleChecked, RunHistory
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.proof import BundleProof, together
from onnx_bridge.core.errors import BridgeError, OutOfMemory, WorkerCrashed, WorkerTimeout
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.provider import server as provider_server
from onnx_bridge.reference import server
from onnx_bridge.reference.reference import SERVER
from onnx_bridge.search.pareto import Candidate, Trial
from onnx_bridge.search.tune import _Search
from onnx_bridge.search.tuning_journal import Journal
from onnx_bridge.verdicts.answers import answer_of
from onnx_bridge.verdicts.probe_request import ProbeRequest
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.cleanup.fold_constants import FoldConstants
from passes.core.doubts import Doubts, cached
from passes.evaluation import constant_session, output_types
from passes.graphs.scopes import Scope, name_nodes
from passes.isolation import value_messages, worker
from passes.isolation.failure import NativeFailure
from passes.isolation.limits import Limits
from passes.isolation.process import Child, ChildFailure, Reason
from passes.probing.probe import Probe
from passes.rewriting.base import Context, Obstacle, Proof, Status
from passes.shapes import inference, onnx_inference
from tests.passes.helpers import tiny

FAILURES = {
    "timeout": ChildFailure(Reason.TIMEOUT, ""),
    "memory": ChildFailure(Reason.MEMORY, ""),
    "crash": ChildFailure(Reason.DIED, "", -signal.SIGSEGV),
    "killed": ChildFailure(Reason.DIED, "", -signal.SIGKILL),
    "start": OSError(errno.EAGAIN, "Resource temporarily unavailable"),
    "disk": OSError(errno.ENOSPC, "No space left on device"),
}


class Fault:
    """Lets the processes of ONNX Runtime fail as long as it is set."""

    def __init__(self, failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_set, exchange = True, Child.exchange

        def fail(child: Child, message: Any, *args: Any, **keywords: Any) -> Any:
            if self.is_set and message.get("module") and "request" in message:
                raise failure
            return exchange(child, message, *args, **keywords)

        monkeypatch.setattr(Child, "exchange", fail)


@pytest.fixture(params=FAILURES)
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fault:
    monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path / "cache"))
    return Fault(FAILURES[request.param], monkeypatch)


def probe(text: str) -> Probe:
    model = tiny(text)
    inference.infer(model)
    scope = Scope(model, model.graph)
    name_nodes(scope)
    return Probe.of(list(model.graph), scope)


def test_a_verdict(runtime: Runtime, fault: Fault) -> None:
    erf = probe("(float[2,3] x) => (y) { y = Erf(x) }")
    target = ProbedRuntime(runtime)
    (verdict,) = target.verdicts([erf])
    assert (verdict.proof, verdict.unproven and verdict.unproven.obstacle) == (Proof.NONE, Obstacle.REFERENCE)
    fault.is_set = False
    for again in (target, ProbedRuntime(runtime)):
        (verdict,) = again.verdicts([erf])
        assert (verdict.status, verdict.proof) == (Status.OK, Proof.RUN)


def test_the_proof_of_a_bundle(runtime: Runtime, fault: Fault, tmp_path: Path) -> None:
    """Nor is its cleaned model taken for the next conversion, whose nodes may have other verdicts."""
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Erf(x) }'
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")

    def convert() -> Bundle:
        path, out = tmp_path / "m.onnx", tmp_path / "out"
        return onnx_bridge.convert(path, out, target="ref", runtime=str(runtime.path))

    first = convert().manifest
    assert first.proof.level is Proof.NONE
    assert not first.is_proven_for("never")
    fault.is_set = False
    again = convert().manifest
    assert again.proof.level is Proof.RUN
    assert again.is_proven_for("auto")
    assert "reuse" not in again.timings
    assert convert().is_kept


def test_a_fold(fault: Fault) -> None:
    """What is not bounded is computed in a process, whose failure is no property of the node."""
    model = tiny("(float[3] x) => (y) { s = Unique(c) y = Add(x, s) }", c=np.array([3, 1, 2], np.float32))
    doubts = Doubts()
    with contextlib.suppress(NativeFailure):
        FoldConstants().run(model, Context())
    assert doubts
    assert [node.op_type for node in model.graph] == ["Unique", "Add"]
    fault.is_set = False
    FoldConstants().run(model, Context())
    assert [node.op_type for node in model.graph] == ["Add"]


def test_sizes(fault: Fault) -> None:
    """Without ONNX's inference in a process, nothing is propagated; the sizes are there the next time."""
    proto = ir.to_proto(tiny("(float[3,4] x) => (y) { s = Shape(x) y = ConstantOfShape(s) }"))
    doubts = Doubts()
    with contextlib.suppress(NativeFailure, onnx.shape_inference.InferenceError):
        onnx_inference.infer_limited(proto, True, isolated=True)
    assert doubts
    fault.is_set = False
    inferred = onnx_inference.infer_limited(proto, True, isolated=True)
    assert [dim.dim_value for dim in inferred.graph.output[0].type.tensor_type.shape.dim] == [3, 4]


def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    own, doubts = worker.Worker(), Doubts()

    def refuse() -> Child:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    for failing in (refuse, lambda: Child("no_such_module_for_tests")):
        own._child._spawn = failing
        with pytest.raises(NativeFailure) as caught:
            own.call(SERVER, {}, limits=Limits())
        assert caught.value.reason is Reason.START
        assert Failure.of(caught.value, "load").transient
    assert doubts


@pytest.mark.parametrize("by_onnx", [False, True])
@pytest.mark.parametrize("do", ["evaluate", "run file"])
def test_the_reference_has_no_memory(do: str, by_onnx: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its process ends, and does not answer that there is no reference, nor ask ONNX's evaluator instead."""
    proto = ir.to_proto(tiny("(float[2] x) => (float[2] y) { y = Neg(x) }"))
    onnx.save(proto, tmp_path / "m.onnx")
    entries, arrays = value_messages.pack([{"x": np.ones(2, np.float32)}])
    arrays["model"] = value_messages.from_bytes(proto.SerializeToString())
    request = {"do": do, "by_onnx": by_onnx, "samples": entries, "path": str(tmp_path / "m.onnx"), "shapes": {}}

    def run(*_: Any, **__: Any) -> Any:
        raise MemoryError if by_onnx else RuntimeError("Failed to allocate memory for requested buffer of size 8")

    monkeypatch.setattr(ReferenceEvaluator if by_onnx else onnxruntime.InferenceSession, "run", run)
    with pytest.raises(MemoryError):
        server.answer(request, arrays)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("Failed to allocate memory for requested buffer")])
@pytest.mark.parametrize("process", [constant_session, output_types, provider_server])
def test_a_session_has_no_memory(process: Any, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """That a constant is not folded, a type not inferred or a node not claimed would be kept as facts."""

    def opened(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(onnxruntime, "InferenceSession", opened)
    model = value_messages.from_bytes(
        ir.to_proto(tiny("(float[2] x) => (float[2] y) { y = Neg(x) }")).SerializeToString()
    )
    request = {"do": "open", "drop": [], "outputs": ["y"], "optimization": 0, "severity": 4, "providers": []}
    request |= {"entries": {}, "dims": {}}
    with pytest.raises(MemoryError):
        process.answer(request, {"model": model})


ERROR = {"what": "std::bad_alloc", "out_of_memory": True, "not_emulated": False}


@pytest.mark.parametrize(
    ("reply", "transient"),
    [
        ({"error": ERROR, "printed": ""}, True),
        ({"died": -signal.SIGABRT, "printed": "terminate called: std::bad_alloc"}, True),
        ({"died": -signal.SIGKILL, "printed": ""}, True),
        ({"timeout": 2.0, "idle": True}, True),
        ({"timeout": 2.0, "idle": False}, False),
        ({"died": -signal.SIGSEGV, "printed": ""}, False),
        ({"error": {**ERROR, "out_of_memory": False}, "printed": ""}, False),
    ],
    ids=str,
)
def test_what_migraphx_lacks(reply: dict[str, Any], transient: bool) -> None:
    request = ProbeRequest(probe("(float[2,3] x) => (y) { y = Erf(x) }"), b"", True)
    assert answer_of(request, reply, {}).transient == transient
    assert answer_of(dataclasses.replace(request, in_doubt=True), reply, {}).transient


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (lambda: OutOfMemory("compile needs more"), "memory"),
        (lambda: WorkerTimeout("compile takes longer"), "timeout"),
        (lambda: WorkerCrashed("compile", returncode=-signal.SIGKILL), None),
        (lambda: NativeFailure("ONNX Runtime", Limits(1.0), ChildFailure(Reason.TIMEOUT, "")), "timeout"),
    ],
    ids=["memory", "timeout", "killed", "reference"],
)
def test_errors_are_doubts(make: Callable[[], BridgeError], limit: str | None) -> None:
    doubts = Doubts()
    assert not doubts
    assert exceeded_limit(make()) == limit
    assert doubts


def test_results_in_memory() -> None:
    calls = []

    @cached()
    def measure(number: int) -> int:
        calls.append(number)
        if len(calls) == 1:
            Doubts.add()
        return len(calls)

    assert [measure(5), measure(5), measure(5)] == [1, 2, 2]


def test_a_comparison_in_a_batch() -> None:
    history = RunHistory()
    history.add(BundleChecked("m", "", False, "differs"))
    assert history.check(None) is None


def test_a_trial_of_a_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A trial, and the nodes to keep in float32, are in the journal only if nothing failed by chance meanwhile."""
    first = Candidate("fp16", {}, "default", buckets={})
    trials = [Trial(first, 1.0, "it does not convert"), Trial(first, 1.0, latency=1.0)]

    class Unlucky:
        def run(self, _candidate: Candidate) -> Trial:
            if len(trials) == 2:
                Doubts.add()
            return trials.pop(0)

    for expected in (0.0, 1.0, 1.0):
        journal = Journal(tmp_path / "journal.jsonl", "key", True)
        search = _Search(Unlucky(), journal, [first], 100.0, time.monotonic, lambda _: None)  # type: ignore[arg-type]
        search.run()
        assert [trial.latency for trial in search.done] == [expected]
    assert not trials


def test_together() -> None:
    assert together({"a": BundleProof(), "b": BundleProof(in_doubt=True)}).in_doubt
