"""fold-pad: the same numbers with one node less, and when the operator's own padding is not what the Pad does."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.fusion.fold_pad import fold_pad
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import Array, apply, model, operators, reasons, run, stops

PADS = np.array([0, 0, 1, 2, 0, 0, 0, 1])
LOWEST = np.finfo(np.float32).min


def weight(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def padded(
    last: str,
    *,
    pads: Array = PADS,
    value: float | None = None,
    attributes: str = "",
    dims: str = "2,4,7,9",
    opset: int = 17,
    before: str = "",
) -> ir.Model:
    """x, a Pad of it (p), and ``last``, which makes y of p."""
    arrays = {"pads": pads} | ({} if value is None else {"value": np.array(value, np.float32)})
    if "w" in last.replace("(", " ").replace(",", " ").replace(")", " ").split():
        arrays["w"] = weight(6, 4, 3, 3)
    source = "s" if before else "x"
    pad = f"p = Pad {attributes} ({source}, pads{', value' if value is not None else ''})"
    return model(f"(float[{dims}] x) => (float[N,M,H,W] y) {{ {before} {pad} {last} }}", opset=opset, **arrays)


def pads_of(m: ir.Model) -> list[int]:
    return list(m.graph[-1].attributes["pads"].as_ints())


def skipped(m: ir.Model) -> list[str]:
    result = fold_pad.run(m, Context())
    assert not result.rewrites
    return reasons(result)


class TestConvolutions:
    def test_no_pads_of_its_own(self) -> None:
        m = padded("y = Conv (p, w)")
        result = apply(fold_pad, m)
        assert operators(m) == ["Conv"]
        assert pads_of(m) == [1, 2, 0, 1]
        assert [value.name for value in m.graph[0].inputs if value] == ["x", "w"]
        assert len(result.rewrites[0].before) == 2

    def test_pads_are_added(self) -> None:
        m = padded("y = Conv <pads = [1, 0, 2, 3], strides = [2, 1], dilations = [1, 2]> (p, w)", value=0.0)
        apply(fold_pad, m)
        assert pads_of(m) == [2, 2, 2, 4]
        assert list(m.graph[0].attributes["strides"].as_ints()) == [2, 1]

    def test_pads_beyond_the_kernel(self) -> None:
        m = padded("y = Conv (p, w)", pads=np.array([0, 0, 5, 0, 0, 0, 0, 7]))
        apply(fold_pad, m)
        assert pads_of(m) == [5, 0, 0, 7]

    @pytest.mark.parametrize("auto", ["VALID", "NOTSET", "SAME_UPPER", "SAME_LOWER"])
    @pytest.mark.parametrize("strides", ["1, 1", "2, 3"])
    def test_auto_pad(self, auto: str, strides: str) -> None:
        m = padded(f'y = Conv <auto_pad = "{auto}", strides = [{strides}], kernel_shape = [3, 3]> (p, w)')
        apply(fold_pad, m)
        assert operators(m) == ["Conv"]
        assert "auto_pad" not in m.graph[0].attributes

    def test_auto_pad_of_an_unknown_size(self) -> None:
        same = 'y = Conv <auto_pad = "SAME_UPPER", strides = [{}]> (p, w)'
        apply(fold_pad, m := padded(same.format("1, 1"), dims="2,4,height,width"))
        assert operators(m) == ["Conv"]
        reason = "how much auto_pad=SAME_UPPER pads depends on the size of the input, which is unknown"
        assert skipped(padded(same.format("2, 1"), dims="2,4,height,width")) == [reason]

    @pytest.mark.parametrize("axes", [[2, 3], [-1, -2], [3]])
    def test_axes(self, axes: list[int]) -> None:
        text = "(float[2,4,7,9] x) => (float[N,M,H,W] y) { p = Pad (x, pads, , axes) y = Conv (p, w) }"
        pads = np.arange(2 * len(axes))
        m = model(text, opset=18, w=weight(6, 4, 3, 3), pads=pads, axes=np.array(axes))
        apply(fold_pad, m)
        assert operators(m) == ["Conv"]

    def test_pads_as_an_attribute(self) -> None:
        text = """(float[2,4,7,9] x) => (float[N,M,H,W] y)
            { p = Pad <pads = [0, 0, 1, 2, 0, 0, 0, 1], value = 0.0> (x) y = Conv (p, w) }"""
        m = model(text, opset=10, w=weight(6, 4, 3, 3))
        apply(fold_pad, m)
        assert pads_of(m) == [1, 2, 0, 1]

    def test_one_pad_after_the_other(self) -> None:
        m = padded("y = Conv (p, w)", before="s = Pad (x, pads)")
        assert len(apply(fold_pad, m).rewrites) == 2
        assert pads_of(m) == [2, 4, 0, 2]
        assert stops(fold_pad, padded("y = Conv (p, w)", before="s = Pad (x, pads)"), 1) == 1

    def test_others_keep_the_pad(self) -> None:
        m = padded("a = Conv (p, w) b = Neg(p) c = GlobalMaxPool(b) y = Add(a, a)")
        apply(fold_pad, m)
        assert operators(m) == ["Pad", "Conv", "Neg", "GlobalMaxPool", "Add"]

    def test_a_pad_for_two_convolutions_goes(self) -> None:
        m = padded("a = Conv (p, w) b = Conv <strides = [1, 1]> (p, w) y = Add(a, b)")
        apply(fold_pad, m)
        assert operators(m) == ["Conv", "Conv", "Add"]

    def test_in_a_function(self) -> None:
        function = """<opset_import: ["": 17], domain: "local"> f (x, w) => (y) {
            pads = Constant <value_ints = [0, 0, 1, 2, 0, 0, 0, 1]> () p = Pad (x, pads)
            y = Conv <kernel_shape = [3, 3]> (p, w) }"""
        text = "(float[2,4,7,9] x) => (float[N,M,H,W] y) { y = local.f(x, w) }"
        m = model(text, functions=function, w=weight(6, 4, 3, 3))
        apply(fold_pad, m)
        assert operators(m) == ["f", "Conv"]

    def test_in_a_branch(self) -> None:
        text = """(float[2,4,7,9] x, bool q) => (float[N,M,H,W] z) {
            z = If (q) <then_branch = t () => (float[A,B,C,D] y) { p = Pad (x, pads) y = Conv (p, w) },
                        else_branch = e () => (float[2,4,7,9] n) { n = Neg(x) }> }"""
        m = model(text, pads=PADS, w=weight(6, 4, 3, 3))
        apply(fold_pad, m, inputs={"x": weight(2, 4, 7, 9), "q": np.array(True)})
        assert operators(m) == ["If", "Conv", "Neg"]


class TestPooling:
    @pytest.mark.parametrize("value", [float("-inf"), float(LOWEST)])
    def test_max_of_the_least(self, value: float) -> None:
        m = padded("y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (p)", value=value)
        apply(fold_pad, m, rtol=0, atol=0)
        assert operators(m) == ["MaxPool"]
        assert pads_of(m) == [1, 2, 0, 1]

    @pytest.mark.parametrize("before", ["s = Relu(x)", "s = Sigmoid(x)", "s = Clip(x, low)"])
    def test_max_of_zero_where_nothing_is_less(self, before: str) -> None:
        if "Clip" in before:
            before = "low = Constant <value_float = 0.0> () " + before
        m = padded("y = MaxPool <kernel_shape = [3, 3]> (p)", before=before)
        apply(fold_pad, m, rtol=0, atol=0)
        assert "Pad" not in operators(m)

    def test_unsigned_integers(self) -> None:
        text = "(uint8[1,2,5,5] x) => (uint8[N,M,H,W] y) { p = Pad (x, pads) y = MaxPool <kernel_shape = [3, 3]> (p) }"
        m = model(text, pads=PADS)
        apply(fold_pad, m, inputs={"x": np.random.default_rng(0).integers(0, 255, (1, 2, 5, 5), np.uint8)})
        assert operators(m) == ["MaxPool"]

    @pytest.mark.parametrize("own", ["", ", count_include_pad = 1, pads = [0, 0, 1, 0]", ", count_include_pad = 1"])
    def test_average(self, own: str) -> None:
        m = padded(f"y = AveragePool <kernel_shape = [3, 3]{own}> (p)")
        apply(fold_pad, m)
        assert operators(m) == ["AveragePool"]
        assert m.graph[0].attributes["count_include_pad"].as_int() == 1

    @pytest.mark.parametrize(
        ("last", "value", "reason"),
        [
            (
                "MaxPool <kernel_shape = [3, 3]> (p)",
                0.0,
                "the Pad pads with 0, MaxPool with −∞, and the input may be smaller",
            ),
            ("MaxPool <kernel_shape = [3, 3], dilations = [2, 1]> (p)", -np.inf, "MaxPool has dilations"),
            ("MaxPool <kernel_shape = [2, 2]> (p)", -np.inf, "the pads would be as large as the window"),
            (
                "MaxPool <kernel_shape = [3, 3], ceil_mode = 1> (p)",
                -np.inf,
                "MaxPool has ceil_mode=1: where its last window begins depends on whose padding it is",
            ),
            (
                'MaxPool <kernel_shape = [3, 3], auto_pad = "SAME_UPPER"> (p)',
                -np.inf,
                "how much auto_pad=SAME_UPPER pads is unknown",
            ),
            ("AveragePool <kernel_shape = [3, 3]> (p)", 1.0, "the Pad pads with 1, AveragePool with 0"),
            (
                "AveragePool <kernel_shape = [4, 4], pads = [1, 1, 1, 1]> (p)",
                0.0,
                "AveragePool does not count its own padding",
            ),
            (
                'AveragePool <kernel_shape = [4, 4], auto_pad = "NOTSET", pads = [1, 1, 1, 1]> (p)',
                0.0,
                "AveragePool does not count its own padding",
            ),
        ],
    )
    def test_skips(self, last: str, value: float, reason: str) -> None:
        assert skipped(padded(f"y = {last}", value=value)) == [reason]

    def test_indices(self) -> None:
        text = """(float[1,2,6,6] x) => (float[N,M,H,W] y, int64[N,M,H,W] i)
            { p = Pad (x, pads, value) y, i = MaxPool <kernel_shape = [3, 3]> (p) }"""
        m = model(text, pads=PADS, value=np.array(-np.inf, np.float32))
        assert skipped(m) == ["the indices of MaxPool are used, which count the padding"]

    def test_indices_that_nobody_uses(self) -> None:
        m = padded("y, i = MaxPool <kernel_shape = [3, 3]> (p)", value=-np.inf)
        apply(fold_pad, m)
        assert operators(m) == ["MaxPool"]


class TestSkips:
    @pytest.mark.parametrize(
        ("pads", "reason"),
        [
            ([0, 0, -1, 0, 0, 0, 1, 0], "the Pad crops: a pad is negative"),
            ([0, 1, 1, 1, 0, 0, 1, 1], "the Pad pads the batch or the channels"),
            ([1, 0, 1, 1, 0, 0, 1, 1], "the Pad pads the batch or the channels"),
        ],
    )
    def test_pads(self, pads: list[int], reason: str) -> None:
        assert skipped(padded("y = Conv (p, w)", pads=np.array(pads))) == [reason]

    @pytest.mark.parametrize("mode", ["reflect", "edge"])
    def test_mode(self, mode: str) -> None:
        assert skipped(padded("y = Conv (p, w)", attributes=f'<mode = "{mode}">')) == [f"the Pad has mode {mode}"]

    def test_value(self) -> None:
        assert skipped(padded("y = Conv (p, w)", value=0.5)) == ["the Pad pads with 0.5, a convolution with 0"]

    @pytest.mark.parametrize(
        ("given", "reason"),
        [
            ("int64[8] pads", "the pads are not constant"),
            ("float value", "the value of the Pad is not constant"),
            ("int64[4] axes", "the axes of the Pad are not constant"),
        ],
    )
    def test_what_callers_give(self, given: str, reason: str) -> None:
        arrays = {"pads": PADS, "value": np.array(0, np.float32), "axes": np.arange(4), "w": weight(6, 4, 3, 3)}
        del arrays[given.split()[1]]
        text = f"(float[2,4,7,9] x, {given}) => (float[N,M,H,W] y) {{ p = Pad (x, pads, value, axes) y = Conv (p, w) }}"
        assert skipped(model(text, opset=18, **arrays)) == [reason]

    def test_integer_convolutions(self) -> None:
        text = "(uint8[1,1,5,5] x) => (int32[N,M,H,W] y) { p = Pad (x, pads) y = ConvInteger (p, w, zero) }"
        m = model(text, pads=PADS, w=np.ones((1, 1, 3, 3), np.uint8), zero=np.array(128, np.uint8))
        assert skipped(m) == ["ConvInteger pads by its zero point"]

    def test_transposed_convolutions_are_none_of_its_business(self) -> None:
        text = "(float[2,4,7,9] x) => (float[N,M,H,W] y) { p = Pad (x, pads) y = ConvTranspose (p, w) }"
        assert skipped(model(text, pads=PADS, w=weight(4, 6, 3, 3))) == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_window(data: st.DataObject) -> None:
    """Whatever it decides, the numbers are the same."""
    draw = data.draw
    rank = draw(st.integers(1, 3))
    operator = draw(st.sampled_from(["Conv", "MaxPool", "AveragePool"]))
    numbers = st.integers(0, 2)
    own = draw(st.lists(numbers, min_size=2 * rank, max_size=2 * rank))
    kernel = draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    if operator != "Conv":  # or ONNX Runtime refuses the model
        own = [min(pad, size - 1) for pad, size in zip(own, kernel * 2, strict=True)]
    spatial = draw(st.lists(numbers, min_size=2 * rank, max_size=2 * rank))
    pads = np.array([0, 0, *spatial[:rank], 0, 0, *spatial[rank:]])
    attributes = {
        "kernel_shape": kernel,
        "pads": own,
        "strides": draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)),
    }
    if operator == "Conv":
        attributes["dilations"] = draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank))
    listed = ", ".join(f"{name} = {values}" for name, values in attributes.items())
    if operator != "Conv":
        listed += f", ceil_mode = {draw(st.integers(0, 1))}"
    if operator == "AveragePool":
        listed += f", count_include_pad = {draw(st.integers(0, 1))}"
    value = draw(st.sampled_from([0.0, -np.inf, 1.0] if operator == "MaxPool" else [0.0, 1.0]))
    arrays = {"pads": pads, "value": np.array(value, np.float32)}
    if operator == "Conv":
        arrays["w"] = weight(3, 2, *kernel)
    dims, free = ",".join(["8"] * rank), ",".join("HWD"[:rank])
    text = f"""(float[2,2,{dims}] x) => (float[N,M,{free}] y)
        {{ p = Pad (x, pads, value) y = {operator} <{listed}> ({"p, w" if operator == "Conv" else "p"}) }}"""
    apply(fold_pad, model(text, **arrays), rtol=1e-4)


@pytest.mark.parametrize(
    ("last", "value"),
    [
        ("y = Conv <pads = [1, 1, 1, 1]> (p, w)", 0.0),
        ("y = Conv <strides = [2, 2]> (p, w)", 0.0),
        ("y = MaxPool <kernel_shape = [3, 3]> (p)", -np.inf),
        ("y = AveragePool <kernel_shape = [3, 3]> (p)", 0.0),
    ],
)
def test_migraphx_computes_the_same(last: str, value: float, device: Device) -> None:
    m = padded(last, value=value)
    before = run(ir.to_proto(m))["y"]
    apply(fold_pad, m)
    assert "Pad" not in operators(m)
    np.testing.assert_allclose(device.run(ir.to_proto(m))[0], before, rtol=1e-4, atol=1e-5)
