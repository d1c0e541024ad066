"""Witnesses: what they have in common with what they stand for, and that they are small, canonical and idempotent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from passes.graphs.scopes import Scope
from passes.graphs.tensors import constant_of
from passes.probing.fusion_clusters import fusion_clusters
from passes.probing.probe import Probe
from passes.probing.witness import witness
from passes.rewriting.base import Skip
from passes.shapes import inference
from tests.passes.helpers import tiny

Draw = Callable[[st.SearchStrategy[Any]], Any]
Shape = tuple[int, ...]

SMALL_BYTES, SMALL_WORK = 1 << 17, 400_000
SIZES = st.one_of(st.sampled_from([1, 2, 3, 4, 64, 768]), st.integers(1, 300))


def weight(*shape: int, dtype: Any = np.float32) -> Any:
    """Elements that differ, and are neither zero nor larger than 1."""
    count = int(np.prod(shape))
    array = np.arange(1, count + 1).reshape(shape) % 251 + 1
    return (array / 256).astype(dtype) if np.dtype(dtype).kind == "f" else (array % 7).astype(dtype)


def scope_of(op_type: str, operands: Mapping[str, Any], *, opset: int = 21, outputs: int = 1, **given: Any) -> Scope:
    """A model of one node: operands are shapes of float inputs, types with shapes, or constant arrays."""
    domain = given.pop("domain", "")
    names = [name if value is not None else "" for name, value in operands.items()]
    node = helper.make_node(op_type, names, [f"y{index}" for index in range(outputs)], domain=domain, **given)
    inputs, constants = [], []
    for name, value in operands.items():
        if isinstance(value, np.ndarray | np.generic):
            constants.append(numpy_helper.from_array(np.asarray(value), name))
        elif value is not None:
            dtype, shape = value if isinstance(value[0] if value else 0, str) else ("FLOAT", value)
            inputs.append(helper.make_tensor_value_info(name, TensorProto.DataType.Value(dtype), shape))
    results = [onnx.ValueInfoProto(name=f"y{index}") for index in range(outputs)]
    graph = helper.make_graph([node], "g", inputs, results, constants)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=10))
    inference.infer(model)
    inference.infer_foreign(model)
    return Scope(model, model.graph)


def probe_of(op_type: str, operands: Mapping[str, Any], **given: Any) -> Probe:
    scope = scope_of(op_type, operands, **given)
    return Probe.of([scope.graph[-1]], scope)


def small(probe: Probe) -> Probe:
    found = witness(probe)
    assert not isinstance(found, Skip), found.reason
    return found


def sizes(probe: Probe) -> list[tuple[int | None, ...] | None]:
    """The shapes of all operands of the last node, and of the outputs."""
    return [probe.shape(value) for value in (*probe.nodes[-1].inputs, *probe.outputs) if value is not None]


def run(probe: Probe) -> None:
    """Run a probe on ONNX Runtime, with small positive inputs, and compare the shapes of the outputs."""
    proto = probe.to_proto(full=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {}
    for each in proto.graph.input:
        kind = each.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        feeds[each.name] = np.ones(shape, dtype)
    for value, array in zip(probe.outputs, session.run(None, feeds), strict=True):
        shape = probe.shape(value)
        if shape is None:  # ONNX does not infer it
            continue
        assert len(shape) == array.ndim
        assert all(size in (None, actual) for size, actual in zip(shape, array.shape, strict=True))


def check(probe: Probe, *, free: tuple[str, ...] = ()) -> Probe:
    """Check what holds for every witness.

    Args:
        probe: of one node.
        free: attributes that name sizes.
    """
    found = small(probe)
    for real, own in zip(probe.nodes, found.nodes, strict=True):
        assert (real.domain, real.op_type) == (own.domain, own.op_type)
        kept = [each for each in real.attributes if each not in free]
        assert {name: str(real.attributes[name]) for name in kept} == {name: str(own.attributes[name]) for name in kept}
        assert [value is None for value in real.inputs] == [value is None for value in own.inputs]
        for one, other in zip(real.inputs, own.inputs, strict=True):
            if one is not None and other is not None:
                assert (probe.scope.constant(one) is None) == (found.scope.constant(other) is None)
                assert probe.dtype(one) == found.dtype(other)
    for before, after in zip(sizes(probe), sizes(found), strict=True):
        if before is None:  # ONNX does not infer it
            continue
        assert after is not None
        assert len(before) == len(after)
        for size, less in zip(before, after, strict=True):
            assert (size is None) == (less is None)
            if size is not None and less is not None:
                assert less <= size
                assert (less > 1) == (size > 1)
                assert (less > 0) == (size > 0)
    run(found)
    assert small(found).signature == found.signature
    return found


def is_small(probe: Probe) -> bool:
    return probe.bytes <= SMALL_BYTES and probe.work.convolved + probe.work.multiplied <= SMALL_WORK


# every family, with random attributes and sizes


@st.composite
def convolutions(draw: Draw) -> tuple[Probe, list[int]]:
    rank, group = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 2, 4]))
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    strides, dilations = ([draw(st.integers(1, 3)) for _ in range(rank)] for _ in range(2))
    pads = [draw(st.integers(0, size)) for size in kernel * 2]
    spatial = [draw(st.integers(12, 60)) for _ in range(rank)]
    channels, filters = (group * draw(st.integers(1, 20)) for _ in range(2))
    operands = {
        "x": (draw(st.integers(1, 9)), channels, *spatial),
        "w": weight(filters, channels // group, *kernel),
        **({"b": weight(filters)} if draw(st.booleans()) else {}),
    }
    given = {"strides": strides, "dilations": dilations, "group": group}
    given |= {"auto_pad": "SAME_UPPER"} if draw(st.booleans()) and dilations == [1] * rank else {"pads": pads}
    return probe_of("Conv", operands, **given), strides


@given(convolutions())
@settings(max_examples=60)
def test_convolutions(case: tuple[Probe, list[int]]) -> None:
    probe, strides = case
    found = check(probe)
    assert is_small(found)
    before, after = sizes(probe)[0], sizes(found)[0]
    assert before is not None
    assert after is not None
    for size, less, stride in zip(before[2:], after[2:], strides, strict=True):
        assert size is not None
        assert less is not None
        assert (size - less) % (2 * stride if stride % 2 else stride) == 0
    for size, less in zip(sizes(probe)[-1] or (), sizes(found)[-1] or (), strict=True):
        assert less is not None
        assert size == less or less > 1


@st.composite
def transposed_convolutions(draw: Draw) -> Probe:
    group, stride, kernel = draw(st.sampled_from([1, 3])), draw(st.integers(1, 3)), draw(st.integers(2, 5))
    channels, filters = group * draw(st.integers(1, 9)), draw(st.integers(1, 9))
    size = draw(st.integers(9, 40))
    given: dict[str, Any] = {"strides": [stride] * 2, "group": group, "dilations": [draw(st.integers(1, 2))] * 2}
    match draw(st.sampled_from(["pads", "output_padding", "output_shape"])):
        case "pads":
            given["pads"] = [draw(st.integers(0, 1)) for _ in range(4)]
        case "output_padding":
            given["output_padding"] = [draw(st.integers(0, stride - 1)) for _ in range(2)]
        case "output_shape":
            given["output_shape"] = [size * stride, size * stride]
            given["dilations"] = [1, 1]
            given["strides"] = [min(stride, kernel)] * 2
            given["output_shape"] = [size * min(stride, kernel)] * 2
    operands = {"x": (draw(SIZES), channels, size, size), "w": weight(channels, filters, kernel, kernel)}
    return probe_of("ConvTranspose", operands, **given)


@given(transposed_convolutions())
@settings(max_examples=40)
def test_transposed_convolutions(probe: Probe) -> None:
    found = check(probe, free=("output_shape",))
    assert is_small(found)


@st.composite
def pools(draw: Draw) -> Probe:
    kernel, stride = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    given: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2}
    kind = draw(st.sampled_from(["MaxPool", "AveragePool", "LpPool"]))
    if draw(st.booleans()) and kind != "LpPool" and stride <= kernel:
        given["ceil_mode"] = 1  # with pads, ONNX and ONNX Runtime disagree on the shape
    else:
        given["pads"] = [draw(st.integers(0, 1)) for _ in range(4)]
    shape = (draw(SIZES), draw(SIZES), draw(st.integers(9, 80)), draw(st.integers(9, 80)))
    return probe_of(kind, {"x": shape}, **given)


@given(pools())
@settings(max_examples=40)
def test_pools(probe: Probe) -> None:
    assert is_small(check(probe))


@st.composite
def broadcasts(draw: Draw) -> Probe:
    shape = [draw(SIZES) for _ in range(draw(st.integers(1, 4)))]
    other = [size if draw(st.booleans()) else 1 for size in shape][draw(st.integers(0, len(shape) - 1)) :]
    operator = draw(st.sampled_from(["Add", "Mul", "Max"]))
    constant = np.prod(other) < 10_000 and draw(st.booleans())
    return probe_of(operator, {"x": tuple(shape), "z": weight(*other) if constant else tuple(other)})


@given(broadcasts())
@settings(max_examples=60)
def test_elementwise(probe: Probe) -> None:
    found = check(probe)
    assert is_small(found)
    before, after = (sizes(each) for each in (probe, found))
    pairs = [
        pair for one, other in zip(before, after, strict=True) for pair in zip(one or (), other or (), strict=True)
    ]
    for size, less in pairs:
        for another, its in pairs:
            assert (size == another) == (less == its)
            assert size is None or another is None or (size < another) == (less < its)  # type: ignore[operator]
        assert (size - less) % 2 == 0  # type: ignore[operator]


@st.composite
def products(draw: Draw) -> Probe:
    rows, inner, columns, batch = (draw(SIZES) for _ in range(4))
    match draw(st.sampled_from(["matmul", "constant", "gemm", "integer", "einsum"])):
        case "matmul":
            return probe_of("MatMul", {"a": (batch, 1, rows, inner), "b": (batch, 3, inner, columns)})
        case "constant":
            return probe_of("MatMul", {"a": (batch, rows, inner), "b": weight(inner, min(columns, 9))})
        case "gemm":
            return probe_of("Gemm", {"a": (rows, inner), "b": (columns, inner), "c": (columns,)}, transB=1, alpha=0.5)
        case "integer":
            shapes = ("UINT8", (rows, inner)), ("INT8", (inner, columns))
            return probe_of("MatMulInteger", {"a": shapes[0], "b": shapes[1], "p": np.uint8(3), "q": None})
    return probe_of("Einsum", {"a": (batch, rows, inner), "b": (inner, batch, columns)}, equation="bik,kbj->bij")


@given(products())
@settings(max_examples=50)
def test_products(probe: Probe) -> None:
    assert is_small(check(probe))


@st.composite
def normalizations(draw: Draw) -> Probe:
    batch, channels, width = draw(SIZES), draw(st.integers(1, 40)), draw(SIZES)
    match draw(st.sampled_from(["batch", "layer", "group", "instance", "lrn", "softmax", "rms"])):
        case "batch":
            operands = {"x": (batch, channels, width)} | {name: weight(channels) for name in "abcd"}
            return probe_of("BatchNormalization", operands)
        case "layer":
            return probe_of("LayerNormalization", {"x": (batch, channels, width), "w": weight(width)}, axis=-1)
        case "group":
            shape = (batch, 4 * channels, width)
            return probe_of(
                "GroupNormalization", {"x": shape, "w": weight(shape[1]), "b": weight(shape[1])}, num_groups=4
            )
        case "instance":
            shape = (batch, channels, max(width, 2), 3)
            return probe_of("InstanceNormalization", {"x": shape, "w": weight(channels), "b": weight(channels)})
        case "lrn":
            return probe_of("LRN", {"x": (batch, channels, width, 2)}, size=5)
        case "softmax":
            return probe_of("Softmax", {"x": (batch, channels, width)}, axis=draw(st.integers(0, 2)))
    return probe_of("RMSNormalization", {"x": (batch, channels, width), "w": weight(width)}, opset=23)


@given(normalizations())
@settings(max_examples=50)
def test_normalizations_and_softmax(probe: Probe) -> None:
    assert is_small(check(probe))


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


@st.composite
def movers(draw: Draw) -> Probe:
    rows, columns, depth = (draw(st.integers(2, 200)) for _ in range(3))
    shape = (rows, columns, depth)
    match draw(st.sampled_from(["gather", "reshape", "slice", "pad", "split", "concat", "tile", "expand", "space"])):
        case "gather":
            wanted = [draw(st.integers(-columns, columns - 1)) for _ in range(draw(st.integers(1, 20)))]
            return probe_of("Gather", {"x": shape, "i": ints(*wanted)}, axis=1)
        case "reshape":
            heads = draw(st.integers(1, 12))
            return probe_of("Reshape", {"x": (rows, columns, heads * depth), "s": ints(0, -1, heads, depth)})
        case "slice":
            start, stop = sorted(draw(st.integers(0, columns)) for _ in range(2))
            bounds = {
                "a": ints(start),
                "b": ints(max(stop, start + 1)),
                "axes": ints(1),
                "steps": ints(draw(st.integers(1, 3))),
            }
            return probe_of("Slice", {"x": shape, **bounds})
        case "pad":
            mode = draw(st.sampled_from(["constant", "reflect", "edge"]))
            pads = [min(draw(st.integers(0, 3)), shape[axis % 3] - 1) for axis in range(6)]
            return probe_of("Pad", {"x": shape, "p": ints(*pads)}, mode=mode)
        case "split":
            parts = [draw(st.integers(1, 50)) for _ in range(draw(st.integers(2, 3)))]
            operands = {"x": (rows, sum(parts), 2), "p": ints(*parts)}
            return probe_of("Split", operands, axis=1, outputs=len(parts))
        case "concat":
            return probe_of("Concat", {"x": shape, "z": (rows, draw(SIZES), depth)}, axis=1)
        case "tile":
            return probe_of("Tile", {"x": shape, "r": ints(1, 2, 3)})
        case "expand":
            return probe_of("Expand", {"x": (columns, 1), "s": ints(rows, 1, depth)})
    return probe_of("DepthToSpace", {"x": (rows, 4 * columns, 6, depth)}, blocksize=2, mode="CRD")


@given(movers())
@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
def test_what_moves_elements(probe: Probe) -> None:
    found = witness(probe)
    assert not isinstance(found, Skip), found.reason
    check(probe)
    assert is_small(found), (probe.nodes[0].op_type, sizes(probe), sizes(found))


@st.composite
def others(draw: Draw) -> Probe:
    batch, length, hidden, width = (
        draw(st.integers(1, 20)),
        draw(st.integers(2, 90)),
        draw(st.integers(2, 40)),
        draw(SIZES),
    )
    match draw(
        st.sampled_from(["lstm", "gru", "topk", "argmax", "reduce", "resize", "cumsum", "nms", "roi", "quantize"])
    ):
        case "lstm":
            weights = weight(1, 4 * hidden, 8), weight(1, 4 * hidden, hidden), weight(1, 8 * hidden)
            operands = dict(zip("xwrb", ((length, batch, 8), *weights), strict=True))
            return probe_of("LSTM", operands, hidden_size=hidden, outputs=3)
        case "gru":
            weights = weight(2, 3 * hidden, 8), weight(2, 3 * hidden, hidden)
            operands = dict(zip("xwr", ((length, batch, 8), *weights), strict=True))
            return probe_of("GRU", operands, hidden_size=hidden, direction="bidirectional", outputs=2)
        case "topk":
            return probe_of("TopK", {"x": (batch, length), "k": ints(draw(st.integers(1, length)))}, outputs=2)
        case "argmax":
            return probe_of("ArgMax", {"x": (batch, length, width)}, axis=1, keepdims=0)
        case "reduce":
            return probe_of(
                "ReduceMean", {"x": (batch, length, width), "a": ints(0, -1)}, keepdims=draw(st.integers(0, 1))
            )
        case "resize":
            size, scale = draw(st.integers(2, 60)), draw(st.sampled_from([2.0, 0.5, 1.5, 3.0]))
            scales = np.array([1, 1, scale, 2], np.float32)
            return probe_of("Resize", {"x": (batch, 3, 2 * size, size), "r": None, "s": scales}, mode="linear")
        case "cumsum":
            return probe_of("CumSum", {"x": (batch, length), "a": np.int64(1)})
        case "nms":
            operands = {"b": (batch, length, 4), "s": (batch, 3, length), "n": ints(2), "t": weight(1)}
            return probe_of("NonMaxSuppression", operands)
        case "roi":
            operands = {"x": (batch, 3, 40, length), "r": (7, 4), "i": np.zeros(7, np.int64)}
            return probe_of("RoiAlign", operands, output_height=3, output_width=3)
    blocks, scaled = draw(st.integers(2, 9)), draw(st.integers(2, 40))
    operands = {"x": weight(scaled, 16 * blocks, dtype=np.int8), "s": weight(scaled, blocks)}
    return probe_of(
        "DequantizeLinear", {"x": ("INT8", (scaled, 16 * blocks)), "s": operands["s"]}, block_size=16, axis=1
    )


@given(others())
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_others(probe: Probe) -> None:
    assert is_small(check(probe, free=("hidden_size",)))


@pytest.mark.parametrize(
    ("op_type", "operands", "given"),
    [
        (
            "MultiHeadAttention",
            {
                **{"q": (2, 128, 768), "k": (2, 100, 768), "v": (2, 100, 768)},
                **{"b": weight(3 * 768), "m": None, "a": (2, 1, 128, 100)},
            },
            {"num_heads": 12, "domain": "com.microsoft"},
        ),
        (
            "MatMulNBits",
            {"a": (3, 50, 256), "b": ("UINT8", (96, 8, 16)), "s": (96 * 8,), "z": ("UINT8", (96 * 4,))},
            {"K": 256, "N": 96, "bits": 4, "block_size": 32, "domain": "com.microsoft"},
        ),
        (
            "Attention",
            {"q": (1, 128, 256), "k": (1, 128, 128), "v": (1, 128, 128)},
            {"q_num_heads": 8, "kv_num_heads": 4, "opset": 23},
        ),
        (
            "Attention",
            {"q": (1, 8, 128, 64), "k": (1, 2, 90, 64), "v": (1, 2, 90, 64), "m": (128, 90)},
            {"opset": 23},
        ),
        (
            "GroupQueryAttention",
            {
                **{"q": (2, 1, 12 * 64), "k": None, "v": None, "pk": (2, 2, 90, 64), "pv": (2, 2, 90, 64)},
                **{"l": np.array([8, 8], np.int32), "t": np.array([9], np.int32)},
            },
            {"num_heads": 8, "kv_num_heads": 2, "domain": "com.microsoft", "outputs": 3},
        ),
        (
            "Attention",
            {"x": (3, 40, 64), "w": (64, 192), "b": (192,), "m": None, "p": (2, 3, 8, 20, 8)},
            {"num_heads": 8, "domain": "com.microsoft", "outputs": 2},
        ),
        (
            "RotaryEmbedding",
            {"x": (2, 64, 512), "p": ("INT64", (1,)), "c": (90, 32), "s": (90, 32)},
            {"num_heads": 8, "domain": "com.microsoft"},
        ),
        (
            "QLinearConv",
            {
                **{"x": ("UINT8", (1, 64, 56, 56)), "xs": np.float32(0.1), "xz": np.uint8(3)},
                **{"w": weight(128, 64, 3, 3, dtype=np.int8), "ws": weight(128), "wz": np.zeros(128, np.int8)},
                **{"ys": np.float32(0.2), "yz": np.uint8(5)},
            },
            {"strides": [2, 2]},
        ),
    ],
)
def test_operators_with_heads_blocks_and_scales(op_type: str, operands: dict[str, Any], given: dict[str, Any]) -> None:
    assert is_small(check(probe_of(op_type, operands, **given), free=("K", "N")))


@pytest.mark.parametrize(
    ("op_type", "operands", "given"),
    [
        ("MultiHeadAttention", {"qkv": (3, 40, 8, 3, 16)}, {}),
        ("Attention", {"x": (3, 40, 64), "w": (64, 160), "b": (160,)}, {"qkv_hidden_sizes": [64, 64, 32]}),
    ],
)
def test_packed_heads_are_kept(op_type: str, operands: dict[str, Any], given: dict[str, Any]) -> None:
    """No words say how their sizes depend on each other."""
    found = small(probe_of(op_type, operands, num_heads=8, domain="com.microsoft", **given))
    assert sizes(found)[:-1] == list(operands.values())


# what they are made of


def test_nodes_that_differ_in_sizes_only_have_one_witness() -> None:
    def convolution(channels: int, filters: int, size: int) -> str:
        weights = {"w": weight(filters, channels, 3, 3), "b": weight(filters) * channels}
        operands = {"x": (1, channels, size, size), **weights}
        return small(probe_of("Conv", operands, strides=[2, 2], pads=[1, 1, 1, 1])).signature

    assert convolution(64, 128, 56) == convolution(128, 256, 28) == convolution(256, 512, 14)
    assert convolution(64, 128, 56) != convolution(64, 64, 56)  # as many filters as channels
    assert convolution(64, 128, 56) != convolution(64, 128, 55)  # another remainder by the stride


def test_constants_are_samples_of_the_real_ones() -> None:
    found = small(probe_of("MatMul", {"a": (64, 128), "b": weight(128, 256)}))
    (constant,) = [value for value in found.nodes[0].inputs if found.scope.constant(value) is not None]  # type: ignore[union-attr]
    tensor = found.scope.constant(constant)
    assert tensor is not None
    assert np.isin(tensor.numpy(), weight(128, 256)).all()
    assert len(np.unique(tensor.numpy())) > 1


def test_each_gate_has_its_share() -> None:
    gates = np.repeat(np.arange(4, dtype=np.float32), 100).reshape(1, 400, 1)
    operands = {"x": (30, 5, 8), "w": np.tile(gates, 8), "r": np.tile(gates, 100)}
    found = small(probe_of("LSTM", operands, hidden_size=100, outputs=3))
    tensor = found.scope.constant(found.nodes[0].inputs[1])
    assert tensor is not None
    hidden = found.nodes[0].attributes.get_int("hidden_size", 0)
    assert hidden <= 10
    np.testing.assert_array_equal(tensor.numpy()[0, :, 0], np.repeat(np.arange(4), hidden))


def test_indices_stay_within_smaller_axes() -> None:
    found = small(probe_of("Gather", {"x": (50, 768), "i": ints(0, 49, -1, -50)}))
    tensor = found.scope.constant(found.nodes[0].inputs[1])
    assert tensor is not None
    size = (found.shape(found.inputs[0]) or (0,))[0]
    assert size is not None
    assert tensor.numpy().tolist() == [0, size - 1, -1, -size]


def test_a_cluster_and_a_constant_cone() -> None:
    text = "(float[8,16,50,50] x) => (y) { p = Pad (x, pads) y = Conv <strides: ints = [2, 2]> (p, w) }"
    model = tiny(text, pads=ints(0, 0, 1, 1, 0, 0, 1, 1), w=weight(32, 16, 3, 3))
    inference.infer(model)
    (cluster,) = fusion_clusters(Scope(model, model.graph))
    found = small(cluster.probe)
    assert [node.op_type for node in found.nodes] == ["Pad", "Conv"]
    assert is_small(found)
    run(found)

    arithmetic = "s = Shape(x) b = Gather(s, zero) o = Unsqueeze(b, axis) t = Concat <axis: int = 0> (o, rest)"
    text = f"(float[8,50,768] x) => (y) {{ {arithmetic} y = Reshape(x, t) }}"
    model = tiny(text, zero=np.int64(0), axis=ints(0), rest=ints(-1, 12, 64))
    inference.infer(model)
    scope = Scope(model, model.graph)
    found = small(Probe.of([scope.graph[-1]], scope))
    assert [node.op_type for node in found.nodes] == ["Reshape"]
    assert constant_of(found.nodes[0]) is None
    assert is_small(found)
    run(found)


@pytest.mark.parametrize(("operator", "shape"), [("MatMul", (768, 300)), ("Add", (768,))])
def test_axes_that_a_reshape_merges_have_the_product_of_their_sizes(operator: str, shape: Shape) -> None:
    text = f"(float[8,50,12,64] x) => (y) {{ r = Reshape(x, t) y = {operator}(r, w) }}"
    model = tiny(text, t=ints(8, 50, 768), w=weight(*shape))
    inference.infer(model)
    found = small(Probe.of(list(model.graph), Scope(model, model.graph)))
    assert is_small(found)
    run(found)


def test_what_has_no_witness_says_why() -> None:
    found = witness(probe_of("NonZero", {"x": ("STRING", (3,))}))
    assert isinstance(found, Skip)
    assert found.reason


def test_a_proposal_has_none() -> None:
    scope = scope_of("Relu", {"x": (3, 4)})
    original = Probe.of([scope.graph[-1]], scope)
    assert isinstance(witness(Probe.of([scope.graph[-1]], scope, replaces=original)), Skip)
