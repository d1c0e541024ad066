"""unroll-scan: directions, axes and batches, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.control_flow.scans import UnrollScan
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import apply, feeds, model, operators, run
from tests.passes.ml import why_not

BODY = """body = b (float[2] s, float[2] x, float y) => (float[2] t, float[2] o, float[1,2] p)
    { a = Mul(x, y) t = Add(s, a) o = Sub(t, k) u = Constant<value_ints = [0]>() p = Unsqueeze(x, u) }"""
K = np.array([2.0, -1.0], np.float32)


def scan(attributes: str = "", x: str = "4,2", o: str = "T,2", p: str = "T,1,2", opset: int = 17) -> ir.Model:
    """A Scan of one state and two inputs, x and y."""
    text = f"""(float[2] s, float[{x}] x, float[4] y) => (float[2] t, float[{o}] o, float[{p}] p)
        {{ t, o, p = Scan <{BODY}, num_scan_inputs = 2{attributes}> (s, x, y) }}"""
    return model(text, opset=opset, k=K)


@pytest.mark.parametrize("opset", [13, 17, 21])
def test_iterations(opset: int) -> None:
    apply(UnrollScan(), m := scan(opset=opset), rtol=0, atol=0)
    assert operators(m).count("Mul") == 4
    assert operators(m).count("Split") == 2
    assert "Scan" not in operators(m)


@pytest.mark.parametrize("directions", ["1, 0", "0, 1", "1, 1"])
@pytest.mark.parametrize("out", ["0, 1", "1, 0"])
def test_directions(directions: str, out: str) -> None:
    m = scan(f", scan_input_directions = [{directions}], scan_output_directions = [{out}]")
    apply(UnrollScan(), m)
    assert "Scan" not in operators(m)


@pytest.mark.parametrize(("axis", "x"), [(1, "2,4"), (-1, "2,4"), (0, "4,2"), (-2, "4,2")])
@pytest.mark.parametrize(
    ("axes", "o", "p"), [("1, 0", "2,T", "T,1,2"), ("-1, 1", "2,T", "1,T,2"), ("0, -1", "T,2", "1,2,T")]
)
def test_axes(axis: int, x: str, axes: str, o: str, p: str) -> None:
    m = scan(f", scan_input_axes = [{axis}, 0], scan_output_axes = [{axes}]", x, o, p)
    apply(UnrollScan(), m)
    assert "Scan" not in operators(m)


def test_one_iteration() -> None:
    text = """(float[2] s, float[1,2] x) => (float[2] t, float[T,2] o) { t, o = Scan <body =
        b (float[2] s, float[2] x) => (float[2] t, float[2] o) { t = Add(s, x) o = Identity(t) },
        num_scan_inputs = 1> (s, x) }"""
    apply(UnrollScan(), m := model(text))
    assert operators(m) == ["Squeeze", "Add", "Unsqueeze"]


def test_no_states_and_a_constant() -> None:
    text = """(float[2] x) => (float[T,2] o) { o = Scan <body = b (float v) => (float[2] o) { o = Mul(x, v) },
        num_scan_inputs = 1> (numbers) }"""
    apply(UnrollScan(), m := model(text, numbers=np.arange(3, dtype=np.float32)))
    assert operators(m) == ["Mul"] * 3 + ["Unsqueeze"] * 3 + ["Concat"]


OLD = """body = b (float[2] s, float[2] x) => (float[2] t, float[2] o) { t = Add(s, x) o = Identity(t) }"""


def batch(attributes: str = "", lengths: str = "", **constants: Any) -> ir.Model:
    """The form of opset 8."""
    text = f"""(float[3,2] s, float[3,4,2] x) => (float[3,2] t, float[3,4,2] o)
        {{ t, o = Scan <{OLD}, num_scan_inputs = 1{attributes}> ({lengths}, s, x) }}"""
    return model(text, opset=8, **constants)


@pytest.mark.parametrize("attributes", ["", ", directions = [1]"])
def test_batches(attributes: str) -> None:
    apply(UnrollScan(), m := batch(attributes))
    assert operators(m).count("Add") == 12


def test_batches_of_different_lengths() -> None:
    apply(UnrollScan(), m := batch(lengths="l", l=np.array([4, 1, 2])))
    assert operators(m).count("Add") == 7


@pytest.mark.parametrize(
    ("m", "reason"),
    [
        (scan(x="N,2"), ""),
        (batch(", directions = [1]", "l", l=np.array([4, 1, 2])), "scanned backward"),
        (
            model(
                f"""(float[3,2] s, float[3,4,2] x, int64[3] l) => (float[3,2] t, float[3,4,2] o)
                    {{ t, o = Scan <{OLD}, num_scan_inputs = 1> (l, s, x) }}""",
                opset=8,
            ),
            "freeze them with --freeze",
        ),
        (
            model(
                """(float[N,2] x) => (float[M,2] o) { o = Scan <
                    body = b (float[2] v) => (float[2] o) { o = Neg(v) }, num_scan_inputs = 1> (x) }"""
            ),
            "freeze its shape",
        ),
    ],
)
def test_skips(m: ir.Model, reason: str) -> None:
    if not reason:  # another input tells how often
        apply(UnrollScan(), m, inputs={**feeds(ir.to_proto(scan())), "x": np.ones((4, 2), np.float32)})
        return
    assert reason in why_not(UnrollScan(), m)


def test_limit() -> None:
    assert "more than 10 nodes" in why_not(UnrollScan(max_nodes=10), scan())


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_scan(data: st.DataObject) -> None:
    """Axes and directions of two inputs and two outputs, at random."""
    draw = data.draw
    size, sizes = draw(st.integers(1, 4)), draw(st.lists(st.integers(1, 3), min_size=2, max_size=2))
    axes = [draw(st.integers(-3, 2)), draw(st.integers(-3, 2))]
    shapes = []
    for axis in axes:
        shape = list(sizes)
        shape.insert(axis if axis >= 0 else 3 + axis, size)
        shapes.append(",".join(map(str, shape)))
    out_axes = [draw(st.integers(-3, 2)), draw(st.integers(-2, 1))]
    ways = [draw(st.lists(st.integers(0, 1), min_size=2, max_size=2)) for _ in range(2)]
    inner = ",".join(map(str, sizes))
    text = f"""(float[{inner}] s, float[{shapes[0]}] x, float[{shapes[1]}] y) =>
        (float[{inner}] t, float[A,B,C] o, float[D,E] p) {{ t, o, p = Scan <
        body = b (float[{inner}] s, float[{inner}] x, float[{inner}] y) =>
        (float[{inner}] t, float[{inner}] o, float[{sizes[0]}] p)
        {{ h = Mul(x, y) t = Add(s, h) o = Tanh(t) p = ReduceSum<keepdims = 0>(x, last) }}, num_scan_inputs = 2,
        scan_input_axes = {axes}, scan_output_axes = {out_axes},
        scan_input_directions = {ways[0]}, scan_output_directions = {ways[1]}> (s, x, y) }}"""
    assert apply(UnrollScan(), model(text, last=np.array([1]))).rewrites


def test_migraphx_computes_the_same(device: Device) -> None:
    for m in (scan(", scan_input_directions = [1, 0], scan_output_axes = [1, 0]", o="2,T"), batch()):
        UnrollScan().run(m, Context())
        proto = ir.to_proto(m)
        given = feeds(proto)
        found = device.run(proto, given)
        for each, expected in zip(found, run(proto, given).values(), strict=True):
            np.testing.assert_allclose(each, expected, 1e-5)
