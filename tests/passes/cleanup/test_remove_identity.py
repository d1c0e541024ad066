"""remove-identity: each operator where it provably hands on its input, and where it does not or nobody can tell."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.cleanup.remove_identity import remove_identity
from passes.graphs.scopes import DISPUTED
from passes.rewriting.base import Context
from tests.passes.harness import apply, model, operators, reasons, stops


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


NOTHING = [
    ("Identity(a)", {}),
    ("Dropout(a)", {}),
    ("Dropout(a, r)", {"r": np.float32(0.5)}),
    ("Dropout(a, r, t)", {"r": np.float32(0.5), "t": np.array(False)}),
    ("Cast <to = 1> (a)", {}),
    ("CastLike(a, x)", {}),
    ("Reshape(a, s)", {"s": ints(2, 3, 4)}),
    ("Reshape(a, s)", {"s": ints(0, -1, 4)}),
    ("Transpose <perm = [0, 1, 2]> (a)", {}),
    ("Pad(a, p)", {"p": ints(0, 0, 0, 0, 0, 0)}),
    ("Slice(a, s, e)", {"s": ints(0, 0), "e": ints(2**63 - 1, 2**31 - 1)}),
    ("Slice(a, s, e, i, o)", {"s": ints(-3), "e": ints(3), "i": ints(1), "o": ints(1)}),
    ("Concat <axis = 1> (a)", {}),
    ("Expand(a, s)", {"s": ints(1, 1)}),
    ("Expand(a, s)", {"s": ints(3, 4)}),
    ("Tile(a, s)", {"s": ints(1, 1, 1)}),
    ("Squeeze(a)", {}),
    ("Unsqueeze(a, s)", {"s": ints()}),
    ("Sum(a)", {}),
    ("Mean(a)", {}),
    ("Max(a)", {}),
    ("Min(a)", {}),
    ("Mul(a, c)", {"c": np.float32(1)}),
    ("Mul(c, a)", {"c": np.ones((1, 1, 1), np.float32)}),
    ("Mul(a, c)", {"c": np.ones(4, np.float32)}),
    ("Mul(c, a)", {"c": np.ones((2, 3, 1), np.float32)}),
    ("Sub(a, c)", {"c": np.zeros((3, 4), np.float32)}),
    ("Add(a, c)", {"c": np.full((2, 3, 4), -0.0, np.float32)}),
    ("Div(a, c)", {"c": np.ones(1, np.float32)}),
    ("Sub(a, c)", {"c": np.float32(0)}),
    ("Add(a, c)", {"c": np.float32(-0.0)}),
    ("Add(c, a)", {"c": np.float32(-0.0)}),
]

SOMETHING = [
    ("Dropout(a, r, t)", {"r": np.float32(0.0), "t": np.array(True)}),
    ("Cast <to = 11> (a)", {}),
    ("Reshape(a, s)", {"s": ints(3, 2, 4)}),
    ("Reshape(a, s)", {"s": ints(-1)}),
    ("Transpose <perm = [2, 1, 0]> (a)", {}),
    ("Transpose(a)", {}),
    ("Pad(a, p)", {"p": ints(0, 0, 1, 0, 0, -1)}),
    ("Slice(a, s, e)", {"s": ints(0), "e": ints(1)}),
    ("Slice(a, s, e)", {"s": ints(1), "e": ints(2**63 - 1)}),
    ("Slice(a, s, e, i, o)", {"s": ints(-1), "e": ints(-(2**63)), "i": ints(1), "o": ints(-1)}),
    ("Concat <axis = 1> (a, a)", {}),
    ("Expand(a, s)", {"s": ints(1, 1, 1, 1)}),
    ("Expand(a, s)", {"s": ints(5, 2, 3, 4)}),
    ("Tile(a, s)", {"s": ints(1, 2, 1)}),
    ("Unsqueeze(a, s)", {"s": ints(0)}),
    ("Flatten(a)", {}),
    ("Sum(a, a)", {}),
    ("Max(a, x)", {}),
    ("Mul(a, c)", {"c": np.float32(1 + 2**-23)}),
    ("Mul(a, c)", {"c": np.ones((1, 1, 1, 1), np.float32)}),
    ("Mul(a, c)", {"c": np.array([1, 1, 1, 2], np.float32)}),
    ("Add(a, c)", {"c": np.array([-0.0, 0.0, -0.0, -0.0], np.float32)}),
    ("Mul(a, c)", {"c": np.ones((0,), np.float32)[:, None, None, None]}),
    ("Mul(a, x)", {}),
    ("Div(c, a)", {"c": np.float32(1)}),
    ("Sub(c, a)", {"c": np.float32(0)}),
    ("Sub(a, c)", {"c": np.float32(-0.0)}),  # -0 becomes +0
    ("Add(a, c)", {"c": np.float32(0)}),
]


@pytest.mark.parametrize(("call", "constants"), NOTHING, ids=[call for call, _ in NOTHING])
def test_what_does_nothing(call: str, constants: dict[str, np.ndarray]) -> None:
    source = model(f"(float[2,3,4] x) => (float[2,3,4] y) {{ a = Abs(x) [n] b = {call} y = Exp(b) }}", **constants)
    result = apply(remove_identity, source)
    assert operators(source) == ["Abs", "Exp"]
    assert [rewrite.before for rewrite in result.rewrites] == [("n",)]
    assert source.graph[0].outputs[0].name == "a"


@pytest.mark.parametrize(("call", "constants"), SOMETHING, ids=[call for call, _ in SOMETHING])
def test_what_does_something(call: str, constants: dict[str, np.ndarray]) -> None:
    source = model(f"(float[2,3,4] x) => (y) {{ a = Abs(x) b = {call} y = Shape(b) }}", **constants)
    assert not remove_identity.run(source, Context()).rewrites


class TestOpenDimensions:
    """Where sizes are not known, only what holds for all of them counts."""

    @pytest.mark.parametrize(
        ("call", "shape", "nothing"),
        [
            ("Reshape(a, s)", ints(0, 0), True),
            ("Reshape(a, s)", ints(-1, 3), True),
            ("Reshape(a, s)", ints(0, -1), True),
            ("Reshape(a, s)", ints(4, -1), False),
            ("Reshape <allowzero = 1> (a, s)", ints(0, 3), False),
            ("Expand(a, s)", ints(1, 3), True),
            ("Expand(a, s)", ints(4, 1), False),
            ("Tile(a, s)", ints(1, 1), True),
            ("Squeeze(a)", None, False),
            ("Squeeze(a, s)", ints(0), False),
            ("Mul(a, s)", np.ones((1, 3), np.float32), True),
            ("Mul(a, s)", np.ones((4, 1), np.float32), False),
            ("Flatten(a)", None, True),
            ("Flatten <axis = 0> (a)", None, False),
        ],
    )
    def test_with_a_name(self, call: str, shape: np.ndarray | None, nothing: bool) -> None:
        constants = {} if shape is None else {"s": shape}
        source = model(f"(float[n,3] x) => (y) {{ a = Abs(x) b = {call} y = Exp(b) }}", **constants)
        assert bool(remove_identity.run(source, Context()).rewrites) == nothing

    def test_without_a_name(self) -> None:
        """Two unknown sizes are not the same size."""
        source = model("(float[n,3] x, int64[2] s) => (y) { a = Abs(x) b = Reshape(a, s) y = Exp(b) }")
        source.graph[1].outputs[0].shape = ir.Shape([None, 3])
        source.graph[0].outputs[0].shape = ir.Shape([None, 3])
        assert not remove_identity.run(source, Context()).rewrites

    def test_zeros_that_are_no_copies(self) -> None:
        source = model(
            "(float[0,3] x) => (y) { a = Abs(x) b = Reshape <allowzero = 1> (a, s) y = Exp(b) }", s=ints(0, 5)
        )
        assert not remove_identity.run(source, Context()).rewrites

    def test_shapes_that_inference_disputes(self) -> None:
        source = model("(float[2,3] x, int64[2] s) => (y) { a = Abs(x) b = Reshape(a, s) y = Exp(b) }")
        source.graph[1].outputs[0].shape = ir.Shape([2, 3])
        source.graph[1].outputs[0].meta[DISPUTED] = True
        assert not remove_identity.run(source, Context()).rewrites


class TestOutputs:
    def test_the_name_of_the_output_stays(self) -> None:
        source = model("(float[2] x) => (float[2] y, float[2] z) { a = Abs(x) y = Identity(a) z = Exp(a) }")
        apply(remove_identity, source)
        assert operators(source) == ["Abs", "Exp"]
        assert [value.name for value in source.graph.outputs] == ["y", "z"]

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("(float[2] x) => (float[2] y) { y = Identity(x) }", "y is an output of the graph, and x cannot be"),
            ("(float[2] x) => (float[2] x2, float[2] y) { x2 = Abs(x) y = Identity(x2) }", "and x2 cannot be"),
            ("(float[2] x) => (float[2] y) { y = Identity(w) }", "and w cannot be"),
        ],
    )
    def test_what_must_not_become_an_output(self, text: str, reason: str) -> None:
        source = model(text, w=np.ones(2, np.float32))
        result = apply(remove_identity, source)
        assert not result.rewrites
        assert reason in reasons(result)[0]

    def test_one_value_cannot_be_two_outputs(self) -> None:
        source = model("(float[2] x) => (float[2] y, float[2] z) { a = Abs(x) y = Identity(a) z = Identity(a) }")
        apply(remove_identity, source)
        assert operators(source) == ["Abs", "Identity"]
        assert [value.name for value in source.graph.outputs] == ["y", "z"]

    def test_chains(self) -> None:
        source = model("(float[2] x) => (float[2] y) { a = Identity(x) b = Identity(a) c = Abs(b) y = Identity(c) }")
        apply(remove_identity, source)
        assert operators(source) == ["Abs"]
        assert source.graph[0].inputs[0] is source.graph.inputs[0]


class TestScopes:
    def test_subgraphs_and_functions(self) -> None:
        source = model(
            """(float[2] x, bool c) => (float[2] y) {
                h = Identity(x)
                i = If (c) <then_branch = t () => (float[2] u) { p = Identity(h) q = Abs(p) u = Identity(q) },
                            else_branch = e () => (float[2] v) { v = Identity(x) }>
                y = local.f(i) }""",
            functions="""<domain: "local", opset_import: ["": 17]> f (a) => (b) { k = Identity(a) b = Abs(k) }""",
        )
        result = apply(remove_identity, source)
        assert operators(source) == ["If", "Abs", "Identity", "f", "Abs"]
        assert "v is an output of the graph, and x cannot be" in reasons(result)

    def test_what_a_caller_decides(self) -> None:
        """In functions neither types nor shapes are certain, and attributes may be the caller's."""
        source = model(
            "(float[2] x) => (float[2] y) { y = local.f <to = 1> (x) }",
            functions="""<domain: "local", opset_import: ["": 17]> f <to> (a) => (d) {
                b = Cast <to: int = @to> (a) c = Cast <to = 1> (b) d = Abs(c) }""",
        )
        assert not remove_identity.run(source, Context()).rewrites

    def test_a_function_of_the_same_name(self) -> None:
        source = model(
            "(float[2] x) => (float[2] y) { a = local.Identity(x) y = Exp(a) }",
            functions='<domain: "local", opset_import: ["": 17]> Identity (a) => (b) { b = Neg(a) }',
        )
        assert not apply(remove_identity, source).rewrites


def test_the_name_of_an_output_is_that_of_another_value_before() -> None:
    """A subgraph may use a name that is given around it only later; what took it there would be another value."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool c) => (float[2] y, float[2] z) {
        a = Neg(x)
        z = If(c) <then_branch = t () => (float[2] p) { y = Abs(x) p = Sqrt(y) },
                   else_branch = e () => (float[2] q) { q = Exp(x) }>
        y = Identity(a) }"""
    source = ir.from_proto(onnx.parser.parse_model(text))
    result = remove_identity.run(source, Context())
    assert not result.rewrites
    assert result.skips
    renamed = ir.from_proto(onnx.parser.parse_model(text.replace("y = Abs(x) p = Sqrt(y)", "r = Abs(x) p = Sqrt(r)")))
    assert remove_identity.run(renamed, Context()).rewrites


class TestDropout:
    def test_a_mask_that_is_used(self) -> None:
        source = model("(float[2,n] x) => (float[2,n] y, bool[2,n] m) { a = Abs(x) y, m = Dropout(a) }")
        apply(remove_identity, source)
        assert operators(source) == ["Abs", "Shape", "ConstantOfShape"]
        assert [value.name for value in source.graph.outputs] == ["y", "m"]

    def test_a_mask_before_opset_12(self) -> None:
        source = model("(float[2] x) => (float[2] y, m) { a = Abs(x) y, m = Dropout(a) }", opset=10)
        assert "the mask is used" in reasons(remove_identity.run(source, Context()))[0]

    def test_a_mode_that_is_an_input(self) -> None:
        source = model("(float[2] x, bool t) => (y) { a = Abs(x) b = Dropout(a, r, t) y = Exp(b) }", r=np.float32(0.5))
        assert not remove_identity.run(source, Context()).rewrites


def test_sequences() -> None:
    source = model(
        "(float[2] x) => (float[2] y) { s = SequenceConstruct(x, x) t = Identity(s) y = SequenceAt(t, i) }",
        i=np.int64(1),
    )
    apply(remove_identity, source)
    assert operators(source) == ["SequenceConstruct", "SequenceAt"]


def test_the_budget() -> None:
    text = "(float[2] x) => (float[2] y) { a = Identity(x) b = Identity(a) c = Identity(b) y = Abs(c) }"
    assert [stops(remove_identity, model(text), limit) for limit in range(5)] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize("operator", ["Add", "Div", "Mul", "Sub"])
def test_an_operand_that_is_missing(operator: str) -> None:
    source = model(f"(float[2] x) => (float[2] y) {{ a = Abs(c) b = {operator}(c) y = Add(b, x) }}", c=np.float32(1))
    assert not remove_identity.run(source, Context()).rewrites


@pytest.mark.parametrize(("operator", "constant"), [("Add", 0), ("Sub", 0), ("Mul", 1), ("Div", 1)])
def test_integers(operator: str, constant: int) -> None:
    source = model(f"(int64[2] x) => (int64[2] y) {{ a = Abs(x) b = {operator}(a, c) y = Neg(b) }}", c=ints(constant))
    apply(remove_identity, source)
    assert operators(source) == ["Abs", "Neg"]
