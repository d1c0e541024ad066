"""Raising opsets 1 to 6: every version of every operator computes what a newer one is known to compute.

ONNX Runtime has no kernels for many of these versions, and ONNX's evaluator takes most of them for the newest: so what
is expected is written by hand, as the same computation in opset 13, which ONNX Runtime runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.cleanup.fold_constants import FoldConstants
from passes.core.errors import InputError
from passes.rewriting.base import Context
from passes.rewriting.old_signatures import LOWEST, raise_opset
from passes.specialize.freeze_inputs import FreezeInputs
from tests.passes.harness import Array, run

_RANDOM = np.random.default_rng(0)


def _normal(*shape: int) -> Array:
    return _RANDOM.standard_normal(shape).astype(np.float32)


INPUTS: dict[str, Array] = {
    "x": _normal(2, 3, 4, 4),
    "y": _normal(2, 3, 4, 4),
    "p": np.abs(_normal(2, 3, 4, 4)) + np.float32(0.1),
    "z": _normal(1, 4, 4, 4),
    "b": _normal(2, 3, 4, 4) > 0,
    "m": _normal(2, 3),
    "q": _normal(5, 2, 3),
    "f": np.array(True),
}
_c, _n, _d = _normal(3), _normal(3, 4), np.array([True, False, True])
CONSTANTS: dict[str, Array] = {
    **{"c": _c, "C": _c.reshape(3, 1, 1), "n": _n, "N": _n.reshape(3, 4, 1), "d": _d, "D": _d.reshape(3, 1, 1)},
    **{"v": np.abs(_c), "k": _normal(4), "g": _normal(3, 3), "w": _normal(2, 3, 2, 2), "t": _normal(3, 2, 2, 2)},
    **{f"w{gates}": _normal(1, 4 * gates, 3) for gates in (1, 3, 4)},
    **{f"r{gates}": _normal(1, 4 * gates, 4) for gates in (1, 3, 4)},
    **{"half": np.float32(0.5), "tiles": np.float32(2), "axis": np.float32(1), "pad": np.float32(1.5)},
    **{"rois": np.array([[0, 0, 0, 3, 3]], np.float32), "scales": np.array([1, 1, 2, 3], np.float32)},
}
_INDICES = {
    **{"i_3": 3, "i0": [0], "i1": [1], "i2": [2], "i01": [1, 0], "i12": [1, 2], "i13": [1, 3], "flat": [6, 16]},
    **{"full": [2, 3, 4, 4], "shape": [0, -1], "repeats": [1, 2, 1, 1], "pads": [0, 0, 1, 2, 0, 0, 3, 0]},
    **{"starts": [1, -2], "ends": [9, -1]},
}
CONSTANTS |= {name: np.array(numbers, np.int64) for name, numbers in _INDICES.items()}
_OUTPUTS = {"GRU": 2, "LSTM": 3, "RNN": 2, "Split": 2, "TopK": 2}
Row = tuple[range, str, str]
_1, _6, ALL = range(1, 6), range(6, 7), range(1, 7)


def _rows(versions: range, operators: str, old: str, new: str = "") -> Iterator[Row]:
    for operator in operators.split():
        yield versions, old.replace("?", operator), (new or old).replace("?", operator)


_UNARY = "Abs Ceil Elu Exp Floor HardSigmoid LeakyRelu Neg Relu Sigmoid Tanh"
_ARITHMETIC, _RECURRENT = "Add Sub Mul Div", (("RNN", 1), ("GRU", 3), ("LSTM", 4))
_RESIZE = 'Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">'
ROWS: list[Row] = [
    *_rows(_1, _UNARY, "?<consumed_inputs=[0]>(x)", "?(x)"),
    *_rows(_6, f"{_UNARY} Selu", "?(x)"),
    *_rows(_1, "Selu", "?<consumed_inputs=[0]>(x)", "?<alpha=1.6732, gamma=1.0507>(x)"),
    *_rows(_1, "Log Reciprocal Sqrt", "?<consumed_inputs=[0]>(p)", "?(p)"),
    *_rows(_6, "Log Reciprocal Sqrt", "?(p)"),
    *_rows(_1, "Max Mean Min Sum", "?<consumed_inputs=[0, 0, 0]>(x, y, p)", "?(x, y, p)"),
    *_rows(_6, "Max Mean Min Sum", "?(x, y, p)"),
    *_rows(ALL, "ArgMax ArgMin", "?<axis=2>(x)"),
    *_rows(ALL, "GlobalAveragePool GlobalMaxPool Identity Shape Size Softplus Softsign", "?(x)"),
    *_rows(ALL, "ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd", "?<axes=[1, 2]>(x)"),
    *_rows(ALL, "ReduceSumSquare", "?<axes=[1], keepdims=0>(x)"),
    *_rows(ALL, "ReduceLogSum", "?<axes=[1]>(p)"),
    *_rows(ALL, "ReduceSum", "?<axes=[1, 2]>(x)", "?(x, i12)"),
    *_rows(ALL, "Hardmax LogSoftmax Softmax", "?(m)"),
    *_rows(ALL, "Hardmax LogSoftmax Softmax", "?<axis=2>(x)", "h = Reshape(x, flat); h2 = ?(h); Reshape(h2, full)"),
    *_rows(_1, _ARITHMETIC, "?<consumed_inputs=[0, 0]>(x, y)", "?(x, y)"),
    *_rows(_1, _ARITHMETIC, "?<axis=1, broadcast=1, consumed_inputs=[0, 0]>(x, n)", "?(x, N)"),
    *_rows(_6, _ARITHMETIC, "?<axis=1, broadcast=1>(x, c)", "?(x, C)"),
    *_rows(_6, _ARITHMETIC, "?<axis=-3, broadcast=1>(x, c)", "?(x, C)"),
    *_rows(_6, _ARITHMETIC, "?<axis=-1, broadcast=1>(x, k)", "?(x, k)"),
    *_rows(_6, _ARITHMETIC, "?<axis=0, broadcast=1>(x, half)", "?(x, half)"),
    *_rows(_6, _ARITHMETIC, "?<broadcast=1>(x, k)", "?(x, k)"),
    *_rows(ALL, "Pow", "?<axis=1, broadcast=1>(p, c)", "?(p, C)"),
    *_rows(ALL, "Greater Less", "?<axis=1, broadcast=1>(x, c)", "?(x, C)"),
    *_rows(ALL, "And Equal Or Xor", "?<axis=1, broadcast=1>(b, d)", "?(b, D)"),
    *_rows(ALL, "Not", "?(b)"),
    *_rows(ALL, "AveragePool LpPool MaxPool", "?<kernel_shape=[2, 2], strides=[2, 1]>(x)"),
    *_rows(ALL, "AveragePool", "?<kernel_shape=[2, 2], pads=[1, 1, 0, 0]>(x)"),
    *_rows(range(1, 2), "LpPool", "?<kernel_shape=[2, 2], p=1.0>(x)", "?<kernel_shape=[2, 2], p=1>(x)"),
    *_rows(range(1, 2), "GlobalLpPool", "?<p=3.0>(x)", "?<p=3>(x)"),
    *_rows(range(2, 7), "GlobalLpPool", "?<p=3>(x)"),
    *_rows(
        _1, "BatchNormalization", "?<is_test=1, consumed_inputs=[0, 0, 0, 1, 1]>(x, c, c, c, v)", "?(x, c, c, c, v)"
    ),
    *_rows(ALL, "BatchNormalization", "?<is_test=1, spatial=1>(x, c, c, c, v)", "?(x, c, c, c, v)"),
    *_rows(_1, "InstanceNormalization", "?<consumed_inputs=[0, 0, 0]>(x, c, v)", "?(x, c, v)"),
    *_rows(_6, "InstanceNormalization", "?(x, c, v)"),
    *_rows(ALL, "LRN", "?<size=3, alpha=0.5>(x)"),
    *_rows(ALL, "LpNormalization", "?<axis=1>(x)"),
    *_rows(_1, "Dropout", "?<is_test=1, ratio=0.3, consumed_inputs=[0]>(x)", "Identity(x)"),
    *_rows(_6, "Dropout", "?<is_test=1>(x)", "Identity(x)"),
    *_rows(_1, "Cast", '?<to="DOUBLE">(x)', "?<to=11>(x)"),
    *_rows(_1, "Cast", '?<to="bool">(x)', "?<to=9>(x)"),
    *_rows(_6, "Cast", "?<to=7>(x)"),
    *_rows(_1, "Clip", "?<max=0.5, consumed_inputs=[0]>(x)", "Min(x, half)"),
    *_rows(_6, "Clip", "?<max=0.5>(x)", "Min(x, half)"),
    *_rows(range(1, 4), "Concat", "?(m, m)", "?<axis=1>(m, m)"),
    *_rows(ALL, "Concat", "?<axis=2>(x, y)"),
    *_rows(ALL, "Constant", "?<value=float[2] {1, 2}>()"),
    *_rows(ALL, "Conv", "?<strides=[2, 1]>(x, w)"),
    *_rows(ALL, "ConvTranspose", "?<strides=[2, 1]>(x, t)"),
    *_rows(ALL, "DepthToSpace SpaceToDepth", "?<blocksize=2>(z)"),
    *_rows(ALL, "Flatten", "?<axis=2>(x)"),
    *_rows(ALL, "Gather", "?<axis=2>(x, i01)"),
    *_rows(ALL, "Gemm", "?<broadcast=1, beta=0.5>(m, n, k)", "?<beta=0.5>(m, n, k)"),
    *_rows(ALL, "Gemm", "?<transA=1>(m, m, g)"),
    *_rows(ALL, "MatMul", "?(x, y)"),
    *_rows(ALL, "MaxRoiPool", "?<pooled_shape=[2, 2]>(x, rois)"),
    *_rows(_1, "PRelu", "?<consumed_inputs=[0, 0]>(x, c)", "?(x, C)"),
    *_rows(_6, "PRelu", "?(x, c)", "?(x, C)"),
    *_rows(_6, "PRelu", "?(m, c)"),
    *_rows(range(1, 2), "Pad", "?<paddings=[0, 0, 1, 2, 0, 0, 3, 0], value=1.5>(x)", "?(x, pads, pad)"),
    *_rows(range(2, 7), "Pad", "?<pads=[0, 0, 1, 2, 0, 0, 3, 0], value=1.5>(x)", "?(x, pads, pad)"),
    *_rows(range(1, 5), "Reshape", "?<shape=[0, -1], consumed_inputs=[0]>(x)", "?(x, shape)"),
    *_rows(range(5, 7), "Reshape", "?(x, shape)"),
    *_rows(ALL, "Slice", "?<starts=[1, -2], ends=[9, -1], axes=[1, 3]>(x)", "?(x, starts, ends, i13)"),
    *_rows(range(1, 2), "Split", "?<axis=1>(x, i12)"),
    *_rows(ALL, "Split", "?<axis=1, split=[1, 2]>(x)", "?<axis=1>(x, i12)"),
    *_rows(range(2, 7), "Split", "?(x)"),
    *_rows(ALL, "Squeeze", "?<axes=[0]>(z)", "?(z, i0)"),
    *_rows(ALL, "Unsqueeze", "?<axes=[1, 2]>(x)", "?(x, i12)"),
    *_rows(_1, "Tile", "?(x, tiles, axis)", "?(x, repeats)"),
    *_rows(_6, "Tile", "?(x, repeats)"),
    *_rows(ALL, "TopK", "?<k=2, axis=1>(x)", "?<axis=1>(x, i2)"),
    *_rows(ALL, "Transpose", "?<perm=[3, 0, 2, 1]>(x)"),
    *_rows(ALL, "Upsample", "?<height_scale=2.0, width_scale=3.0>(x)", f"{_RESIZE}(x, , scales)"),
    *_rows(
        ALL,
        "If",
        "?<then_branch = g1 () => (u) { u = Add<axis=1, broadcast=1>(x, c) }, else_branch = g2 () => (u2) "
        "{ u2 = Identity(x) }>(f)",
        "Add(x, C)",
    ),
    *_rows(
        ALL,
        "Loop",
        "?<body = g1 (int64 j, bool h, float[2, 3, 4, 4] a) => (h2, a2) "
        "{ h2 = Identity(h) a2 = Mul<axis=1, broadcast=1>(a, c) }>(i_3, f, x)",
        "h = Mul(x, C); h2 = Mul(h, C); Mul(h2, C)",
    ),
    *(
        (ALL, f"{kind}<hidden_size=4, {old}>(q, w{gates}, r{gates})", f"{kind}<hidden_size=4>(q, w{gates}, r{gates})")
        for old in ("output_sequence=1", 'direction="forward"')
        for kind, gates in _RECURRENT
    ),
    (range(1, 3), 'GRU<hidden_size=4, direction="foward">(q, w3, r3)', "GRU<hidden_size=4>(q, w3, r3)"),
]
_RANDOM_OPERATORS = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def model(rows: Iterable[str], opset: int, ir_version: int = 8) -> onnx.ModelProto:
    """A model in which each row is the end of statements; the outputs are named by row and place."""
    kinds = {"float32": "float", "bool": "bool", "int64": "int64"}
    head = ", ".join(f"{kinds[str(each.dtype)]}{list(each.shape) or ''} {name}" for name, each in INPUTS.items())
    body, outputs = [], []
    for index, row in enumerate(rows):
        *before, last = row.split("; ")
        names = [f"o{index}_{place}" for place in range(_OUTPUTS.get(last.partition("<")[0].partition("(")[0], 1))]
        text = "; ".join([*before, f"{', '.join(names)} = {last}"]).replace("; ", "\n")
        for inner in ("h", "h2", "u", "u2", "a", "a2", "j"):
            text = _renamed(text, inner, f"{inner}_{index}")
        body.append(text)
        outputs += names
    header = f'<ir_version: {ir_version}, opset_import: ["": {opset}]>'
    proto = onnx.parser.parse_model(f"{header} g ({head}) => ({', '.join(outputs)}) {{ {' '.join(body)} }}")
    used = {name for node in _nodes(proto.graph) for name in node.input}
    for name in used & CONSTANTS.keys():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(CONSTANTS[name]), name))
    return proto


def _renamed(text: str, name: str, new: str) -> str:
    return "".join(new if piece == name else piece for piece in re.split(r"(\w+)", text))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _nodes(attribute.g)


@pytest.mark.parametrize("opset", ALL)
def test_every_version_of_every_operator(opset: int) -> None:
    rows = [(old, new) for versions, old, new in ROWS if opset in versions]
    source = model([old for old, _ in rows], opset)
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}
    known = {name for name in known if onnx.defs.has(name, opset)}
    assert known - {node.op_type for node in _nodes(source.graph)} == _RANDOM_OPERATORS
    raised = ir.from_proto(source)
    raise_opset(raised)
    assert raised.opset_imports[""] == LOWEST
    proto = ir.to_proto(raised)
    checked = onnx.checker.C.CheckerContext()
    checked.ir_version, checked.opset_imports = proto.ir_version, {"": LOWEST}
    for node in proto.graph.node:
        if node.op_type not in ("If", "Loop"):
            onnx.checker.check_node(node, checked)
    found, expected = run(proto, INPUTS), run(model([new for _, new in rows], 13), INPUTS)
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert array.dtype == expected[name].dtype
        np.testing.assert_allclose(array, expected[name], 1e-6, 1e-6, err_msg=rows[int(name[1:].partition("_")[0])][0])


REFUSED = {
    "training, by default": (6, "BatchNormalization(x, c, c, c, v)", "is_test=0"),
    "training": (5, "Dropout<is_test=0>(x)", "is_test=0"),
    "too many axes": (6, "Add<axis=2, broadcast=1>(x, N)", "axis 2"),
    "no such type": (5, 'Cast<to="FLOAT11">(x)', "FLOAT11"),
    "no shape": (4, "Reshape(x)", "shape"),
    "part of a tile": (5, "Tile(x, half, axis)", "0.5"),
    "no such axis": (5, "Tile(x, tiles, pads)", "one of the 4 axes"),
    "tiles of an input": (5, "Tile(x, x, axis)", "freeze"),
    "no axis": (1, "Split(x)", "axis"),
    "part of a norm": (1, "LpPool<kernel_shape=[2, 2], p=1.5>(x)", "1.5"),
    "no window": (1, "LpPool(x)", "kernel_shape"),
    "an experiment": (3, "GivenTensorFill<shape=[2], values=[1.0, 2.0]>()", "experimental"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    """The operator, the opset and the node are named, with what is to be done."""
    opset, row, reason = REFUSED[name]
    operator = row.partition("<")[0].partition("(")[0]
    with pytest.raises(InputError, match=f"{operator} of opset {opset} .*{reason}") as caught:
        raise_opset(ir.from_proto(model([row], opset)))
    assert operator in str(caught.value.where)
    assert "export" in str(caught.value.hint)


def test_what_a_file_declares_of_ranks() -> None:
    """Declared shapes are hints: an operand is aligned by its inferred rank."""
    proto = model(["h = Identity(c); Add<axis=1, broadcast=1>(x, h)"], 6)
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("h_0", 1, [1, 1, 3]))
    raised = ir.from_proto(proto)
    raise_opset(raised)
    (found,) = run(ir.to_proto(raised), INPUTS).values()
    np.testing.assert_array_equal(found, INPUTS["x"] + CONSTANTS["C"])


def test_functions_import_their_own_opset() -> None:
    head = '<ir_version: 8, opset_import: ["": 13, "local": 1]> g (float[1, 4] x) => (y) { y = local.f(x) }'
    proto = onnx.parser.parse_model(f"""{head} <domain: "local", opset_import: ["": 3]> f (x) => (y) {{
        y = Concat(x, x) }}""")
    raised = ir.from_proto(proto)
    raise_opset(raised)
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    (found,) = run(ir.to_proto(raised), {"x": x}).values()
    np.testing.assert_array_equal(found, np.tile(x, 2))


def test_a_function() -> None:
    """It has no initializers, and no constants of integers in these opsets."""
    text = """<ir_version: 8, opset_import: ["": 4, "local": 1]> g (float[1, 4] x) => (float[2, 2] y) {
        y = local.f(x) } <domain: "local", opset_import: ["": 4]> f (p) => (q) { q = Reshape <shape = [2, -1]> (p) }"""
    m = ir.from_proto(onnx.parser.parse_model(text))
    raise_opset(m)
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    np.testing.assert_array_equal(run(ir.to_proto(m), {"x": x})["y"], x.reshape(2, 2))


@pytest.mark.parametrize("operator", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize(("kind", "size"), [("int64[1]", [8]), ("int64", 8)])
def test_windows_of_a_list(operator: str, kind: str, size: object) -> None:
    """ONNX Runtime takes a list of one, unless it is constant, as freezing makes it."""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[8] x, {kind} n) => (float[8] y) {{
        w = {operator}(n) y = Mul(x, w) }}"""
    m = ir.from_proto(onnx.parser.parse_model(text))
    given = {"x": np.ones(8, np.float32), "n": np.array(size)}
    expected = run(ir.to_proto(m), given)["y"]
    raise_opset(m)
    m = FreezeInputs(values={"n": json.dumps(size)}).run(m, Context()).model
    m = FoldConstants().run(m, Context()).model
    np.testing.assert_array_equal(run(ir.to_proto(m), {"x": given["x"]})["y"], expected)
