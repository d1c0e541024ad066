"""Define operators that exporters have invented, by functions of the model.

    Erfc(x)  →  invented::Erfc(x),  a function: 1 − Erf(x)

Exporters keep the name of an operator that they do not know, or write one before its opset, or write another runtime's
(NVIDIA's Model Optimizer its roundings to float8, whose result it declares as uint8). Those without attributes that
mean the same everywhere are defined here, and TensorRT's suppression of boxes.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from passes.graphs.scopes import scopes

DOMAIN = "invented"
_LIKE = "CastLike (number, x)"
_NUMBER = f"number = Constant <value = float {{VALUE}}> () n = {_LIKE}"
_ONE, _TWO, _SIX, _TEN = (_NUMBER.replace("VALUE", value) for value in ("1", "2", "6", "10"))
_SWISH = "s = Sigmoid (x) y = Mul (x, s)"
_BODIES = {
    "Erfc": f"{_ONE} e = Erf (x) y = Sub (n, e)",
    "Exp2": f"{_TWO} y = Pow (n, x)",
    "Expm1": f"{_ONE} e = Exp (x) y = Sub (e, n)",
    "HardSwish": "h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul (x, h)",
    "Log10": f"{_TEN} k = Log (n) s = Log (x) y = Div (s, k)",
    "Log1p": f"{_ONE} s = Add (n, x) y = Log (s)",
    "Log2": f"{_TWO} k = Log (n) s = Log (x) y = Div (s, k)",
    "Mish": "s = Softplus (x) t = Tanh (s) y = Mul (x, t)",
    "Relu6": f"{_SIX} r = Relu (x) y = Min (r, n)",
    "Rint": "y = Round (x)",
    "Rsqrt": "s = Sqrt (x) y = Reciprocal (s)",
    **dict.fromkeys(("SiLU", "Silu", "Swish"), _SWISH),
    "Square": "y = Mul (x, x)",
    "TRT_FP8DequantizeLinear": "y = DequantizeLinear (x, s)",
    "TRT_FP8QuantizeLinear": "n = Constant <value_float = 0.0> () z = Cast <to = 17> (n) y = QuantizeLinear (x, s, z)",
}
_SUPPRESSION = "EfficientNMS_TRT"
_SUPPRESSED = """(b, p) => (number, boxes, scores, classes) {
    k = Constant <value_ints = [MOST]> () iou = Constant <value_floats = [IOU]> ()
    least = Constant <value_floats = [LEAST]> () one = Constant <value_float = 1.0> ()
    nil = Constant <value_float = 0.0> () none = Constant <value_float = -1.0> () first = Constant <value_int = 0> ()
    rows = Constant <value_ints = [0, -1]> () axis = Constant <value_ints = [1]> ()
    last = Constant <value_ints = [2]> () four = Constant <value_ints = [1, 1, 4]> ()
    a = ACTIVATION (p) t = Transpose <perm = [0, 2, 1]> (a)
    chosen = NonMaxSuppression (b, t, k, iou, least) count = Shape <end = 1> (chosen) ones = Expand (one, count)
    size = Shape (t) empty = Expand (nil, size) kept = ScatterND (empty, chosen, ones) best = Greater (kept, nil)
    masked = Where (best, t, none) flat = Reshape (masked, rows) batch = Shape <end = 1> (b)
    wide = Concat <axis = 0> (batch, k) spare = Expand (none, wide) all = Concat <axis = 1> (flat, spare)
    v, i = TopK (all, k) valid = Greater (v, none) scores = Where (valid, v, nil)
    n = Shape <start = 1, end = 2> (b) c = Div (i, n) d = Where (valid, c, first) classes = Cast <to = 6> (d)
    m = Cast <to = 7> (valid) sum = ReduceSum (m, axis) number = Cast <to = 6> (sum)
    at = Mod (i, n) u = Unsqueeze (at, last) e = Expand (u, four) g = GatherElements <axis = 1> (b, e)
    w = Unsqueeze (valid, last) boxes = Where (w, g, nil) }"""
"""TensorRT's suppression: the best boxes of all classes; rows that are left are 0."""
_FIXED = {"background_class": -1, "box_coding": 0, "class_agnostic": 0}
"""The attributes of a suppression whose other values are left alone."""
_SINCE = {"TRT_FP8DequantizeLinear": 19, "TRT_FP8QuantizeLinear": 19, _SUPPRESSION: 15}
"""The first opset in which their functions are valid, if the operators in it do not tell."""
_CASTS_LIKE = 15
"""The first opset with CastLike."""
NAMES = (*_BODIES, _SUPPRESSION)


def define_invented(model: ir.Model) -> None:
    """Define the operators that neither ONNX, in the model's opset, nor the model has; the model is changed."""
    for scope in scopes(model):
        opset = scope.opset()
        for node in scope.nodes():
            name = node.op_type
            if name not in NAMES or onnx.defs.has(name, opset, "") or opset < _SINCE.get(name, 0):
                continue
            text = _suppression(node) if name == _SUPPRESSION else _simple(node)
            if text is None or (node.domain, name, "") in model.functions:
                continue
            kind = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
            if opset < _CASTS_LIKE and _LIKE in text:  # nearly all numbers are float32
                text = text.replace(_LIKE, f"Cast <to = {int(kind or ir.DataType.FLOAT)}> (number)")
                name += f"_{kind}" if kind not in (None, ir.DataType.FLOAT) else ""
            name += f"_{len(model.functions)}" if node.attributes else ""
            body = onnx.parser.parse_function(f'<domain: "{DOMAIN}", opset_import: ["": {opset}]> {name} {text}')
            if not all(onnx.defs.has(inner.op_type, opset, "") for inner in body.node):
                continue
            if name == "TRT_FP8QuantizeLinear":
                node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT8E4M3FN)
            model.functions[DOMAIN, name, ""] = ir.serde.deserialize_function(body)
            node.domain, node.op_type, scope.graph.opset_imports[DOMAIN] = DOMAIN, name, 1
            node.attributes.clear()
            model.opset_imports[DOMAIN] = 1


def _simple(node: ir.Node) -> str | None:
    """Return the function of an operator without attributes; None if the node is of another form."""
    inputs, domain = (("x", "s"), "trt") if node.op_type.startswith("TRT_") else (("x",), "")
    if node.domain != domain or len(node.inputs) != len(inputs) or len(node.outputs) != 1 or node.attributes:
        return None
    return f"({', '.join(inputs)}) => (y) {{ {_BODIES[node.op_type]} }}"


def _suppression(node: ir.Node) -> str | None:
    """Return the function of a suppression; None if the node is of another form, or has boxes for each class."""
    boxes, numbers = node.inputs[0] if node.inputs else None, node.attributes
    if node.domain not in ("", "TRT") or len(node.inputs) != 2 or len(node.outputs) != 4 or boxes is None:
        return None
    if boxes.shape is None or len(boxes.shape) != 3:
        return None
    try:
        if any(numbers.get_int(attribute, usual) != usual for attribute, usual in _FIXED.items()):
            return None
        values = {
            "MOST": numbers.get_int("max_output_boxes", 100),
            "IOU": numbers.get_float("iou_threshold", 0.5),
            "LEAST": numbers.get_float("score_threshold", 0.25),
            "ACTIVATION": "Sigmoid" if numbers.get_int("score_activation", 0) else "Identity",
        }
    except (TypeError, ValueError):  # an attribute of another type
        return None
    text = _SUPPRESSED
    for word, value in values.items():
        text = text.replace(word, str(value))
    return text


def invented(model: ir.Model) -> list[str]:
    """Return the operators that `define_invented` has defined."""
    return sorted(name for domain, name, _ in model.functions if domain == DOMAIN)
