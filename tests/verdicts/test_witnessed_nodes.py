"""Wrong numbers of nodes that are too large to run: their witnesses show them, and they are rewritten."""

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
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.graphs.scopes import Scope
from passes.probing.probe import Probe
from passes.rewriting.base import Proof, Status
from passes.shapes import inference
from tests.passes.helpers import tiny

TRANSPOSED = "ConvTranspose <strides: ints = [2, 2], pads: ints = [1, 1, 1, 1], output_padding: ints = [1, 1]>"


def filters(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("batch", "size"), [(1, 4), (8, 25)])
def test_an_output_padding_at_any_size(runtime: Runtime, batch: int, size: int) -> None:
    model = tiny(f"(float[{batch},3,{size},{size}] x) => (y) {{ y = {TRANSPOSED} (x, w) }}", w=filters(3, 16, 3, 3))
    inference.infer(model)
    scope = Scope(model, model.graph)
    (verdict,) = ProbedRuntime(runtime, cache=False, budget=0.0).verdicts([Probe.of(list(scope.graph), scope)])
    assert verdict.status is Status.WRONG
    assert verdict.proof is (Proof.WITNESS if batch == 8 else Proof.RUN)


@pytest.mark.slow
def test_a_decoder_is_converted_right(runtime: Runtime, tmp_path: Path) -> None:
    """Conv, PixelShuffle and ConvTranspose at 40×40: every node was ok, and the result off by 0.68."""
    text = f"""(float[1,16,40,40] x) => (float[1,8,160,160] y) {{
        a = Conv <pads: ints = [1, 1, 1, 1]> (x, w)
        b = DepthToSpace <blocksize: int = 2, mode: string = "CRD"> (a)
        y = {TRANSPOSED} (b, v)
    }}"""
    model = tiny(text, w=filters(64, 16, 3, 3) / 12, v=filters(16, 8, 3, 3) / 12)
    path = tmp_path / "decoder.onnx"
    onnx.save(ir.to_proto(model), path)
    onnx_bridge.convert(path, tmp_path / "bundle", target="ref")
    sample = {"x": filters(1, 16, 40, 40)}
    actual = onnx_bridge.load(tmp_path / "bundle")(sample)["y"]
    expected = Reference(path).run(sample)["y"]
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)
