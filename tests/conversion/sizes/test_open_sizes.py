"""Sizes that a model leaves open, as old Paddle exports write them: -1, ``?``, or nothing."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import onnx_bridge
from onnx_bridge.batch.model_info import read_model_info
from onnx_bridge.cli.main import app
from onnx_bridge.conversion.sizes.open_sizes import OpenSizesError
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.model import io
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests import texts
from onnx_bridge.samples import inputs as samplers
from passes.rewriting.base import Proof
from tests.passes.harness import run
from tests.passes.helpers import DECODER, DECODER_WEIGHTS, tiny

RNG = np.random.default_rng(0)


def paddle(path: Path, kernel: int = 3) -> onnx.ModelProto:
    """A convolution of images, and a copy of their sizes, with the dimensions that old Paddle exports have."""

    def typed(name: str, shape: list[Any]) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    weight = onnx.numpy_helper.from_array(RNG.standard_normal((4, 3, kernel, kernel), np.float32), "w")
    nodes = [
        onnx.helper.make_node("Conv", ["image", "w"], ["c"], pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Relu", ["c"], ["y"]),
        onnx.helper.make_node("Neg", ["size"], ["z"]),
    ]
    inputs = [typed("image", [-1, 3, "?", "?"]), typed("size", ["?", 2])]
    outputs = [typed("y", [-1, 4, "?", -1]), typed("z", ["?", "?"])]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 11)], ir_version=7)
    onnx.save(model, path)
    return model


def test_each_is_a_size_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    paddle(path)
    assert [each.shape for each in samplers.specs(io.load(path))] == [(None, 3, None, None), (None, 2)]
    sample = {"image": np.zeros((2, 3, 4, 5), np.float32), "size": np.zeros((7, 2), np.float32)}
    samplers.validate(sample, io.load(path))
    assert read_model_info(path).symbols == ()


@pytest.mark.parametrize("in_memory", [False, True])
def test_conversion(runtime: Runtime, tmp_path: Path, in_memory: bool) -> None:
    path = tmp_path / "m.onnx"
    proto = paddle(path)
    source = ir.from_proto(proto) if in_memory else path
    shapes = {"image": [2, 3, 5, 8], "size": [7, 2]}
    bundle = onnx_bridge.convert(source, tmp_path / "out", shapes=shapes)
    assert bundle.wholly_on_migraphx
    assert [each.shape for each in bundle.outputs] == [(2, 4, 5, 8), (7, 2)]
    sample = {name: RNG.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    expected, actual = run(proto, sample), bundle(sample)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5)


def test_without_sizes_everything_still_runs(runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    paddle(path)
    bundle = onnx_bridge.convert(path, tmp_path / "out", dim_default=1)
    assert bundle.wholly_on_migraphx
    assert [each.shape for each in bundle.inputs] == [(1, 3, 1, 1), (1, 2)]
    chosen = {"image": {"image[0]": 1, "image[2]": 1, "image[3]": 1}, "size": {"size[0]": 1}}
    assert bundle.manifest.chosen == chosen
    assert any("image[0]=1, image[2]=1, image[3]=1, size[0]=1" in note for note in bundle.manifest.notes)


@pytest.mark.parametrize("verb", ["convert", "doctor"])
def test_inputs_that_are_too_small(runtime: Runtime, tmp_path: Path, verb: str) -> None:
    """A kernel of 7 does not fit into an image of 1: the error names every size that is open."""
    path = tmp_path / "m.onnx"
    paddle(path, kernel=7)
    with pytest.raises(InputError) as error:
        getattr(onnx_bridge, verb)(path, tmp_path / "out")
    assert all(name in error.value.what for name in ("image[0]", "image[2]", "image[3]", "size[0]"))


NEG = "y = Neg(x)"
ASKED = {
    "image": ("float[batch, 3, height, width]", NEG, {"height": 224, "width": 224}),
    "unnamed": ("float[?, 3, ?, 8]", NEG, {"x[2]": 224}),
    "tokens": ("int64[batch, sequence]", NEG, {"sequence": 128}),
    "tokens alone": ("int64[seq_len]", NEG, {"seq_len": 128}),
    "batch second": ("float[time, batch, 4]", NEG, {"time": 128}),
    "sound": ("float[n, 1, audio_length]", NEG, {"audio_length": 16000}),
    "frames of sound": ("float[n, speech_length, 80]", NEG, {"speech_length": 128}),
    "a cache": ("float[b, 2, past_length, 4]", NEG, {"past_length": 128}),
    "smaller": ("float[batch, n]", "s = Shape<start = 1>(x) p = Slice(k, zero, s) y = Add(x, p)", {"n": 64}),
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("verb", ["convert", "doctor"])
def test_sizes_that_nobody_chose_are_asked_for(runtime: Runtime, tmp_path: Path, verb: str, name: str) -> None:
    """All but those of a batch, by options that can be typed as they are."""
    declared, body, expected = ASKED[name]
    constants = {"k": np.ones(64, np.float32), "zero": np.array([0])}
    model = tiny(f"({declared} x) => ({declared} y) {{ {body} }}", **constants)
    given = {"out": tmp_path / "out"} if verb == "convert" else {}
    with pytest.raises(OpenSizesError) as error:
        getattr(onnx_bridge, verb)(model, **given)
    assert error.value.advised == expected
    flags, values = error.value.options[::2], error.value.options[1::2]
    read = {flag: [text for each, text in zip(flags, values, strict=True) if each == flag] for flag in flags}
    given |= {"dims": texts.dims(read.get("--dim", [])), "shapes": texts.shapes(read.get("--shape", []))}
    assert getattr(onnx_bridge, verb)(model, **given)


DETECTOR = """(float[batch, 1, height, width] image) => (float[a, b, c, d] y)
{
    c1 = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(image, w)
    c2 = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(c1, w)
    up = Resize<mode = "nearest">(c2, , scales)
    y = Concat<axis = 1>(c1, up)
}"""
"""A pyramid of features, whose levels fit one another for multiples of four only."""
PYRAMID = {"w": np.ones((1, 1, 3, 3), np.float32), "scales": np.array([1, 1, 2, 2], np.float32)}
SPEECH = """(float[batch, 1, samples] x) => (float[a, b, c] y)
{ c = Conv(x, w)  y = Relu(c) }"""
"""A Fourier transform as a convolution over frames."""
FRAMES = {"w": np.ones((2, 1, 5), np.float32)}


@pytest.mark.parametrize("verb", ["convert", "doctor", "check", "bisect"])
@pytest.mark.parametrize(
    ("text", "constants", "small", "enough"),
    [(DETECTOR, PYRAMID, ("height", "width"), 224), (SPEECH, FRAMES, ("samples",), 16000)],
)
def test_sizes_that_do_not_work(
    runtime: Runtime, tmp_path: Path, verb: str, text: str, constants: dict[str, Any], small: tuple[str], enough: int
) -> None:
    """Whether inference or ONNX Runtime notices: nothing is blamed on MIGraphX, and every size is named."""
    model = tiny(text, **constants)
    given = {"out": tmp_path / "out"} if verb in ("convert", "doctor") else {}
    with pytest.raises(OpenSizesError) as error:
        getattr(onnx_bridge, verb)(model, **given)
    assert error.value.too_small == small
    assert error.value.sizes == {"batch": 1} | dict.fromkeys(small, 1)
    assert error.value.enough == enough
    assert error.value.node
    assert f"`dims={dict.fromkeys(small, enough)}`" in str(error.value)
    assert error.value.exit_code != 0


PADDED = """(float[batch, sequence] x) => (float[a, b, c] y) {
    p = Pad<mode = "reflect">(x, pads) u = Unsqueeze(p, axis) y = Conv<strides = [8]>(u, w) }"""
PADS = {"pads": np.array([0, 0, 0, 4]), "axis": np.array([1]), "w": np.ones((2, 1, 16), np.float32)}
TRANSFORMER = """(float[batch, 3, height, width] x) => (float[a, b, c] y) {
    p = Conv<strides = [STRIDE, STRIDE]>(x, w) f = Reshape(p, s) t = Transpose<perm = [0, 2, 1]>(f)
    u = Pad(t, first) y = Add(u, positions) }"""
WINDOWS = """(float[batch, 3, height, width] x) => (float[a, b, c, d, e, f] y) {
    p = Conv<strides = [4, 4]>(x, w) t = Transpose<perm = [0, 2, 3, 1]>(p) y = Reshape(t, s) }"""
GRID = """(float[batch, 3, height, width] x) => (float[a, b, c, d] y) {
    p = Conv<strides = [4, 4]>(x, w) y = Add(p, positions) }"""
CLASSIFIER = """(float[batch, 3, height, width] x) => (float[a, b, c] y) {
    p = Conv<strides = [4, 4]>(x, w) f = Reshape(p, s) t = Transpose<perm = [0, 2, 1]>(f)
    b = Shape<start = 0, end = 1>(x) all = Concat<axis = 0>(b, open, open) n = Shape(all)
    ones = ConstantOfShape<value = int64[1] {1}>(n) m = Mul(ones, open) e = Equal(all, m) r = Where(e, ones, all)
    g = Expand(token, r) u = Concat<axis = 1>(g, t) y = Add(u, positions) }"""
"""Exporters ask for -1 in ``token.expand(batch, -1, -1)`` as they do in PyTorch."""
SPECTRA = """(float[batch, time, mel] x) => (float[a, b, c] y) {
    u = Unsqueeze(x, axis) p = Conv<strides = [10, 10]>(u, w) f = Reshape(p, s) y = MatMul(f, k) }"""
FRAMED = "(float[batch, 3, n] x) => (float[a, b, c] y) { p = Conv<strides = [2], pads = [1, 1]>(x, w) y = Add(p, k) }"
FLAT = """(float[batch, 3, height, width] x) => (float[a, b] y) {
    c = MaxPool<kernel_shape = [4, 4], strides = [4, 4]>(x) f = Flatten(c) y = MatMul(f, w) }"""
COMPUTED = """(float[batch, 3, height, width] x) => (float[a, b, c, d, e, f] y) {
    p = Conv<strides = [4, 4]>(x, w) b = Shape<end = 2>(p) s = Shape<start = 2>(p) q = Div(s, seven)
    h = Slice(q, zero, one) v = Slice(q, one, two) r = Concat<axis = 0>(b, h, seven, v, seven) y = Reshape(p, r) }"""
WEIGHTED = "(float[batch, time, mel] x) => (float[a, b, c] y) { d = Concat<axis = 2>(x, x) y = MatMul(d, w) }"
FOLDED = "(float[batch, n] x) => (float[batch, b, c] y) { y = Reshape(x, s) z = Add(x, x) }"
HALVED = """(float[batch, 1, height, width] x) => (float[a, b, c, d] y) {
    p = MaxPool<kernel_shape = [STRIDE, STRIDE], strides = [STRIDE, STRIDE], ceil_mode = 1>(x)
    u = Resize<mode = "nearest">(p, , scales) y = Add(u, x) }"""
"""What was halved some times is added to what was not: it fits a multiple of the stride, or broadcasts from 1."""
VERSIONS = """(float[b, 7, 1] x, float[n, 7, 1] z) => (float[c, d] y) {
    u = Concat<axis = 2>(x, x, z) p = ReduceMean<axes = [2]>(u) q = Squeeze(p) y = Reshape(q, s) }"""
"""Four versions of each sample (ICLabel): inference, too, finds that a batch of 1 does not fit."""
PATCHES = np.ones((8, 3, 4, 4), np.float32)
SHORT = "(float[1, 1, n] x) => (float[a, b, c] y) { y = Conv<strides = [2]>(x, w) }"
WINDOW = np.ones((1, 1, 3), np.float32)


def halved(stride: int) -> tuple[str, dict[str, Any]]:
    return HALVED.replace("STRIDE", str(stride)), {"scales": np.array([1, 1, stride, stride], np.float32)}


def vision(patch: int, count: int) -> tuple[str, dict[str, Any]]:
    positions = RNG.standard_normal((1, count * count + 1, 4)).astype(np.float32)
    weights = {"w": np.ones((4, 3, patch, patch), np.float32), "s": np.array([0, 4, -1])}
    return TRANSFORMER.replace("STRIDE", str(patch)), {
        **weights, "first": np.array([0, 1, 0, 0, 0, 0]), "positions": positions,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "constants", "dims", "right"),
    [
        (PADDED, PADS, {}, {"sequence": 128}),
        (PADDED, PADS, {"sequence": 3}, {"sequence": 12}),
        (PADDED, PADS, {"batch": 3}, {"sequence": 128}),
        (SHORT, {"w": WINDOW}, {}, {"n": 128}),
        (SHORT, {"w": WINDOW}, {"n": 2}, {"n": 3}),
        (*vision(8, 4), {}, {"height": 32, "width": 32}),
        (*vision(16, 14), {}, {"height": 224, "width": 224}),
        (*vision(14, 37), {"height": 64, "width": 64}, {"height": 518, "width": 518}),
        (*vision(8, 4), {"batch": 2, "height": 32, "width": 64}, {"width": 32}),
        (WINDOWS, {"w": PATCHES, "s": np.array([-1, 8, 7, 8, 7, 8])}, {}, {"height": 224, "width": 224}),
        (GRID, {"w": PATCHES, "positions": np.ones((1, 8, 12, 16), np.float32)}, {}, {"height": 48, "width": 64}),
        (FOLDED, {"s": np.array([0, 12, 4])}, {"n": 6}, {"n": 48}),
        (
            CLASSIFIER,
            {
                "w": np.ones((4, 3, 4, 4), np.float32),
                "s": np.array([0, 4, -1]),
                "open": np.array([-1]),
                "token": np.ones((1, 1, 4), np.float32),
                "positions": np.ones((1, 26, 4), np.float32),
            },
            {},
            {"height": 20, "width": 20},
        ),
        (
            SPECTRA,
            {
                "w": np.ones((4, 1, 16, 16), np.float32),
                "s": np.array([0, 4, -1]),
                "axis": np.array([1]),
                "k": np.ones((132, 2), np.float32),
            },
            {},
            {"time": 120, "mel": 128},
        ),
        (FRAMED, {"w": np.ones((4, 3, 3), np.float32), "k": np.ones((4, 30), np.float32)}, {}, {"n": 60}),
        (FLAT, {"w": np.ones((147, 2), np.float32)}, {}, {"height": 28, "width": 28}),
        (
            COMPUTED,
            {"w": PATCHES, "seven": np.array([7]), "zero": np.array([0]), "one": np.array([1]), "two": np.array([2])},
            {},
            {"height": 224, "width": 224},
        ),
        (WEIGHTED, {"w": np.ones((16, 2), np.float32)}, {}, {"mel": 8, "time": 128}),
        (VERSIONS, {"s": np.array([4, -1])}, {}, {"b": 4, "n": 4}),
        (*halved(64), {}, {"height": 256, "width": 256}),
        (*halved(512), {}, {"height": 512, "width": 1}),
    ],
)
def test_what_is_advised_works(
    runtime: Runtime, tmp_path: Path, text: str, constants: dict[str, Any], dims: dict[str, int], right: dict[str, int]
) -> None:
    """Sizes that fit are advised, else usual ones; of what was chosen the least change, if nothing else helps."""
    model = tiny(text, **constants)
    with pytest.raises(OpenSizesError) as error:
        onnx_bridge.convert(model, tmp_path / "out", dims=dims, target="ref")
    assert not (tmp_path / "out").exists()
    advised = {**dims, **ast.literal_eval(re.findall(r"`dims=(.*?)`", str(error.value.hint))[0])}
    assert advised == {**dims, **right}
    bundle = onnx_bridge.convert(model, tmp_path / "out", dims=advised, target="ref")
    assert bundle.proof.level is Proof.RUN


@pytest.mark.parametrize("dims", [{"n": 3}, {"n": 3, "batch": 4}, {"batch": 4}])
def test_a_dimension_that_only_the_batch_fits(runtime: Runtime, tmp_path: Path, dims: dict[str, int]) -> None:
    """Nobody is asked for the batch of a state, which is not its first dimension."""
    text = """(float[batch, 4, n] x, float[2, other, 4] state) => (y) {
        r = ReduceSum<keepdims = 0>(x, two) s = Gather(state, zero) y = Concat<axis = 1>(r, s) }"""
    buckets = {} if "n" in dims else {"n": [3, 5]}
    bundle = onnx_bridge.convert(
        tiny(text, two=np.array([2]), zero=np.array(0)), tmp_path / "out", dims=dims, buckets=buckets, target="ref"
    )
    batch = dims.get("batch", 1)
    assert [each.shape for each in bundle.inputs] == [(batch, 4, dims.get("n", "n")), (2, batch, 4)]


def test_a_whole_shape_is_advised_without_names(runtime: Runtime, tmp_path: Path) -> None:
    model = tiny(PADDED.replace("batch, sequence", "?, ?"), **PADS)
    with pytest.raises(OpenSizesError, match=r"`shapes=\{'x': \[1, 12\]\}`"):
        onnx_bridge.convert(model, tmp_path / "out", shapes={"x": [1, 3]}, target="ref")


def test_sizes_that_are_enough(runtime: Runtime, tmp_path: Path) -> None:
    found = onnx_bridge.check(tiny(DETECTOR, **PYRAMID), dims={"height": 8, "width": 8})
    assert found.passed


def test_the_command_names_them(tmp_path: Path, runtime: Runtime) -> None:
    ir.save(tiny(SPEECH, **FRAMES), tmp_path / "m.onnx")
    found = CliRunner().invoke(app, ["doctor", str(tmp_path / "m.onnx")])
    assert found.exit_code != 0
    assert isinstance(found.exception, OpenSizesError)


@pytest.mark.parametrize("named", [True, False])
def test_sizes_that_follow_from_the_model(runtime: Runtime, tmp_path: Path, named: bool) -> None:
    """Heads of a cache follow from weights, and the length of a mask from those of old and new keys."""
    model = tiny(DECODER, **DECODER_WEIGHTS)
    if not named:
        for value in model.graph.inputs:
            value.shape = ir.Shape([dim if isinstance(dim, int) else None for dim in value.shape or ()])
    bundle = onnx_bridge.convert(model, tmp_path / "out", dim_default=1)
    assert [each.shape for each in bundle.inputs] == [(1, 1, 8), (1, 2), (1, 2, 1, 4)]
    assert bundle.manifest.proof.level is Proof.RUN
    names = ("heads=2", "head=4", "total=2") if named else ("keys[1]=2", "keys[3]=4", "mask[1]=2")
    assert any(all(name in note for name in names) for note in bundle.manifest.notes)
    if named:
        wider = onnx_bridge.convert(model, tmp_path / "wider", dims={"past": 5, "new": 1})
        assert [each.shape for each in wider.inputs] == [(1, 1, 8), (1, 6), (1, 2, 5, 4)]


def test_values_that_do_not_fit_are_no_matter_of_sizes(runtime: Runtime) -> None:
    """The index is out of range for whatever sizes: ONNX Runtime's refusal is a note."""
    text = "(float[n, 4] x, int64[n] i) => (float[a, b] y) { j = Add(i, far)  y = Gather<axis = 1>(x, j) }"
    found = onnx_bridge.clean(tiny(text, far=np.array([1000])), dim_default=1)
    assert any("ONNX Runtime" in note for note in found.notes)


@pytest.mark.parametrize("inner", ["a = Identity(x)", "a = Neg(x)"])
def test_what_no_size_repairs_is_not_blamed_on_sizes(runtime: Runtime, inner: str) -> None:
    model = tiny(f"(float[n, 5] x) => (float[n, 4] y) {{ {inner}  y = MatMul(a, w) }}", w=np.ones((4, 4), np.float32))
    found = onnx_bridge.doctor(model)
    assert not found.passed
    assert found.problem == onnx_bridge.doctor(model, dims={"n": 1}).problem
    assert "MatMul" in found.problem


STEERED = {
    "Range": "(float[n] x, int64 i) => (y) { r = Range(zero, i, one) f = Cast<to = 1>(r) y = Add(x, f) }",
    "ConstantOfShape": "(float[n] x, int64[1] i) => (y) { k = ConstantOfShape(i) y = Add(x, k) }",
    "Expand": "(float[n] x, int64[1] i) => (y) { j = Add(i, two) k = Expand(single, j) y = Mul(x, k) }",
    "Slice": "(float[n] x, int64[1] i) => (y) { k = Slice(x, first, i) e = Neg(k) y = Add(x, e) }",
    "Compress": "(float[n] x, bool[m] i) => (y) { k = Compress(x, i) y = Add(x, k) }",
}
NUMBERS = {"zero": np.array(0), "one": np.array(1), "two": np.array([2]), "first": np.array([0]),
           "single": np.ones(1, np.float32)}  # fmt: skip


@pytest.mark.parametrize("name", STEERED)
def test_values_that_select_sizes_are_not_blamed_on_chosen_sizes(runtime: Runtime, tmp_path: Path, name: str) -> None:
    """Generated values select sizes that do not suit; those of a real use do."""
    used = {key: array for key, array in NUMBERS.items() if key in STEERED[name]}
    model, size = tiny(STEERED[name], **used), 7
    dims = {"n": size, "m": size} if name == "Compress" else {"n": size}
    bundle = onnx_bridge.convert(model, tmp_path / "out", dims=dims, target="ref", prove="never")
    x = RNG.standard_normal(size).astype(np.float32)
    i = {"Range": np.array(size), "Compress": np.ones(size, bool), "Expand": np.array([5])}.get(name, np.array([size]))
    np.testing.assert_array_equal(bundle({"x": x, "i": i})["y"], Reference(model).run({"x": x, "i": i})["y"])
