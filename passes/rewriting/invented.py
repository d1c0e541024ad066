"""Define operators that exporters have invented, by functions of the model.

    Erfc(x)  →  invented::Erfc(x),  a function: 1 − Erf(x)

Exporters keep the name of an operator that they do not know, or write one before its opset, or write another runtime's
(NVIDIA's Model Optimizer its roundings to float8, whose result it declares as uint8). Those without attributes that
mean the same everywhere are defined here.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from passes.graphs.scopes import scopes

DOMAIN = "invented"
_ONE = "number = Constant <value_float = 1.0> () one = CastLike (number, x)"
_SWISH = "s = Sigmoid (x) y = Mul (x, s)"
_BODIES = {
    "Erfc": f"{_ONE} e = Erf (x) y = Sub (one, e)",
    "Expm1": f"{_ONE} e = Exp (x) y = Sub (e, one)",
    "HardSwish": "h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul (x, h)",
    "Log1p": f"{_ONE} s = Add (one, x) y = Log (s)",
    "Mish": "s = Softplus (x) t = Tanh (s) y = Mul (x, t)",
    "Rint": "y = Round (x)",
    "Rsqrt": "s = Sqrt (x) y = Reciprocal (s)",
    **dict.fromkeys(("SiLU", "Silu", "Swish"), _SWISH),
    "Square": "y = Mul (x, x)",
    "TRT_FP8DequantizeLinear": "y = DequantizeLinear (x, s)",
    "TRT_FP8QuantizeLinear": "n = Constant <value_float = 0.0> () z = Cast <to = 17> (n) y = QuantizeLinear (x, s, z)",
}
NAMES = tuple(_BODIES)


def define_invented(model: ir.Model) -> None:
    """Define the operators that neither ONNX, in the model's opset, nor the model has; the model is changed."""
    for scope in scopes(model):
        opset = scope.opset()
        for node in scope.nodes():
            name, key = node.op_type, (DOMAIN, node.op_type, "")
            foreign = name.startswith("TRT_")
            if name not in _BODIES or node.domain != ("trt" if foreign else "") or onnx.defs.has(name, opset, ""):
                continue
            if len(node.inputs) != 1 + foreign or len(node.outputs) != 1 or node.attributes:
                continue
            inputs = "x, s" if foreign else "x"
            text = f'<domain: "{DOMAIN}", opset_import: ["": {opset}]> {name} ({inputs}) => (y) {{ {_BODIES[name]} }}'
            body = onnx.parser.parse_function(text)
            known = all(onnx.defs.has(inner.op_type, opset, "") for inner in body.node) and opset >= 19 * foreign
            if not known or (node.domain, name, "") in model.functions:
                continue
            if name == "TRT_FP8QuantizeLinear":
                node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT8E4M3FN)
            model.functions[key] = ir.serde.deserialize_function(body)
            node.domain, scope.graph.opset_imports[DOMAIN] = DOMAIN, 1
            model.opset_imports[DOMAIN] = 1


def invented(model: ir.Model) -> list[str]:
    """Return the operators that `define_invented` has defined."""
    return sorted(name for domain, name, _ in model.functions if domain == DOMAIN)
