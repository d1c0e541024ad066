"""Checks to report on: small models, real arrays, and faults that were planted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx import parser

from onnx_bridge.conversion.cleaning import Cleaned, clean
from onnx_bridge.core.values import Array
from onnx_bridge.parity.checking.error_histogram import Sketch
from onnx_bridge.parity.checking.evidence import Evidence, Network
from onnx_bridge.parity.checking.report import CheckReport, Leg
from onnx_bridge.parity.layers.report import Layer, LayerReport
from onnx_bridge.reference.comparison.compare import OutputComparison, compare
from onnx_bridge.reference.reference import Reference

HOSTILE = "</script><img src=x onerror=alert(1)>&amp;"
"""A name that must stay text."""

_TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[4,6] x) => (float[4,6] y, float[4] z)
<float[6,6] w = {WEIGHTS}, float[4,6] bias = {BIASES}> {
    same = Identity (x)
    h = MatMul (same, w)
    a = Add (h, bias)
    r = Relu (a)
    s = Sigmoid (r)
    t = Tanh (s)
    y = Mul (t, a)
    z = ReduceMax <axes = [1], keepdims = 0> (y)
}"""


def model() -> ir.Model:
    """Eight nodes, whose names are ``layer.0/MatMul`` and the like; one has a hostile name."""
    weights = ", ".join(f"{each:.3f}" for each in np.linspace(-1, 1, 36))
    biases = ", ".join(f"{each % 6 + 1}" for each in range(24))  # of each row its own, as no Gemm takes it
    loaded = ir.from_proto(parser.parse_model(_TEXT.replace("WEIGHTS", weights).replace("BIASES", biases)))
    for index, node in enumerate(loaded.graph):
        node.name = HOSTILE if node.op_type == "Tanh" else f"layer.{index}/{node.op_type}"
    return loaded


@dataclass(frozen=True)
class Scene:
    """What a page is made of."""

    report: CheckReport
    evidence: Evidence
    cleaned: Cleaned


def scene(fault: float = 0.25) -> Scene:
    """A model whose Sigmoid a runtime computes wrongly, by so much: the later nodes pass the error on.

    The arrays are those of ONNX Runtime; the runtime's are the same, with the fault added where it belongs.
    """
    original = model()
    cleaned = clean(original)
    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    names = [str(each.name) for node in cleaned.model.graph for each in node.outputs]
    right = _values(cleaned.model, names, {"x": x})
    wrong = dict(right)
    wrong["s"] = right["s"] + np.float32(fault)
    wrong["t"] = np.tanh(wrong["s"])
    wrong["y"] = wrong["t"] * right["a"]
    wrong["z"] = wrong["y"].max(axis=1)
    expected, actual = ({name: each[name] for name in ("y", "z")} for each in (right, wrong))
    local = right | {"s": wrong["s"]}
    rows = []
    for node in cleaned.model.graph:
        name = str(node.outputs[0].name)
        rows.append(
            Layer(
                node=str(node.name),
                operator=node.op_type,
                module="encoder",
                tensor=name,
                inputs=tuple(str(each.name) for each in node.inputs if each is not None),
                runs_on="MIGraphX",
                cleaning=_one(name, right, right),
                accumulated=_one(name, wrong, right),
                local=_one(name, local, right),
                reason="",
                by=(),
                origins=(str(node.name),),
            )
        )
    truth = (expected, expected)
    legs = {"cleaned on ONNX Runtime": (expected, expected), "MIGraphX ref": (actual, expected)}
    sketches = {name: Sketch.of(wrong[name], right[name]) for name in right}
    report = CheckReport(
        "model.onnx",
        tuple(Leg(name, tuple(map(compare, found, truth))) for name, found in legs.items()),
        seed=7,
        versions={"ONNX Runtime": "1.2.3", "MIGraphX": "4.5.6"},
        notes=("the reference is <b>the cleaned model</b>",),
        layers=LayerReport(tuple(rows)),
    )
    evidence = Evidence(
        {"ONNX Runtime": truth, **legs},
        Network.of(original),
        Network.of(cleaned.model),
        cleaned.to_json()["passes"],
        {name: each for name, each in sketches.items() if each is not None},
    )
    return Scene(report, evidence, cleaned)


def _values(model: ir.Model, names: list[str], sample: dict[str, Array]) -> dict[str, Array]:
    copy = model.clone()
    values = {each.name: each for node in copy.graph for each in node.outputs}
    copy.graph.outputs[:] = [values[name] for name in names]
    found = Reference(copy).run(sample)
    return {name: each for name, each in found.items() if isinstance(each, np.ndarray)}


def _one(name: str, actual: dict[str, Array], expected: dict[str, Array]) -> OutputComparison:
    return compare({name: actual[name]}, {name: expected[name]}).outputs[0]
