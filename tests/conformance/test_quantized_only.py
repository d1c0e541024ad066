"""Passes for quantized models only find nothing in any other model of the standard's suite."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import passes
from fixtures.suites.conformance.suite import Case, cases
from passes.graphs.quantization import is_quantized
from passes.rewriting.base import Context


@pytest.fixture(scope="module")
def not_quantized() -> list[tuple[Case, ir.Model]]:
    found = [(each, ir.from_proto(onnx.load(each.model))) for each in cases() if each.kind == "node"]
    return [(each, model) for each, model in found if not is_quantized(model)]


@pytest.mark.parametrize("name", sorted(passes.QUANTIZED_ONLY))
def test_nothing_to_do(name: str, not_quantized: list[tuple[Case, ir.Model]]) -> None:
    """The models serve all passes, as none changes them."""
    assert len(not_quantized) > 1000
    step = passes.get(name)()
    assert [case.name for case, model in not_quantized if step.run(model, Context()).modified] == []
