"""Indices and lengths that are out of bounds: refused in one line before MIGraphX aborts, or reads other memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import onnx_bridge
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference.reference import Reference
from tests.passes.harness import model


def numbers(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def filled(number: int, *shape: int) -> Array:
    return np.full(shape, number)


ROWS = {"w": numbers(8, 4)}
X = {"x": numbers(2, 5)}
CASES: dict[str, tuple[str, dict[str, Array], Callable[[int], dict[str, Array]], int, int]] = {
    "Gather": ("(int64[1,3] i) => (y) { y = Gather(w, i) }", ROWS, lambda n: {"i": filled(n, 1, 3)}, -8, 7),
    "axis of an input": (
        "(float[2,N] x, int64[3] i) => (y) { y = Gather<axis=1>(x, i) }",
        {}, lambda n: {**X, "i": filled(n, 3)}, -5, 4,
    ),
    "behind a cast and a shift": (
        "(int32[3] i) => (y) { c = Cast<to=7>(i) s = Add(c, two) y = Gather(w, s) }",
        {**ROWS, "two": np.array(2)}, lambda n: {"i": filled(n, 3).astype(np.int32)}, -10, 5,
    ),
    "GatherElements": (
        "(float[2,5] x, int64[2,5] i) => (y) { y = GatherElements<axis=1>(x, i) }",
        {}, lambda n: {**X, "i": filled(n, 2, 5)}, -5, 4,
    ),
    "GatherND": (
        "(float[5,5] x, int64[3,2] i) => (y) { y = GatherND(x, i) }",
        {}, lambda n: {"x": numbers(5, 5), "i": filled(n, 3, 2)}, -5, 4,
    ),
    "ScatterElements": (
        "(float[2,5] x, int64[2,1] i, float[2,1] u) => (y) { y = ScatterElements<axis=1>(x, i, u) }",
        {}, lambda n: {**X, "i": filled(n, 2, 1), "u": numbers(2, 1)}, -5, 4,
    ),
    "ScatterND": (
        "(float[5] x, int64[1,1] i, float[1] u) => (y) { y = ScatterND(x, i, u) }",
        {}, lambda n: {"x": numbers(5), "i": filled(n, 1, 1), "u": numbers(1)}, -5, 4,
    ),
    "GRU": (
        "(float[4,1,3] x, int32[1] n) => (y) { y = GRU<hidden_size=2>(x, w, r, , n) }",
        {"w": numbers(1, 6, 3), "r": numbers(1, 6, 2)},
        lambda n: {"x": numbers(4, 1, 3), "n": filled(n, 1).astype(np.int32)}, 0, 4,
    ),
    "ReverseSequence": (
        "(float[4,2] x, int64[2] n) => (y) { y = ReverseSequence(x, n) }",
        {}, lambda n: {"x": numbers(4, 2), "n": filled(n, 2)}, 0, 4,
    ),
    "computed": (
        "(int64[3] i) => (y) { c = Mul(i, two) y = Gather(w, c) }",
        {**ROWS, "two": np.array(2)}, lambda n: {"i": filled(n, 3)}, -4, 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_bounds_are_those_of_the_reference(name: str, runtime: Runtime, tmp_path: Path) -> None:
    text, arrays, sample, low, high = CASES[name]
    source = model(text, **arrays)
    bundle = onnx_bridge.convert(source, tmp_path / "bundle", target="ref", dims={"N": 5} if "[2,N]" in text else {})
    reference = Reference(source)
    for number in (low, high):
        for output, expected in reference.run(sample(number)).items():
            np.testing.assert_allclose(bundle(sample(number))[output], expected, 1e-5, 1e-6)
    for number in (low - 1, high + 1, high + 1000):
        for refusing in (reference.run, bundle):
            with pytest.raises(InputError) as caught:
                refusing(sample(number))
            assert "\n" not in str(caught.value)


def test_what_only_a_part_of_the_elements_reaches_has_no_bounds(runtime: Runtime, tmp_path: Path) -> None:
    text = "(int64[4] i) => (y) { k = Slice(i, zero, two) c = Max(i, zero) y = Gather(w, k) }"
    source = model(text, w=numbers(8, 4), zero=np.array([0]), two=np.array([2]))
    bundle = onnx_bridge.convert(source, tmp_path / "bundle", target="ref")
    i = np.array([1, 2, 99, -99])
    np.testing.assert_array_equal(bundle({"i": i})["y"], Reference(source).run({"i": i})["y"])
    assert bundle.inputs[0].bounds == ()


PADDED = {
    "Gather": "(float[N,4] x, int64[2] i) => (y) { y = Gather(x, i) }",
    "GatherElements": "(float[N,4] x, int64[1,4] i) => (y) { y = GatherElements(x, i) }",
    "GatherND": "(float[N,4] x, int64[2,1] i) => (y) { y = GatherND(x, i) }",
    "Concat": "(float[N,4] x, int64[1] i) => (y) { k = Concat<axis = 0>(i, i) y = Gather(x, k) }",
}


@pytest.mark.parametrize("buckets", [[8], [2, 8]])
@pytest.mark.parametrize("name", PADDED)
def test_what_is_padded_has_the_bounds_of_what_is_real(
    name: str, buckets: list[int], runtime: Runtime, tmp_path: Path
) -> None:
    """An index from the end would be in the padding; it is right where nothing is padded."""
    source = model(PADDED[name])
    bundle = onnx_bridge.convert(source, tmp_path / "bundle", target="ref", buckets={"N": buckets})
    shape = [dim for dim in source.graph.inputs[1].shape if isinstance(dim, int)]
    for rows, right, wrong in ((5, (0, 4), (-1, 5, 7)), (8, (0, 7, -1, -8), (-9, 8))):
        for number in right:
            sample = {"x": numbers(rows, 4), "i": filled(number, *shape)}
            np.testing.assert_array_equal(bundle(sample)["y"], Reference(source).run(sample)["y"])
        for number in wrong:
            with pytest.raises(InputError, match=f"{number} is out of bounds"):
                bundle({"x": numbers(rows, 4), "i": filled(number, *shape)})


CALLED = '<domain: "local", opset_import: ["": 17]> f (a, b) => (c) { c = Gather(a, b) }'
_SCAN = "y = Scan (i) <num_scan_inputs = 1, body = b (int64 k) => (float[4] o) { o = Gather(x, k) }>"
_IF = """q = Less(z, n) y = If(q) <then_branch = t () => (float[2,4] a) { a = Gather(x, i) },
    else_branch = e () => (float[2,4] b) { b = Neg(w) }>"""
_WRAPPED = "n = Less(i, z) s = Shape(x) r = Gather(s, z) p = Add(i, r) j = Where(n, p, i) y = Gather(x, j)"
REAL: dict[str, tuple[str, list[list[int]], list[list[int]]]] = {
    "pairs": ("int64[1,2] i) => (y) { y = GatherND(x, i)", [[4, -1], [0, 3]], [[-1, 0], [5, 0]]),
    "updates": ("int64[1,2] i) => (y) { y = ScatterND(x, i, u)", [[4, -1]], [[-1, 0], [5, 0]]),
    "elements": ("int64[1,2] i) => (y) { y = ScatterElements(x, i, v)", [[4, 0]], [[-1, 0], [5, 0]]),
    "function": ("int64[2] i) => (y) { y = local.f(x, i)", [[4, 0]], [[-1, 0], [5, 0]]),
    "scan": (f"int64[2] i) => (y) {{ {_SCAN}", [[4, 0]], [[-1, 0], [5, 0]]),
    "if": (f"int64[2] i, int64 n) => (y) {{ {_IF}", [[4, 0]], [[-1, 0], [5, 0]]),
    "computed": (f"int64[2] i) => (y) {{ {_WRAPPED}", [[4, 0]], [[-1, 0]]),
    "end": ("int64[1] i) => (y) { y = Slice(x, one, i)", [[3], [5]], [[-1], [6]]),
    "depth": ("int64[2] i) => (y) { d = Shape(x) k = Gather(d, z) y = OneHot(i, k, c)", [[4, 0]], [[-1, 0]]),
}


@pytest.mark.parametrize("name", REAL)
def test_no_use_of_an_index_reads_padding(name: str, runtime: Runtime, tmp_path: Path) -> None:
    text, right, wrong = REAL[name]
    given = {"u": numbers(1), "v": numbers(1, 2), "w": numbers(2, 4), "c": np.array([0, 1], np.float32)}
    given |= {"z": np.array(0), "one": np.array([1])}
    constants = {key: array for key, array in given.items() if f"{key})" in text or f"{key}," in text}
    source = model(f"(float[N,4] x, {text} }}", functions=CALLED if name == "function" else "", **constants)
    bundle = onnx_bridge.convert(source, tmp_path / "bundle", target="ref", buckets={"N": [8]})
    shape = [dim for dim in source.graph.inputs[1].shape if isinstance(dim, int)]
    more = {"n": np.array(1)} if name == "if" else {}
    for indices in (*right, *wrong):
        sample = {"x": numbers(5, 4), "i": np.array(indices).reshape(shape), **more}
        if indices in right:
            np.testing.assert_array_equal(bundle(sample)["y"], Reference(source).run(sample)["y"])
        else:
            with pytest.raises(InputError, match="is out of bounds"):
                bundle(sample)


def test_a_table_as_long_as_a_bucket_keeps_its_bounds(runtime: Runtime, tmp_path: Path) -> None:
    source = model("(float[N,4] x, int64[2] i) => (y, z) { y = Gather(w, i) z = Relu(x) }", w=ROWS["w"])
    bundle = onnx_bridge.convert(source, tmp_path / "bundle", target="ref", buckets={"N": [8]})
    for number in (7, -8):
        sample = {"x": numbers(5, 4), "i": filled(number, 2)}
        np.testing.assert_array_equal(bundle(sample)["y"], Reference(source).run(sample)["y"])
