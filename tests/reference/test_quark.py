"""Models with AMD Quark's custom operators: with Quark's own library, and without it, where they are emulated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_bridge
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference.quark import library as quark_library
from onnx_bridge.reference.reference import Reference

X = (np.random.default_rng(4).standard_normal((2, 6, 16)) * 5).astype(np.float32)
BODY = """
    b = com.amd.quark.BFPQuantizeDequantize <bit_width = 13, block_size = 16, bfp_method = "to_bfp_prime", axis = 2> (x)
    r = Relu(b)
    m = com.amd.quark.MXQuantizeDequantize <element_dtype = "fp6_e3m2", block_size = 8, axis = 1> (r)
    f = com.amd.quark.BFPQuantizeDequantize <convert_to_bfloat_before_bfp = 1, rounding_mode = 2> (m)
    q = com.amd.quark.ExtendedQuantizeLinear <axis = 1> (f, s, z)
    t = Transpose <perm = [0, 2, 1]> (q)
    u = Transpose <perm = [0, 2, 1]> (t)
    d = com.amd.quark.ExtendedDequantizeLinear <axis = 1> (u, s, z)
    h = com.amd.quark.ExtendedQuantizeLinear (d, one, g)
    k = com.amd.quark.ExtendedDequantizeLinear (h, one, g)
    i = com.amd.quark.ExtendedQuantizeLinear (k, one, w)
    j = com.amd.quark.ExtendedDequantizeLinear (i, one, w)
    y = Add(j, x)
"""


def model(body: str = BODY) -> onnx.ModelProto:
    header = '<ir_version: 10, opset_import: ["": 17, "com.amd.quark": 1]>'
    proto = onnx.parser.parse_model(f"{header} g (float[2,6,16] x) => (float[2,6,16] y) {{ {body} }}")
    scale = np.linspace(0.5, 2, 6, dtype=np.float32)
    given = [onnx.numpy_helper.from_array(scale, "s"), onnx.numpy_helper.from_array(np.float32(0.25), "one")]
    for name, dtype, shape in (
        ("z", onnx.TensorProto.BFLOAT16, [6]),
        ("g", onnx.TensorProto.INT16, []),
        ("w", onnx.TensorProto.FLOAT16, []),
    ):
        given.append(onnx.helper.make_tensor(name, dtype, shape, [0] * (6 if shape else 1)))
    proto.graph.initializer.extend(each for each in given if f" {each.name}," in body or f" {each.name})" in body)
    return proto


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(quark_library, "library", lambda: None)
    yield


def test_the_library_is_found_once() -> None:
    found = quark_library.library()
    assert found is not None
    assert found.is_file()
    assert quark_library.library() is found


def test_both_agree_bit_for_bit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    real = Reference(tmp_path / "m.onnx")
    assert not real.notes
    expected = real.run({"x": X})["y"]
    monkeypatch.setattr(quark_library, "library", lambda: None)
    for source in (tmp_path / "m.onnx", ir.from_proto(model())):
        emulated = Reference(source)
        assert "emulates" in emulated.notes[0]
        assert (emulated.input_names, emulated.output_names) == (("x",), ("y",))
        for _ in range(2):
            np.testing.assert_array_equal(emulated.run({"x": X})["y"], expected)


@pytest.mark.usefixtures("without_library")
def test_check_notes_the_emulation(runtime: Runtime, tmp_path: Path) -> None:
    """The decomposition is checked against the emulation, without Quark."""
    body = "b = com.amd.quark.BFPQuantizeDequantize <bit_width = 16, block_size = 8> (x) y = Relu(b)"
    onnx.save(model(body), tmp_path / "m.onnx")
    report = onnx_bridge.check(tmp_path / "m.onnx", target="ref")
    assert report.passed
    assert any("emulates" in note for note in report.notes)


@pytest.mark.usefixtures("without_library")
def test_operators_without_emulation() -> None:
    source = ir.from_proto(model("y = com.amd.quark.ExtendedLSTM (x)"))
    with pytest.raises(InputError, match="no emulation"):
        Reference(source).run({"x": X})


@pytest.mark.usefixtures("without_library")
def test_unknown_operator_of_quark() -> None:
    source = ir.from_proto(model("a = com.amd.quark.BFPQuantizeDequantize (x) y = com.amd.quark.Unheard (a)"))
    with pytest.raises(InputError, match="Unheard"):
        Reference(source).run({"x": X})
