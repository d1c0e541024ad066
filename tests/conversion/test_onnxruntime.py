"""`convert --for onnxruntime`: sessions of the real provider that open, are right, and find their programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from onnx import numpy_helper, parser

import onnx_bridge
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.files.verify import verify
from onnx_bridge.conversion.serving import placing
from onnx_bridge.conversion.serving.trial import Trial
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.provider.provider import (
    CACHE_OPTION,
    MIGRAPHX,
    Provider,
    ProviderError,
    Session,
    SessionOptions,
    shared,
)
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.reference import Reference
from passes.isolation.failure import NativeFailure
from passes.rewriting.base import Proof

HEAD = '<ir_version: 8, opset_import: ["": 17]> g '
NETWORK = HEAD + (
    "(float[N,3,8,8] x) => (float[N,4] y, float z) { c = Conv(x, w) r = Relu(c) p = GlobalAveragePool(r)"
    " f = Flatten(p) y = Gemm(f, v) z = ReduceMean<keepdims = 0>(y) }"
)
FAILING = {
    "an attribute that its parser refuses": HEAD.replace("17", "18")
    + "(float[1,1,4,4] x) => (float[1,1,7,9] y) { n = Constant<value = int64[4] {1, 1, 7, 9}>()"
    ' y = Resize<mode = "linear", keep_aspect_ratio_policy = "stretch">(x, , , n) }',
    "sizes that depend on data": HEAD + "(float[1,6,4] b, float[1,1,6] c) => (int64[K,3] y) {"
    " n = Constant<value = int64[1] {3}>() t = Constant<value = float[1] {0.5}>() y = NonMaxSuppression(b, c, n, t) }",
    "a branch": HEAD + "(float[3,3] x) => (float[3,3] y) { a = MatMul(x, x) r = ReduceSum<keepdims = 0>(a)"
    " k = Greater(r, q) y = If(k)<then_branch = t () => (float[3,3] o) { o = Sigmoid(a) },"
    " else_branch = u () => (float[3,3] p) { p = MatMul(a, a) }> }",
    "a loop": HEAD + "(float[3,3] x, int64 n) => (float[3,3] y) { k = Constant<value = bool {1}>()"
    " y = Loop(n, k, x)<body = l (int64 i, bool c, float[3,3] v) => (bool d, float[3,3] w) {"
    " d = Identity(c) w = MatMul(v, x) }> }",
    "strings": HEAD.replace("17", "20")
    + "(string s, float[2] x) => (string t, float[2] y) { t = StringConcat(s, s) y = Exp(x) }",
    "an old opset": HEAD.replace("17", "9") + "(float[2,3] x) => (float[2,3] y) { y = Elu(x) }",
}


def written(text: str, path: Path) -> Path:
    model = parser.parse_model(text)
    random = np.random.default_rng(0)
    for name, shape in {"w": (4, 3, 3, 3), "u": (4, 4, 3, 3), "v": (4, 4), "q": ()}.items():
        if any(name in node.input for node in model.graph.node):
            array = random.standard_normal(shape).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    onnx.save(model, path)
    return path


def test_a_network_becomes_sessions_that_find_their_programs(runtime: Runtime, tmp_path: Path) -> None:
    model = written(NETWORK, tmp_path / "net.onnx")
    bundle = onnx_bridge.convert(model, tmp_path / "out", application="onnxruntime", buckets={"N": [1, 2]})
    assert bundle.proof.level is Proof.RUN
    for program in bundle.manifest.programs:
        (partition,) = program.partitions
        assert partition.session is not None and partition.session.nodes >= 5
        assert partition.session.calls == {"load": partition.session.programs, "parse": 0, "compile": 0}
    settings = json.loads((bundle.path / "session.json").read_text())
    assert [entry["inputs"]["x"][0] for entry in settings["models"]] == [1, 2]
    (cache := tmp_path / "cache").mkdir()
    file = bundle.path / settings["models"][1]["model"]
    options = SessionOptions(provider={CACHE_OPTION: str(cache)})
    sample = {"x": np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)}
    first = shared(runtime=runtime).session(file, options).run(sample)
    again = shared(runtime=runtime).session(file, options)
    outputs = again.run(sample)
    assert (again.calls["parse"], again.calls["compile"]) == (0, 0) and again.calls["load"] >= 1
    assert all(np.array_equal(outputs[name], first[name]) for name in first) and outputs["z"].shape == ()
    assert onnx_bridge.check(bundle).passed
    assert verify(bundle.path).passed


@pytest.mark.parametrize(
    "after",
    [
        "f = Flatten(e) n = NonZero(f) g = Cast<to = 1>(n) z = ReduceSum<keepdims = 0>(g)",
        "z = ReduceSum<keepdims = 0>(e)",
        "h = Hardmax(e) k = Mul(h, e) z = ReduceSum<keepdims = 0>(k)",
    ],
)
def test_convolutions_stay_on_the_provider_beside_nodes_that_do_not(
    runtime: Runtime, tmp_path: Path, after: str
) -> None:
    text = HEAD + (
        "(float[1,3,32,32] x) => (float[1,4,28,28] y, float z) {"
        f" a = Conv(x, w) b = Relu(a) c = Conv(b, u) d = Softplus(c) e = Shrink(d) {after} y = Exp(d) }}"
    )
    bundle = onnx_bridge.convert(written(text, tmp_path / "net.onnx"), tmp_path / "out", application="onnxruntime")
    (partition,) = bundle.program.info.partitions
    assert partition.session is not None and partition.session.nodes >= 4 and partition.session.programs >= 1
    assert partition.session.calls["parse"] == 0 and bundle.proof.level is Proof.RUN


def test_other_weights_have_another_name(runtime: Runtime, tmp_path: Path) -> None:
    model = written(NETWORK, tmp_path / "net.onnx")
    names = set()
    for scale in (1, 2):
        changed = onnx.load(model)
        tensor = changed.graph.initializer[0]
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * scale, tensor.name))
        onnx.save(changed, model)
        out = tmp_path / f"out{scale}"
        onnx_bridge.convert(model, out, application="onnxruntime", dims={"N": 1})
        names |= {path.name for path in out.glob("*.onnx")}
    assert len(names) == 2


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests to the provider's process: ``open``, ``run``."""
    kinds, ask = [], Provider._request

    def noted(self: Provider, request: Mapping[str, Any], *arguments: Any) -> Any:
        kinds.append(request["do"])
        return ask(self, request, *arguments)

    monkeypatch.setattr(Provider, "_request", noted)
    return kinds


def test_other_shared_weights_have_another_name(runtime: Runtime, tmp_path: Path) -> None:
    names = []
    for seed in (0, 1, 1):
        model = parser.parse_model(HEAD + "(float[N,192] x) => (float[N,192] y) { y = MatMul(x, w) }")
        weights = np.random.default_rng(seed).standard_normal((192, 192)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
        onnx.save(model, tmp_path / "m.onnx")
        bundle = onnx_bridge.convert(
            tmp_path / "m.onnx", tmp_path / "out", application="onnxruntime", buckets={"N": [1, 2]}
        )
        assert (bundle.path / "m.onnx.data").exists() and onnx_bridge.check(bundle).passed
        names.append({path.name for path in bundle.path.glob("N=*.onnx")})
    assert len(names[0] | names[1]) == 4 and names[1] == names[2]


def test_a_warm_conversion_opens_two_sessions_and_runs_once(
    runtime: Runtime, tmp_path: Path, requests: list[str]
) -> None:
    text = HEAD + "(float[N,4] x) => (float[N,4] y) { a = MatMul(x, v) b = Erf(a) y = Exp(b) }"
    model = written(text, tmp_path / "net.onnx")
    for _ in range(2):
        requests.clear()
        bundle = onnx_bridge.convert(model, tmp_path / "out", application="onnxruntime", dims={"N": 1}, reuse=False)
    assert requests == ["open", "open", "run"] and bundle.proof.level is Proof.RUN


def test_what_sessions_have_taught_is_known_for_the_same_content(
    runtime: Runtime, tmp_path: Path, requests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Trial.difference

    def difference(self: Trial, session: Session, **options: Any) -> str | None:
        planted = any(node.op_type == "Sigmoid" for node in session.on_provider)
        return "planted" if planted else right(self, session, **options)

    monkeypatch.setattr(Trial, "difference", difference)
    monkeypatch.setattr(placing, "cache_dir", lambda: tmp_path / "cache")
    text = HEAD + (
        "(float[1,3,32,32] x) => (float[1,4,28,28] y) { a = Conv(x, w) b = Conv(a, u) c = Sigmoid(b) y = Exp(c) }"
    )
    model, opened = written(text, tmp_path / "net.onnx"), []
    for change in ("", "", "weights", ""):
        if change:
            changed = onnx.load(model)
            numbers = numpy_helper.to_array(changed.graph.initializer[0])
            changed.graph.initializer[0].CopyFrom(numpy_helper.from_array(numbers * 2, "w"))
            onnx.save(changed, model)
        requests.clear()
        bundle = onnx_bridge.convert(model, tmp_path / "out", application="onnxruntime", reuse=False)
        opened.append(requests.count("open"))
        session = bundle.program.info.partitions[0].session
        assert bundle.proof.level is Proof.RUN and session is not None and session.nodes >= 4
    assert opened[1] == opened[3] == 2 and min(opened[0], opened[2]) > 4


def test_a_model_too_large_to_run_is_placed_and_has_a_witness_of_the_provider(
    runtime: Runtime, tmp_path: Path, requests: list[str]
) -> None:
    model = written(HEAD + "(float[N,2,1024] x) => (float[N,2,1024] y) { y = Erf(x) }", tmp_path / "net.onnx")
    options = {"dims": {"N": 4096}, "prove_budget": 0.5}
    bundle = onnx_bridge.convert(model, tmp_path / "out", application="onnxruntime", **options)
    assert bundle.proof.level is Proof.WITNESS
    assert requests.count("run") and requests[-5:].count("open") >= 2  # by the witness
    assert bundle.program.info.partitions[0].session is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(float[3,5] x) => (float[3,5] y, float s) { y = Shrink(x) s = ReduceSum<keepdims = 0>(y) }", "(1,)"),
        ("(float[3,5] x, int64[3] t) => (float l) { l = NegativeLogLikelihoodLoss(x, t) }", "(1,)"),
        ("(float[3,5] x) => (int64[2,N] y) { z = Relu(x) y = NonZero(z) }", "NonZero"),
        ("(float[3,5] x) => (float[K] y) { z = Exp(x) y = Unique(z) }", "Unique"),
    ],
)
def test_what_stays_on_the_cpu_has_a_reason(runtime: Runtime, tmp_path: Path, text: str, reason: str) -> None:
    model = written(HEAD + text, tmp_path / "model.onnx")
    bundle = onnx_bridge.convert(model, tmp_path / "out", application="onnxruntime")
    (file,) = bundle.path.glob("*.onnx")
    session, names = shared(runtime=runtime).session(file), {node.name for node in onnx.load(file).graph.node}
    on_cpu = {node.name for node in session.nodes if node.provider != MIGRAPHX} & names
    assert on_cpu == {node.node for node in bundle.program.info.partitions[0].host}
    assert reason in bundle.manifest.host_reasons() and bundle.proof.level is Proof.RUN


def test_the_provider_is_named_if_it_is_the_judge(runtime: Runtime, tmp_path: Path) -> None:
    model = written(HEAD + "(float[3] x) => (bool[3] y) { y = IsNaN(x) }", tmp_path / "model.onnx")
    (node,) = onnx_bridge.doctor(model, application="onnxruntime").nodes
    assert node.judge in node.reason and "provider" in node.judge and node.action == "rewritten"
    assert onnx_bridge.convert(model, tmp_path / "whole", application="onnxruntime").manifest.host_reasons() == ""
    bundle = onnx_bridge.convert(model, tmp_path / "out", application="onnxruntime", pipeline="none")
    assert f"{node.judge} rejects it" in bundle.manifest.host_reasons()


@pytest.mark.parametrize(
    ("inner", "programs"),
    [
        ("b = MatMul(a, z) c = MatMul(b, z) o = Tanh(c)", 3),
        ("s = ReduceSum<keepdims = 0>(x) b = MatMul(a, z) c = MatMul(b, z) o = Mul(c, s)", 1),
        ("s, i = Unique(x) r = Size(s) b = MatMul(a, z) c = MatMul(b, z) f = Cast<to = 1>(r) o = Mul(c, f)", 1),
    ],
)
def test_branches_stay_on_the_provider_if_all_in_them_is_right(
    runtime: Runtime, tmp_path: Path, inner: str, programs: int
) -> None:
    text = HEAD + (
        "(float[30,64] x, float[64,64] z) => (float[30,64] y) { m = ReduceSum<keepdims = 0>(x) k = Greater(m, q)"
        f" y = If(k)<then_branch = t () => (float[30,64] o) {{ a = MatMul(x, z) {inner} }},"
        " else_branch = u () => (float[30,64] p) { d = MatMul(x, z) p = Exp(d) }> }"
    )
    model = written(text, tmp_path / "model.onnx")
    bundle = onnx_bridge.convert(model, tmp_path / "out", application="onnxruntime")
    (partition,) = bundle.program.info.partitions
    assert partition.session is not None and partition.session.programs == programs
    assert partition.session.calls == {"load": programs, "parse": 0, "compile": 0}
    (file,) = bundle.path.glob("*.onnx")
    session, reference = shared(runtime=runtime).session(file), Reference(model)
    numbers = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32) / 8
    for sign in (1, -1):
        sample = {"x": sign * np.abs(numbers[:30]), "z": numbers}
        assert compare(session.run(sample), reference.run(sample)).passed


@pytest.mark.parametrize("case", FAILING)
def test_what_fails_raw_gets_a_session_that_is_right(runtime: Runtime, tmp_path: Path, case: str) -> None:
    model = written(FAILING[case], tmp_path / "model.onnx")
    bundle = onnx_bridge.convert(model, tmp_path / "out", application="onnxruntime")
    assert bundle.proof.level is Proof.RUN and onnx_bridge.check(bundle).passed


RUN = "import numpy as np, runpy\nrun = runpy.run_path('run.py', run_name='__main__')['run']\n"


def test_the_lines_of_python_run_and_a_filled_cache_outlives_another_conversion(
    runtime: Runtime, tmp_path: Path, with_wheel: Callable[[str, Path], CompletedProcess[str]]
) -> None:
    mean = HEAD + "(float[N,3] x) => (float[1,3] y) { y = ReduceMean<axes = [0]>(x) }"  # padding would change it
    model = written(mean, tmp_path / "mean.onnx")

    def converted(*sizes: int) -> Bundle:
        return onnx_bridge.convert(model, tmp_path / "out", application="onnxruntime", buckets={"N": sizes})

    bundle = converted(2, 4)
    lines = RUN + "for n in (2, 4): print(run({'x': np.arange(3. * n, dtype='f').reshape(n, 3)})['y'].tolist())\n"
    lines += "try: run({'x': np.zeros([3, 3], 'f')})\nexcept KeyError: print('refused')"
    said = ["sessions: 2, programs in cache/: 2", "[[1.5, 2.5, 3.5]]", "[[4.5, 5.5, 6.5]]", "refused"]
    assert (ran := with_wheel(lines, bundle.path)).stdout.splitlines() == said, ran.stderr
    with pytest.raises(InputError):
        bundle({"x": np.zeros([3, 3], np.float32)})
    assert onnx_bridge.check(bundle).passed
    without = subprocess.run([sys.executable, "run.py"], cwd=bundle.path, capture_output=True, text=True, check=False)
    assert without.returncode == 1 and len(without.stderr.splitlines()) == 1  # its ONNX Runtime has no such provider
    before = {path: path.stat().st_mtime_ns for path in (bundle.path / "cache").iterdir()}
    assert len(before) == 3
    assert verify(converted(2, 4, 8).path).passed is False  # the cache has programs for two sizes of three
    assert verify(converted(2, 4).path).passed
    assert before == {path: path.stat().st_mtime_ns for path in (bundle.path / "cache").iterdir()}
    written(mean.replace("Mean", "Max"), model)
    assert not (converted(2, 4).path / "cache").exists()


def test_an_input_chooses_a_session_by_its_value(
    runtime: Runtime, tmp_path: Path, with_wheel: Callable[[str, Path], CompletedProcess[str]]
) -> None:
    text = HEAD + "(bool k, float[2,3] x) => (float[M,3] y) { y = If(k)<then_branch = t () => (float[2,3] o)"
    text += " { o = Neg(x) }, else_branch = u () => (float[4,3] p) { p = Concat<axis = 0>(x, x) }> }"
    bundle = onnx_bridge.convert(written(text, tmp_path / "m.onnx"), tmp_path / "out", application="onnxruntime")
    lines = (
        RUN + "for k in (True, False): print(run({'k': np.array(k), 'x': np.ones([2, 3], 'f')})['y'][:, 0].tolist())"
    )
    said = ["sessions: 2, programs in cache/: 2", "[-1.0, -1.0]", "[1.0, 1.0, 1.0, 1.0]"]
    assert (ran := with_wheel(lines, bundle.path)).stdout.splitlines() == said, ran.stderr


TRITON = {
    "ModelConfig": "name:string backend:string max_batch_size:int32 default_model_filename:string"
    " input:Tensor* output:Tensor* optimization:Policy",
    "Tensor": "name:string data_type:DataType dims:int64* reshape:Reshape",
    "Reshape": "shape:int64*",
    "Policy": "graph:Graph execution_accelerators:Accelerators",
    "Graph": "level:int32",
    "Accelerators": "gpu_execution_accelerator:Accelerator*",
    "Accelerator": "name:string",
}
"""The members of Triton's model_config.proto (tritonclient 2.73) that are used, and some of its data types."""


def parsed(config: str) -> Any:
    """Parse a configuration as Triton does; raises `text_format.ParseError`."""
    file = descriptor_pb2.FileDescriptorProto(name="model_config.proto", package="t", syntax="proto3")
    types = file.enum_type.add(name="DataType").value
    for number, name in enumerate(["INVALID", "FP32", "FP16", "INT64", "STRING"]):
        types.add(name=f"TYPE_{name}", number=number)
    for message, fields in TRITON.items():
        described = file.message_type.add(name=message)
        for number, (name, kind) in enumerate((text.split(":") for text in fields.split()), 1):
            field = described.field.add(name=name, number=number, label=3 if kind.endswith("*") else 1)
            scalar = {"string": 9, "int32": 5, "int64": 3}.get(kind.rstrip("*"))
            field.type = scalar or (14 if kind == "DataType" else 11)
            if not scalar:
                field.type_name = f".t.{kind.rstrip('*')}"
    (pool := descriptor_pool.DescriptorPool()).Add(file)
    config_type = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.ModelConfig"))
    return text_format.Parse(config, config_type())


@pytest.mark.parametrize("name", ["net", 'a"\\b'])
def test_a_model_repository_of_triton(runtime: Runtime, tmp_path: Path, name: str) -> None:
    text = HEAD + "(float[N,3] x, float16[2] h, int64 i) => (float[N,3] y, float z, float16[2] k, int64 j)"
    text += " { y = Softplus(x) z = ReduceSum<keepdims = 0>(y) k = Exp(h) j = Add(i, i) }"
    model = written(text, tmp_path / f"{name}.onnx")
    out = onnx_bridge.convert(model, tmp_path / "out", application="onnxruntime", dims={"N": 1}, layout="triton").path
    config = parsed((out / f"triton/{name}/config.pbtxt").read_text())
    assert config.name == name and config.backend == "onnxruntime"
    assert config.optimization.graph.level == 2  # ORT_DISABLE_ALL in Triton's backend
    assert [each.name for each in config.optimization.execution_accelerators.gpu_execution_accelerator] == ["migraphx"]
    assert (out / "triton" / name / "1" / config.default_model_filename).is_file()
    shapes = {t.name: (list(t.dims), t.HasField("reshape")) for t in (*config.input, *config.output)}
    assert shapes == {name: ([1, 3], False) for name in "xy"} | {name: ([2], False) for name in "hk"} | {
        name: ([1], True) for name in "ijz"
    }


def test_int8_has_to_be_in_the_model(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "out", application="onnxruntime", precision="int8")


def test_a_quantized_model_keeps_the_forecast_of_its_kernels(runtime: Runtime, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[1,2,4,4] x) => (float[1,2,4,4] y) {
        s = Constant <value_float = 0.1> () z = Constant <value = int8 {0}> ()
        k = Constant <value = int8[2,2,1,1] {1, 2, 3, 4}> ()
        a = QuantizeLinear(x, s, z) d = DequantizeLinear(a, s, z) f = DequantizeLinear(k, s, z) c = Conv(d, f)
        r = QuantizeLinear(c, s, z) y = DequantizeLinear(r, s, z)
    }"""
    model = written(text, tmp_path / "model.onnx")
    manifests = [
        onnx_bridge.convert(model, tmp_path / str(application), target="ref", application=application).manifest
        for application in (None, "onnxruntime")
    ]
    assert manifests[0].program.forecast["kernels"] == manifests[1].program.forecast["kernels"] != []


@pytest.mark.parametrize(
    ("case", "node", "claimed"),
    [
        ("an attribute that its parser refuses", "Resize", 0),
        ("sizes that depend on data", "NonMaxSuppression", 1),
        ("an old opset", None, 1),
    ],
)
def test_doctor_names_the_node_that_fails_in_a_raw_session(
    runtime: Runtime, tmp_path: Path, case: str, node: str | None, claimed: int
) -> None:
    model = written(FAILING[case], tmp_path / "model.onnx")
    diagnosis = onnx_bridge.doctor(model, application="onnxruntime")
    session = diagnosis.session
    assert diagnosis.passed and session is not None
    assert (session.claimed, session.nodes) == (claimed, 1)
    assert session.node == (node and f"{node} {diagnosis.nodes[0].name}") and (session.problem is None) == (
        node is None
    )


def test_raw_some_of_these_fail(runtime: Runtime, tmp_path: Path) -> None:
    model = written(FAILING["a branch"], tmp_path / "model.onnx")
    with pytest.raises((ProviderError, NativeFailure)):
        shared(runtime=runtime).session(model)


@pytest.mark.parametrize(("inside", "hidden"), [(2.9999998, False), (3.0, True)])
def test_a_difference_behind_a_tie_is_none(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: float, hidden: bool
) -> None:
    text = HEAD + "(float[4] x, float[4] c) => (float[4] y) { h = Mul(x, c) f = Floor(h) y = Mul(f, c) }"
    model = ir.from_proto(parser.parse_model(text))
    sample = {"x": np.arange(4, dtype=np.float32), "c": np.ones(4, np.float32)}
    trial = Trial.of(model, shared(runtime=runtime), [sample], tmp_path)
    session = trial.session(model)
    y, h = np.array([0, 1, 2, 2], np.float32), np.array([0, 1, 2, inside], np.float32)
    monkeypatch.setattr(session, "run", lambda _: {"y": y})
    monkeypatch.setattr(Trial, "run", lambda *_: {"y": y, "f": y, "h": h})
    assert (trial.difference(session) is not None) is hidden


@pytest.mark.parametrize("quantized", [False, True])
def test_a_quantized_model_may_round_otherwise_next_to_a_tie(tmp_path: Path, quantized: bool) -> None:
    between = "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)" if quantized else "y = Mul(x, s)"
    constants = "s = Constant<value = float {0.1}>() z = Constant<value = int8 {3}>()"
    model = ir.from_proto(parser.parse_model(HEAD + f"(float[4] x) => (float[4] y) {{ {constants} {between} }}"))
    path, step = tmp_path / "model.onnx", np.float32(0.1)
    trial = Trial.of(model, shared(), [{"x": np.arange(4, dtype=np.float32)}], tmp_path)
    expected = Reference(path).run(trial.samples[0]) if trial.session(model) else {}
    moved = {"y": expected["y"] + np.array([0, 0, 0, step / 50], np.float32)}
    assert compare(moved, expected, trial.tolerances).passed is quantized
