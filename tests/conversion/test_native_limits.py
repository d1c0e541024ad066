"""Models on which ONNX Runtime never ends, takes all memory, or crashes: one typed error of every verb, in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_bridge
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference import evaluations
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.batch import JobRequest
from onnx_bridge.requests.conversion import ConvertRequest
from passes.isolation import limits
from passes.isolation.failure import NativeFailure
from passes.isolation.limits import Limits, limited
from passes.isolation.process import Reason
from tests.batch.requests import convert_all

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
LOOP = """
    true = Constant <value = bool {{1}}> ()
    z = Loop (, true, {first}) <body = b (int64 i, bool c, float[N] v) => (bool d, float[M] w) {{
        d = Identity(c)
        w = {step}
    }}>
    y = ReduceSum <keepdims = 0> (z)
"""
ENDLESS, GROWING = "Neg(v)", "Concat <axis = 0> (v, v)"
OVERFLOW = """
    i = Cast <to = 7> (x)
    zero = Sub (i, i)
    least = Constant <value = int64 {-9223372036854775808}> ()
    m = Add (zero, least)
    k = Constant <value = int64 {-1}> ()
    d = Div (m, k)
    y = Cast <to = 1> (d)
"""


def model(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEAD} g (float[2, 2] x, float[4] a, float s) => (float[P] y) {{ {body} }}")


def loop(step: str, *, constant: bool) -> onnx.ModelProto:
    first = "k = Constant <value = float[4] {1, 2, 3, 4}> ()" if constant else "k = Neg(a)"
    proto = model(first + LOOP.format(first="k", step=step))
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    del proto.graph.input[2], proto.graph.input[0]
    if constant:
        proto.graph.node.add(op_type="Add", input=["y", "a"], output=["r"])
        proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("r", 1, [4]))
    return proto


def crash() -> onnx.ModelProto:
    """ONNX Runtime ends the process: the processor traps the quotient, which int64 cannot hold."""
    proto = model(OVERFLOW)
    del proto.graph.input[1:]
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", 1, [2, 2]))
    return proto


MODELS = {
    "endless": (loop(ENDLESS, constant=False), Reason.TIMEOUT),
    "growing": (loop(GROWING, constant=False), Reason.MEMORY),
    "crash": (crash(), Reason.DIED),
}
LIMITS = {"timeout": 2.0, "memory": 1.0}
A = np.ones(4, np.float32)


def sample(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {
        value.name: np.ones([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32)
        for value in proto.graph.input
    }


@pytest.mark.parametrize("name", MODELS)
def test_a_reference_ends_and_the_next_one_works(name: str) -> None:
    """Also one that was opened before: its session is opened again."""
    proto, reason = MODELS[name]
    other = onnx.parser.parse_model(f"{HEAD} g (float[4] a) => (float[4] y) {{ y = Neg(a) }}")
    before = Reference(other.SerializeToString())
    with limited(Limits.of(20.0 if reason is Reason.MEMORY else 2.0, 1.0)), pytest.raises(NativeFailure) as caught:
        Reference(proto.SerializeToString()).run(sample(proto))
    assert caught.value.reason is reason
    assert caught.value.exit_code == 3
    np.testing.assert_array_equal(before.run({"a": A})["y"], -A)
    del before
    np.testing.assert_array_equal(Reference(other.SerializeToString()).run({"a": A})["y"], -A)


@pytest.mark.parametrize(("step", "reason"), [(ENDLESS, Reason.TIMEOUT), (GROWING, Reason.MEMORY)])
def test_folding_ends(tmp_path: Path, step: str, reason: Reason) -> None:
    onnx.save(loop(step, constant=True), tmp_path / "m.onnx")
    with pytest.raises(NativeFailure, match="Loop") as caught:
        onnx_bridge.clean(tmp_path / "m.onnx", timeout=2.0 if reason is Reason.TIMEOUT else 20.0, memory=1.0)
    assert caught.value.reason is reason


def test_what_crashes_is_not_folded(tmp_path: Path) -> None:
    proto = crash()
    for value in list(proto.graph.input):
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), value.name))
        proto.graph.input.remove(value)
    onnx.save(proto, tmp_path / "m.onnx")
    cleaned = onnx_bridge.clean(tmp_path / "m.onnx")
    assert [node.op_type for node in cleaned.model.graph] == ["Div", "Cast"]
    assert any("SIGFPE" in skip.reason for step in cleaned.steps for skip in step.result.skips)


@pytest.mark.runtime
@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "name"),
    [
        *((verb, "endless") for verb in ("doctor", "convert", "check", "bisect")),
        ("check", "growing"),
        ("check", "crash"),
    ],
)
def test_every_verb_ends(runtime: Runtime, tmp_path: Path, verb: str, name: str) -> None:
    """With an error, or with a result that does not need what never ends: a bundle without a proof, a diagnosis."""
    path = tmp_path / "m.onnx"
    onnx.save(MODELS[name][0], path)
    arguments = [] if verb == "doctor" else ["-o", str(tmp_path / "out")] if verb == "convert" else []
    if verb != "doctor":
        arguments += ["--target", "ref"]
    done = run(verb, str(path), *arguments)
    assert done.returncode in (0, 1, 2, 3), done.stderr
    assert "Traceback" not in done.stderr
    assert "this is a defect" not in done.stderr.replace("this is a defect of the library", "")
    if verb in ("check", "bisect"):
        assert done.returncode == 3, done.stdout
        assert json.loads(done.stdout)["error"]["kind"] == "NativeFailure"


def test_the_sum_of_limits_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several steps meet the node that never ends; a limit of the user's is kept."""
    monkeypatch.setattr(evaluations, "_SECONDS", 1.0)
    monkeypatch.setattr(limits, "_ALLOWED", 2.5)
    monkeypatch.setattr(limits, "_LEAST", 0.1)
    proto = loop(ENDLESS, constant=False)
    with limited(Limits()):
        for left in (1.5, 0.5, 0.1, 0.1):
            with pytest.raises(NativeFailure):
                evaluations.evaluate(proto.SerializeToString(), [sample(proto)])
            assert limits.current(600).timeout == pytest.approx(left)
        with limited(Limits(timeout=7.0)):
            assert limits.current(600).timeout == 7.0
    assert limits.current(600).timeout == 600


@pytest.mark.runtime
def test_a_batch_goes_on(runtime: Runtime, tmp_path: Path) -> None:
    onnx.save(loop(ENDLESS, constant=True), tmp_path / "a.onnx")
    onnx.save(onnx.parser.parse_model(f"{HEAD} g (float[4] a) => (float[4] y) {{ y = Neg(a) }}"), tmp_path / "b.onnx")
    request = JobRequest(ConvertRequest(target="ref", timeout=5.0))
    failed, converted = convert_all([tmp_path / "a.onnx", tmp_path / "b.onnx"], tmp_path / "out", request).jobs
    assert failed.error is not None
    assert failed.error.kind == "NativeFailure"
    assert not converted.failed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_verb(tmp_path: Path, number: signal.Signals) -> None:
    onnx.save(loop(ENDLESS, constant=True), tmp_path / "m.onnx")
    command = [sys.executable, "-m", "onnx_bridge", "clean", str(tmp_path / "m.onnx"), "--dry-run", "--timeout", "300"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None and seconds_of_children(process.pid) < 4:  # it is past its imports
            time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(20) == (130 if number == signal.SIGINT else 128 + number)


def seconds_of_children(process: int) -> float:
    """The processor time that the children of a process have used."""
    found = 0.0
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        found += int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11]) / os.sysconf("SC_CLK_TCK")
    return found


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    limits = ["--timeout", "2", "--memory", "1", "--json"]
    command = [sys.executable, "-m", "onnx_bridge", *arguments, *limits]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)
