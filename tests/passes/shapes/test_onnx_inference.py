"""Models from whose inference ONNX does not return, wherever the node is; and what it raises for others."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from passes.cleanup.infer_shapes import InferShapes
from passes.graphs.scopes import Scope
from passes.isolation import worker
from passes.isolation.failure import NativeFailure
from passes.isolation.limits import Limits, limited
from passes.isolation.process import ChildFailure, Reason
from passes.rewriting.base import Context
from passes.rewriting.pipeline import Pipeline
from passes.shapes import inference, onnx_inference
from passes.shapes.fatal import FatalInference, refuse_fatal
from passes.shapes.inference import infer_node
from passes.shapes.onnx_inference import UnknownLists, infer_shapes
from passes.specialize.convert_opset import ConvertOpset

ROOT = Path(__file__).parents[3]
HEAD = '<ir_version: 10, opset_import: ["": 17, "local": 1]> g (float[2,2,2] x, bool c) => (float[n] y) '
EQUATION = 'Einsum<equation = "BAD">'
PLACES = {
    "graph": f"{{ r = Relu(x) y = {EQUATION}(r) }}",
    "branch": f"""{{ y = If(c) <then_branch = t () => (float[n] a) {{ a = {EQUATION}(x) }},
        else_branch = e () => (float[n] b) {{ d = If(c) <
            then_branch = u () => (float[n] f) {{ f = {EQUATION}(x) }},
            else_branch = v () => (float[n] h) {{ h = ReduceSum<keepdims = 0>(x) }}> b = Neg(d) }}> }}""",
    "function": f"""{{ y = local.f(x) }}
        <domain: "local", opset_import: ["": 17]> f (a) => (b) {{ b = {EQUATION}(a) }}""",
    "attribute": """{ y = local.f<e = "BAD">(x) }
        <domain: "local", opset_import: ["": 17, "local": 1]> f<e>(a) => (b) { b = local.h<d: string = @e>(a) }
        <domain: "local", opset_import: ["": 17]> h<d>(a) => (b) { b = Einsum<equation: string = @d>(a) }""",
    "default": """{ y = local.f(x) }
        <domain: "local", opset_import: ["": 17]> f<e: string = "BAD">(a) => (b) {
            b = Einsum<equation: string = @e>(a) }""",
}
BAD = ["...i...->i", "i......->i", "....i->i", "ij.->i", "i_j->i", "ij1->", "i-j->i"]
GOOD = ["ijk->i", " i j k -> k i ", "...i->...i", "i...->...", "...->...", "ij...->i...", "...Zz->z", "ijk"]


def model(place: str, equation: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + PLACES[place].replace("BAD", equation))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("equation", BAD)
def test_refused(place: str, equation: str) -> None:
    with pytest.raises(FatalInference) as error:
        refuse_fatal(model(place, equation))
    assert repr(equation) in str(error.value)
    assert isinstance(error.value, onnx.shape_inference.InferenceError)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("equation", GOOD)
def test_inferred(place: str, equation: str) -> None:
    inferred = infer_shapes(model(place, equation))
    assert [output.name for output in inferred.graph.output] == ["y"]
    assert place != "graph" or inferred.graph.value_info[0].name == "r"


def test_a_string_that_no_equation_takes() -> None:
    """The same attribute of another function, or another one of the same."""
    text = """{ z = local.f<e = "i->i", mode = "..._...">(x) y = local.g<e = "..._...">(z) }
        <domain: "local", opset_import: ["": 17]> f<e, mode>(a) => (b) { b = Einsum<equation: string = @e>(a) }
        <domain: "local", opset_import: ["": 17]> g<e>(a) => (b) { b = Identity(a) }"""
    proto = onnx.parser.parse_model(HEAD + text)
    refuse_fatal(proto)
    assert [output.name for output in infer_shapes(proto).graph.output] == ["y"]


def test_passes() -> None:
    """In a process of their own, since what fails here would never end; nor would any signal be handled."""
    code = "from tests.passes.shapes import test_onnx_inference as t; [t.run_passes(place) for place in t.PLACES]"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120, cwd=ROOT).returncode == 0


def run_passes(place: str) -> None:
    """Each pass that infers, and the default pipeline: the Einsum is left, and a note says why nothing was inferred."""
    source = ir.from_proto(model(place, BAD[0]))
    (skip,) = InferShapes().run(source.clone(), Context()).skips
    assert BAD[0] in skip.reason
    ConvertOpset(to=18).run(source.clone(), Context())
    cleaned = Pipeline.parse("default").run(source, Context())[-1].result.model
    assert "Einsum" in [node.op_type for node in cleaned.graph.all_nodes()]


SPLIT = '<ir_version: 10, opset_import: ["": 18, "local": 1]> g (float[2, 3] x) => (float[n, m] y, float[n, m] z) '
SPLITS = {
    "graph": "{ y, z = Split<num_outputs = PARTS>(x) }",
    "attribute": """{ y, z = local.f<parts = PARTS>(x) }
        <domain: "local", opset_import: ["": 18]> f<parts>(a) => (b, c) {
            b, c = Split<num_outputs: int = @parts>(a) }""",
}


@pytest.mark.parametrize("parts", [-1, 0, 1, 3, 2**40, 2**62])
@pytest.mark.parametrize("place", SPLITS)
def test_other_parts_than_outputs(place: str, parts: int) -> None:
    """Of too few parts, ONNX aborts the process; for many, it takes memory."""
    source = onnx.parser.parse_model(SPLIT + SPLITS[place].replace("PARTS", str(parts)))
    with pytest.raises(FatalInference, match=f"a Split has 2 outputs, and its num_outputs is {parts}"):
        infer_shapes(source)
    assert Pipeline.parse("default").run(ir.from_proto(source), Context())[-1].result.model
    (shape, _) = (each.type.tensor_type.shape for each in infer_shapes(split(place)).graph.output)
    assert [dim.dim_value for dim in shape.dim] == [1, 3]


@pytest.mark.parametrize(
    "node",
    [
        *(f"y = GatherND<batch_dims = {count}>(x, i)" for count in (-1, -3, -(2**31), -(2**63))),
        *(f"y, mean, deviation = LayerNormalization<axis = {axis}>(x, w)" for axis in (2**31, 2**63 - 1, -(2**40))),
    ],
)
def test_attributes_that_read_what_is_not_there(node: str) -> None:
    text = f"g (float[2,3] x, int64[2,2] i, float[3] w) => (float[n] y) {{ {node} }}"
    source = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {text}')
    with pytest.raises(FatalInference, match=r"GatherND|LayerNormalization"):
        infer_shapes(source)
    assert Pipeline.parse("default").run(ir.from_proto(source), Context())[-1].result.model


def split(place: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(SPLIT + SPLITS[place].replace("PARTS", "2"))


STFT = 'g (float[1,16,1] x) => (y) <int64[0] step = {}, int64 length = {4}> { y = STFT(x, step, "", length) }'


def test_errors_of_containers() -> None:
    """Of a list without elements, ONNX reads the first."""
    source = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> {STFT}')
    with pytest.raises(onnx.shape_inference.InferenceError, match="range_check"):
        infer_shapes(source)
    model = ir.from_proto(source)
    infer_node(model.graph[0], Scope(model, model.graph))
    (skip,) = InferShapes().run(model, Context()).skips
    assert "range_check" in skip.reason
    with pytest.raises(onnx.shape_inference.InferenceError, match="range_check"):
        onnx_inference._isolated(source, propagate=False)


def test_a_message_that_is_not_utf8() -> None:
    text = 'g (float[1,2,8] x, float[2,1,3] w) => (y, z) { y, z = CausalConvWithState<activation = "a">(x, w) }'
    source = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 27]> {text}')
    source.graph.node[0].attribute[0].s = b"\xff"
    with pytest.raises(onnx.shape_inference.InferenceError, match="utf-8"):
        infer_shapes(source, strict_mode=True)


def test_nothing_else_calls_it() -> None:
    sources = [path for tree in ("passes", "onnx_bridge") for path in (ROOT / tree).rglob("*.py")]
    callers = [path.name for path in sources if "shape_inference.infer_" in path.read_text()]
    assert callers == ["onnx_inference.py"]


@pytest.mark.parametrize("function", [False, True])
def test_lists_that_double(function: bool) -> None:
    """Propagated as values, the last of them has 2⁴⁰ elements; without values, all shapes but its own are inferred."""
    first = "own.Twice(a0)" if function else "Concat <axis = 0> (a0, a0)"
    body = "a0 = Shape(x) a1 = " + first
    body += "".join(f" a{i + 1} = Concat <axis = 0> (a{i}, a{i})" for i in range(1, 40))
    text = f"g (float[3, 4] x) => (int64[N] a40, float[3, 4] y) {{ {body} y = Neg(x) }}"
    if function:
        text += ' <domain: "own", opset_import: ["": 21]> Twice (a) => (b) { b = Concat <axis = 0> (a, a) }'
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "own": 1]> {text}')
    inferred = infer_shapes(model, data_prop=True)
    (shape,) = [each.type.tensor_type.shape for each in inferred.graph.value_info if each.name == "a3"]
    assert [dim.dim_value for dim in shape.dim] == [16]


def test_a_network_of_concatenations_still_propagates() -> None:
    body = "c0 = Relu(x) " + "".join(f"c{i + 1} = Concat <axis = 1> (c{i}, c{i})" for i in range(20))
    body += " s = Shape(x) h = Slice(s, zero, one) r = Concat <axis = 0> (h, h) y = Expand(k, r)"
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[3, 4] x) => (float[A, B] y) '
        f"<int64[1] zero = {{0}}, int64[1] one = {{1}}, float[1] k = {{1}}> {{ {body} }}"
    )
    (shape,) = [each.type.tensor_type.shape for each in infer_shapes(model, data_prop=True).graph.output]
    assert [dim.dim_value for dim in shape.dim] == [3, 3]


@pytest.mark.parametrize(
    "place",
    [
        "{ e = Expand(o, s) r = Cast<to = 1>(e) }",
        """{ r = If(c) <
    then_branch = t () => (float[N] f) {
        k = Constant<value_ints = [1000000000000]>() e = ConstantOfShape(k) f = Cast<to = 1>(e) },
    else_branch = u () => (float[N] g) { g = Cast<to = 1>(s) }> }""",
    ],
)
def test_lists_that_an_operator_makes(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """ONNX would keep an element for each unknown number: one of 10¹² takes all memory."""
    propagated: list[bool] = []
    infer = onnx.shape_inference.infer_shapes

    def recorded(given: onnx.ModelProto, data_prop: bool = False) -> onnx.ModelProto:
        propagated.append(data_prop)
        return infer(given)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", recorded)
    constants = "int64 o = {1}, int64[1] s = {1000000000000}"
    text = f"g (bool c) => (float[N] r) <{constants}> {place}"
    infer_shapes(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}'), data_prop=True)
    assert propagated == [False]


BOMBS = {
    "graph": "e = ConstantOfShape(m) y = Cast<to = 7>(e)",
    "reshaped": "e = ConstantOfShape(m) f = Unsqueeze(e, one) h = Squeeze(f, one) y = Cast<to = 7>(h)",
    "function": "y = own.Fill(m)",
}
FILL = '<domain: "own", opset_import: ["": 21]> Fill (m) => (y) { e = ConstantOfShape(m) y = Cast<to = 7>(e) }'


@pytest.mark.parametrize("place", BOMBS)
def test_lists_whose_length_only_propagation_tells(place: str) -> None:
    """Of 10¹² elements: in a process with limits, and without propagation once its memory is exceeded."""
    text = f"""<ir_version: 10, opset_import: ["": 21, "own": 1]>
        g (float[2, 1000000] x) => (int64[N] y, float[M, K] z) <int64[1] one = {{1}}, int64[1] two = {{2}}>
        {{ s = Shape(x) n = Slice(s, one, two) m = Mul(n, n) {BOMBS[place]} z = Neg(x) }} {FILL}"""
    model = onnx.parser.parse_model(text)
    with pytest.raises(UnknownLists):
        infer_shapes(model, data_prop=True, limited=False)
    source = ir.from_proto(model)
    with limited(Limits(timeout=60, memory=2**29)):
        assert not inference.infer(source).error
    (output,) = (each for each in source.graph.outputs if each.name == "z")
    assert output.shape == ir.Shape([2, 1000000])


@pytest.mark.slow
def test_lists_that_exceed_what_propagation_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not take most of the memory that is free, even though the user gives no limit."""
    exceeded: list[Limits] = []
    call = worker.Worker.call

    def recorded(*args: Any, limits: Limits, **options: Any) -> Any:
        try:
            return call(*args, limits=limits, **options)
        except NativeFailure as failure:
            assert failure.reason is Reason.MEMORY
            exceeded.append(limits)
            raise

    monkeypatch.setattr(worker.Worker, "call", recorded)
    text = """g (float[2, 3] x) => (float[N] y, float[A, B] z) <int64[1] s = {1000}>
        { a = Mul(s, s) b = Mul(a, a) e = ConstantOfShape(b) y = Add(e, e) z = Neg(x) }"""
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}'))
    assert not inference.infer(model).error
    (limits,) = exceeded
    assert limits.growth is not None
    assert limits.growth <= 2 << 30
    assert model.graph.outputs[1].shape == ir.Shape([2, 3])


def test_propagation_that_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does now and then where memory ends: what is known without it stays known."""
    asked: list[bool] = []
    call = worker.Worker.call

    def crashing(
        self: worker.Worker, module: str, request: dict[str, Any], *args: Any, limits: Limits, **more: Any
    ) -> Any:
        asked.append(request["propagate"])
        if request["propagate"]:
            raise NativeFailure("ONNX's inference", limits, ChildFailure(Reason.DIED, "", -signal.SIGSEGV))
        return call(self, module, request, *args, limits=limits, **more)

    monkeypatch.setattr(worker.Worker, "call", crashing)
    text = f"g (float[2, 3] x, int64[1] m) => (int64[N] y, float[A, B] z) {{ y = own.Fill(m) z = Neg(x) }} {FILL}"
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "own": 1]> {text}'))
    assert not inference.infer(model).error
    assert asked == [True, False]
    assert model.graph.outputs[1].shape == ir.Shape([2, 3])


def test_what_every_result_tells_is_not_propagated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open sizes of inputs stay open; where a shape depends on a value, values are propagated."""
    propagated: list[bool] = []
    infer = onnx.shape_inference.infer_shapes

    def recorded(given: onnx.ModelProto, data_prop: bool = False) -> onnx.ModelProto:
        propagated.append(data_prop)
        return infer(given, data_prop=data_prop)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", recorded)
    head = '<ir_version: 10, opset_import: ["": 21]> g '
    infer_shapes(onnx.parser.parse_model(head + "(float[N, 4] x) => (float[N, 4] y) { y = Neg(x) }"), data_prop=True)
    assert propagated == [False]
    text = "(float[2, 4] x) => (float[A, B] y) { s = Shape(x) y = Reshape(x, s) }"
    found = infer_shapes(onnx.parser.parse_model(head + text), data_prop=True, limited=False)
    assert propagated == [False, False, True]
    assert [dim.dim_value for dim in found.graph.output[0].type.tensor_type.shape.dim] == [2, 4]


@pytest.mark.parametrize("by_functions", [True, False])
def test_where_many_nodes_are_inferred(by_functions: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What functions stand for has limits; as many nodes of a file cost no more than the file."""
    processes: list[bool] = []
    isolate = onnx_inference._isolated

    def recorded(model: onnx.ModelProto, propagate: bool) -> onnx.ModelProto:
        processes.append(True)
        return isolate(model, propagate)

    monkeypatch.setattr(onnx_inference, "_isolated", recorded)
    if by_functions:
        twice = "F{} (x) => (y) {{ h = own.F{}(x) y = own.F{}(h) }}"
        functions = [twice.format(index, index + 1, index + 1) for index in range(13)]
        defined = [f'<domain: "own", opset_import: ["": 17, "own": 1]> {each}' for each in functions]
        defined.append('<domain: "own", opset_import: ["": 17]> F13 (x) => (y) { y = Neg(x) }')
        body = "y = own.F0(x)"
    else:
        defined = []
        body = " ".join(f"v{index + 1} = Neg(v{index})" for index in range(5000)).replace("(v0)", "(x)")
        body += " y = Neg(v5000)"
    text = f'<ir_version: 10, opset_import: ["": 17, "own": 1]> g (float[2] x) => (float[N] y) {{ {body} }} '
    source = ir.from_proto(onnx.parser.parse_model(text + "\n".join(defined)))
    assert not inference.infer(source).error
    assert source.graph.outputs[0].shape == ir.Shape([2])
    assert bool(processes) == by_functions
