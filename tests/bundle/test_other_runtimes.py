"""Bundles that another MIGraphX made: they are refused in one sentence before the first run, and made again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import onnx_bridge
from onnx_bridge.core.errors import RuntimeNotFound
from onnx_bridge.migraphx.kinds import VARIABLE
from onnx_bridge.migraphx.runtime import Runtime
from tests.passes.helpers import tiny

HOST = "s = NonZero(x)  r = Cast<to=1>(s)"
"""What MIGraphX leaves to ONNX Runtime."""


@pytest.mark.parametrize("more", ["r = Relu(x)", HOST], ids=["one program", "partitions"])
def test_from_one_to_the_other(
    runtime: Runtime, second_runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    """There and back: what each made runs there, with parity, and not with the other."""
    source = tmp_path / "model.onnx"
    ir.save(tiny(f"(float[2,8] x) => (y, r) {{ y = Softmax(x) {more} }}"), source)
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    for own, other in ((runtime, second_runtime), (second_runtime, runtime)):
        monkeypatch.setenv(VARIABLE, str(own.path))
        bundle = onnx_bridge.convert(source, tmp_path / own.version, target="ref")
        assert onnx_bridge.check(bundle.path).passed and onnx_bridge.verify(bundle.path).passed
        y = onnx_bridge.load(bundle.path)({"x": x})["y"]
        np.testing.assert_allclose(y.sum(-1), 1.0, rtol=1e-5)
        if own.release == other.release:  # two ways into one release
            continue
        monkeypatch.setenv(VARIABLE, str(other.path))
        unfit = onnx_bridge.verify(bundle.path).unfit
        with pytest.raises(RuntimeNotFound) as caught:
            onnx_bridge.load(bundle.path)
        for said in (unfit, str(caught.value)):
            assert said is not None
            assert f"MIGraphX {own.version}" in said and other.version in said, "what made it, and what is here"
            assert f"onnx-bridge convert {source}" in said, "how to make it again"


def test_by_the_other_way_into_the_same_one(
    second_runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module runs what the C library beside it compiled, and the other way round."""
    library = second_runtime.path.parent / "libmigraphx_c.so.3"
    source = tmp_path / "model.onnx"
    ir.save(tiny("(float[2,8] x) => (y) { y = Softmax(x) }"), source)
    for number, (own, other) in enumerate(((second_runtime.path, library), (library, second_runtime.path))):
        monkeypatch.setenv(VARIABLE, str(own))
        bundle = onnx_bridge.convert(source, tmp_path / str(number), target="ref")
        monkeypatch.setenv(VARIABLE, str(other))
        assert onnx_bridge.check(bundle.path).passed and onnx_bridge.verify(bundle.path).passed
