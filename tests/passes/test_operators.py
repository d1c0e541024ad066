"""The table of operators: its names exist, and it knows every operator of quantization that ONNX Runtime has."""

from __future__ import annotations

import re
from typing import get_args

import onnx
import onnx_ir as ir
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state

from passes.operators import (
    QUANTIZED,
    QUARK_DOMAINS,
    REDUCTIONS,
    WEIGHTS,
    Fact,
    is_dequantize,
    is_quantize,
    is_quantized_operator,
    is_quantizer,
    operators,
)

_SCHEMAS = [
    each for each in onnxruntime_pybind11_state.get_all_operator_schema() if each.domain in ("", "com.microsoft")
]
_OF_LIBRARIES = {
    *("ExtendedQuantizeLinear", "ExtendedDequantizeLinear", "VitisQuantizeLinear", "VitisDequantizeLinear"),
    *("QLinearConvTranspose", "DequantizeWithOrder"),
}
"""Operators of Quark, of inner domains of ONNX Runtime, and of its builds for GPUs."""


def test_every_name_is_that_of_an_operator():
    known = {each.name for each in _SCHEMAS} | {each.name for each in onnx.defs.get_all_schemas()} | _OF_LIBRARIES
    assert operators(*get_args(Fact)) <= known


def test_every_fact_holds_for_an_operator():
    assert all(operators(fact) for fact in get_args(Fact))


def test_an_operator_with_zero_points_is_one_of_quantization():
    """Each definition of its own once lacked others of them: QAttention, QMoE, DynamicQuantizeLSTM, MatMulBnb4."""
    quantized = {
        each.name
        for each in _SCHEMAS
        if any("zero_point" in value.name.lower() for value in each.inputs)
        or re.search(r"Quantize|Integer|NBits|Bnb4|^Q[A-Z]", each.name)
    }
    assert quantized <= QUANTIZED
    assert QUANTIZED - quantized <= _OF_LIBRARIES


def test_an_operator_whose_result_has_a_zero_point_quantizes():
    rounding = {
        each.name
        for each in _SCHEMAS
        for value in each.inputs
        if re.fullmatch(r"(y|z|c|reduced)_zero_point", value.name.lower()) and each.name != "QLinearWhere"
    }
    assert rounding <= operators("quantizes") | {"QLinearWhere"}
    assert "QLinearWhere" in operators("quantizes")


@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_a_weight_is_where_the_schema_has_it(name: str):
    (schema, *_) = (each for each in _SCHEMAS if each.name == name)
    assert schema.inputs[WEIGHTS[name]].name.lower() in ("b", "w")


def test_no_accuracy_is_said_twice():
    assert not operators("exact") & operators("few") and not operators("few", "exact") & operators("many")


def test_reductions_are_those_of_the_standard():
    assert {each.name for each in onnx.defs.get_all_schemas() if each.name.startswith("Reduce")} == REDUCTIONS


def test_a_quantizer_of_quark_rounds_to_steps_only_for_integers():
    def node(dtype: ir.DataType) -> ir.Node:
        zero = ir.val("z", dtype=dtype, shape=[])
        return ir.node("ExtendedQuantizeLinear", [ir.val("x"), ir.val("s"), zero], domain=QUARK_DOMAINS[0])

    assert is_quantizer(node(ir.DataType.INT16)) and not is_quantizer(node(ir.DataType.BFLOAT16))
    assert is_quantized_operator(node(ir.DataType.BFLOAT16))


def test_quantize_linear_has_two_domains():
    for domain in ("", "com.microsoft", "other"):
        quantize, dequantize = (
            ir.node(name, [ir.val("x")], domain=domain) for name in ("QuantizeLinear", "DequantizeLinear")
        )
        assert is_quantize(quantize) == is_dequantize(dequantize) == (domain != "other")
        assert not is_quantize(dequantize) and not is_dequantize(quantize)
    assert not is_quantize(None) and not is_dequantize(None)
