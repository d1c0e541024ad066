"""Sizes that depend on elements known at run time: what a run or a declaration says of them is not a fact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_bridge
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples import inputs as samplers
from passes.graphs.scopes import Scope
from passes.shapes.steered_sizes import steered_outputs
from tests.passes.harness import run

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "local": 1]> g '
Array = np.ndarray[Any, Any]


def text_model(text: str) -> ir.Model:
    return ir.from_onnx_text(HEAD + text)


def floats(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def cached(batch: int, new: int, past: int, lengths: list[int], total: int | None = None) -> dict[str, Array]:
    """The inputs of a GroupQueryAttention of one head."""
    tokens = {name: floats(batch, new, 8) + index for index, name in enumerate(("q", "k", "v"))}
    caches = {name: floats(batch, 1, past, 8) - index for index, name in enumerate(("pk", "pv"))}
    ends = {"s": np.array(lengths, np.int32)}
    return {**tokens, **caches, **ends, **({} if total is None else {"t": np.array([total], np.int32)})}


def attention(batch: int, new: int, past: int, rows: str, *, by: str = "", attributes: str = "") -> str:
    sizes = f"float[{batch},{new},8]"
    caches = f"float[{batch},1,{past},8]"
    total = "" if by else ", int32[1] t"
    return f"""({sizes} q, {sizes} k, {sizes} v, {caches} pk, {caches} pv, int32[{batch}] s{total})
        => ({sizes} y, float[{batch},1,{rows},8] nk, float[{batch},1,{rows},8] nv) {{ {by}
        y, nk, nv = com.microsoft.GroupQueryAttention<num_heads = 1, kv_num_heads = 1{attributes}>(
            q, k, v, pk, pv, s, t) }}"""


LARGEST = "m = ReduceMax<keepdims = 1>(s) one = Constant<value = int32[1] {1}>() t = Add(m, one)"
BEHIND = attention(1, 1, 3, "3").replace("nv) {", "nv, int64[4] z) {").replace("t) }", "t) z = Shape(nk) }")
GROWING = attention(1, 1, 3, "r")
WITHIN = f"""{GROWING.split("{")[0]} {{ y, nk, nv = local.attend(q, k, v, pk, pv, s, t) }}
    <domain: "local", opset_import: ["": 21, "com.microsoft": 1]>
    attend (q, k, v, pk, pv, s, t) => (y, nk, nv) {{ {GROWING.split("{")[1]}"""
CASES: dict[str, tuple[str, list[dict[str, Array]]]] = {
    "a cache that grows or not": (GROWING, [cached(1, 1, 3, [3], 4), cached(1, 1, 3, [2], 3)]),
    "declared not to grow": (attention(1, 1, 3, "3"), [cached(1, 1, 3, [3], 4), cached(1, 1, 3, [1], 2)]),
    "declared to grow": (attention(1, 1, 3, "4"), [cached(1, 1, 3, [3], 4), cached(1, 1, 3, [1], 2)]),
    "its shape": (BEHIND, [cached(1, 1, 3, [3], 4), cached(1, 1, 3, [1], 2)]),
    "within a function": (WITHIN, [cached(1, 1, 3, [3], 4), cached(1, 1, 3, [1], 2)]),
    "several tokens": (attention(1, 2, 3, "t"), [cached(1, 2, 3, [4], 5), cached(1, 2, 3, [2], 3)]),
    "a total that is computed": (
        attention(2, 1, 3, "t", by=LARGEST),
        [cached(2, 1, 3, [3, 2]), cached(2, 1, 3, [1, 2])],
    ),
    "an empty past": (attention(1, 3, 0, "t"), [cached(1, 3, 0, [2], 3)]),
    "parts": (
        "(float[6] x, int64[2] s) => (float[3] y, float[3] z) { y, z = Split(x, s) }",
        [{"x": floats(6), "s": np.array([2, 4])}, {"x": floats(6), "s": np.array([3, 3])}],
    ),
    "an axis to remove": (
        "(float[1,3,1] x, int64[1] a) => (float[3,1] y) { y = Squeeze(x, a) }",
        [{"x": floats(1, 3, 1), "a": np.array([axis])} for axis in (0, 2)],
    ),
    "an axis to add": (
        "(float[3] x, int64[1] a) => (float[1,3] y) { y = Unsqueeze(x, a) }",
        [{"x": floats(3), "a": np.array([axis])} for axis in (0, 1)],
    ),
    "a window": (
        "(int64 n) => (float[8] y) { y = HannWindow(n) }",
        [{"n": np.array(count)} for count in (8, 5)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_run_has_its_own(runtime: Runtime, tmp_path: Path, name: str) -> None:
    text, samples = CASES[name]
    model = onnx.parser.parse_model(HEAD + text)
    onnx.save(model, tmp_path / "m.onnx")
    bundle = onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "out", target="ref")
    for sample in samples:
        for output, expected in run(model, sample).items():
            np.testing.assert_allclose(bundle(sample)[output], expected, 1e-4, 1e-5)
    if name == "an empty past":
        assert bundle.wholly_on_migraphx, "its cache can only have the length of the new tokens"


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("CropAndResize(x, x, i, i)", True),
        ("CropAndResize(x, x, i, c)", False),
        ("Pad(x, i)", True),
        ("Unique(x)", True),
        ("MultiHeadAttention<num_heads = 1>(x, x, x, , , , x, x, i)", False),
        ("GroupQueryAttention<num_heads = 1, kv_num_heads = 1>(x, x, x, , , i, i)", False),
        ("Nobody(x, i)", False),
    ],
)
def test_operators_whose_sizes_are_known_to_depend_on_elements(node: str, expected: bool) -> None:
    text = f"(float[1,2] x, int32[2] i) => (y, z) <int32[2] c = {{1, 2}}> {{ y, z = com.microsoft.{node} }}"
    model = text_model(text)
    (found,) = model.graph
    assert bool(steered_outputs(found, Scope(model, model.graph))) is expected


@pytest.mark.parametrize(
    "text",
    [
        *(text for text, _ in CASES.values() if text is not WITHIN),  # uses within functions are not followed
        attention(2, 1, 3, "t"),
        attention(1, 1, 3, "3", attributes=", local_window_size = 3, sliding_window_cache = 1"),
        "(float[6] x, int64[2] s, int64 p) => (float[n] y) { q = SplitToSequence(x, s) y = SequenceAt(q, p) }",
        "(float[1,1,2] x, int64[1,1,2] i, int64[3] s) => (float[a,b,c] y) {"
        " y = MaxUnpool<kernel_shape = [2], strides = [2]>(x, i, s) }",
        "(float[2,2,3] t, int64[4] s) => (float[a,b,c,d] y) { y = AffineGrid(t, s) }",
        "(float[2,1,8,8] x, float[3,4] r, int32[3] b, int32[2] s) => (y) {"
        " y = com.microsoft.CropAndResize(x, r, b, s) }",
        "(float[2,1,8,8] x, float[3,4] r, int64[3] b) => (y) { y = RoiAlign(x, r, b) }",
        "(float[2,1,8,8] x, float[3,5] r) => (y) { y = MaxRoiPool<pooled_shape = [2, 2]>(x, r) }",
        '(float[1,2,4,4] x, int64[4] s) => (float[a,b,c,d] y) { y = Resize<mode = "linear">(x, , , s) }',
        "(float[1,16,1] x, int64 s, int64 l) => (float[a,b,c,d] y) { y = STFT(x, s, , l) }",
        "(float[1,8,1] x, int64 n, int64 a) => (float[b,c,d] y) { y = DFT(x, n, a) }",
        "(int64 a, int64 b, int64 c, float d, float e) => (float[m,n] y) { y = MelWeightMatrix(a, b, c, d, e) }",
        "(float[1,1,8] q, float[1,1,3,8] p, float[1,1,3,8] w, int32[1] n) => (y, nk, nv) {"
        " y, nk, nv = com.microsoft.MultiHeadAttention<num_heads = 1>(q, q, q, , , , p, w, n) }",
        "(float[1,2,8] x, int64[1,2] p, float[9,4] c, float[9,4] s) => (y) {"
        " y = com.microsoft.RotaryEmbedding(x, p, c, s) }",
        "(int64[1,4] x, float[1,3] s) => (y) { y = com.microsoft.NGramRepeatBlock<ngram_size = 2>(x, s) }",
    ],
)  # fmt: skip
def test_generated_inputs_keep_the_contract_of_the_operator(text: str) -> None:
    model = text_model(text)
    for sample in samplers.generate(model, samples=3):
        Reference(model).run(sample)
