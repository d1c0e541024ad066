"""The target ``gpu:ARCHITECTURE`` of the verbs, on a machine without such a GPU: passes and kernels are compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_bridge
from fixtures.suites.gpu import faults, planted
from onnx_bridge.bundle.files import verify
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.process.printed_error import PrintedError
from tests.passes import harness

TARGET = "gpu:gfx942"
CONV_4D = "(float[1,1,3,3,3,3] x, float[1,1,2,2,2,2] w) => (float[1,1,2,2,2,2] y) { y = Conv(x, w) }"
CONV = "(float[1,1,3,3] x, float[1,1,2,2] w) => (float[1,1,2,2] y) { y = Conv(x, w) }"
PRODUCT = "(float[2,4] x, float[4,2] w) => (float[2,2] y) { p = MatMul(x, w) y = Sin(p) }"


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {text}'))


def weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def test_doctor_asks_the_compiler(tmp_path: Path) -> None:
    diagnosis = onnx_bridge.doctor(model(CONV_4D), target=TARGET)
    (node,) = diagnosis.nodes
    assert (node.verdict, node.action) == ("rejected", "rewritten")
    assert "at most 5 dimensions" in node.message
    assert any("not run on a GPU" in note for note in diagnosis.notes)
    assert onnx_bridge.doctor(model(CONV_4D), target="ref").nodes[0].verdict == "ok"


@pytest.mark.parametrize(
    ("node", "said"), [("Max(x, z)", "nan"), ("Min(x, z)", "nan"), ("Relu(x)", "nan"), ("Add(x, z)", "")]
)
def test_doctor_says_what_becomes_of_nan(node: str, said: str) -> None:
    """The verdict is the same: a network of numbers is right."""
    inputs = "float[8] x, float[8] z" if "z" in node else "float[8] x"
    diagnosis = onnx_bridge.doctor(model(f"({inputs}) => (float[8] y) {{ y = {node} }}"), target=TARGET)
    (only,) = diagnosis.nodes
    assert (only.verdict, only.action) == ("ok", "unchanged")
    assert (said in only.message) if said else not only.message


def test_bisect_and_reduce_name_the_node(tmp_path: Path) -> None:
    fault = onnx_bridge.bisect(model(CONV_4D), target=TARGET, pipeline="none", host=False).fault
    assert fault is not None
    assert (fault.component.value, fault.kind.value) == ("rehearsal", "rejected")
    assert fault.group == "compiling for gfx942"
    assert [node.operator for node in fault.nodes] == ["Conv"]
    onnx_bridge.reduce(model(CONV_4D), tmp_path, target=TARGET, pipeline="none")
    assert not list(tmp_path.glob("*.cpp"))
    readme = (tmp_path / "README.md").read_text()
    assert 'get_target("gpu")' in readme
    assert "LD_PRELOAD" not in readme  # it shows without checks of the heap


def test_what_runs_on_the_host_alone_is_not_called_emulated() -> None:
    report = onnx_bridge.check(model("(string[2] x) => (string[2] y) { y = StringConcat(x, x) }"), target=TARGET)
    assert report.passed
    assert not any("emulated" in leg.name for leg in report.legs)


@pytest.mark.parametrize("name", list(faults.FAULTS))
def test_the_page_of_faults_says_what_reduce_says(name: str, tmp_path: Path) -> None:
    fault = faults.FAULTS[name]
    section = faults.PAGE.read_text().partition(f"## {name}\n\n")[2].partition("\n## ")[0]
    assert section.strip() == faults.report(name, fault.architectures[0], tmp_path)


@pytest.mark.parametrize(("text", "complete"), [(PRODUCT, True), (CONV, False)])
def test_a_bundle_has_the_program_beside_the_one_that_proves_it(text: str, complete: bool, tmp_path: Path) -> None:
    bundle = onnx_bridge.convert(model(text), tmp_path / "bundle", target=TARGET)
    (program,) = bundle.manifest.program.gpu_programs
    assert (bundle.manifest.target, program.architecture, program.complete) == ("ref", "gfx942", complete)
    assert (tmp_path / "bundle" / program.file.file).suffixes == [".gfx942", ".mxr"]
    assert any(program.file.file in note and "not run on a GPU" in note for note in bundle.manifest.notes)
    verification = onnx_bridge.verify(tmp_path / "bundle")
    assert verification.passed
    (note,) = (note for note in verification.notes if "is for gfx942" in note)
    assert ("no GPU here" if complete else "no GPU runs it") in note
    report = onnx_bridge.check(bundle, target=TARGET)
    assert report.passed
    assert "emulated gfx942" in [leg.name for leg in report.legs]
    assert any(("1 product;" if complete else "1 convolution;") in note for note in report.notes)


@pytest.mark.parametrize(
    ("text", "here", "said"),
    [
        (PRODUCT, "gfx942", "the GPU here"),
        (PRODUCT, "gfx1100", "GPU here is gfx1100"),
        (CONV, "gfx942", "no GPU runs it"),
    ],
)
def test_verify_says_whether_a_program_fits_the_card(
    text: str, here: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx_bridge.convert(model(text), tmp_path / "bundle", target=TARGET)
    monkeypatch.setattr(verify, "gpu_architecture", lambda: here)
    (note,) = (note for note in onnx_bridge.verify(tmp_path / "bundle").notes if "is for gfx942" in note)
    assert said in note


def test_wrong_numbers_of_a_kernel_are_found(tmp_path: Path) -> None:
    largest = model("(float[2] x, float[2] z) => (float[2] y) { m = Max(x, z) y = Neg(m) }")
    sample = {"x": np.array([np.nan, 1], np.float32), "z": np.array([2, 3], np.float32)}
    report = onnx_bridge.bisect(largest, target=TARGET, pipeline="none", inputs=[sample], host=False)
    assert report.fault is not None
    assert (report.fault.component.value, report.fault.kind.value) == ("rehearsal", "wrong")
    assert [node.operator for node in report.fault.nodes] == ["Max"]
    kernel = report.fault.kernel
    assert kernel is not None
    assert (kernel.symbol, kernel.value, kernel.index, kernel.actual) == ("max_kernel", "m", (0,), 2)
    assert np.isnan(kernel.expected)
    assert any(text.startswith("v_max") for text in kernel.instructions)
    assert "void max_kernel" in kernel.source
    assert kernel.ref == 3 or np.isnan(kernel.ref)
    assert "confirm on hardware" in report.summary


def test_an_edited_instruction_is_found_in_its_kernel(tmp_path: Path) -> None:
    """An addition becomes a subtraction in one of three kernels of a bundle's program."""
    text = "(float[2,4] x, float[4,2] w) => (float[2,2] y, float[2,4] t) "
    text += "{ e = Exp(x) t = Softmax(e) p = MatMul(t, w) a = Add(p, p) y = Sin(a) }"
    bundle = onnx_bridge.convert(model(text), tmp_path / "bundle", target=TARGET)
    assert onnx_bridge.check(bundle, target=TARGET).passed
    edits = [edit for edit in planted.edits(bundle.path) if edit.kernel == "add_sin_kernel"]
    assert edits
    for edit in edits:
        with planted.edited(bundle.path, edit):
            report = onnx_bridge.check(onnx_bridge.load(bundle.path), target=TARGET)
        if any(leg.differs for leg in report.legs):
            break
    assert any("kernel add_sin_kernel" in note and "y[" in note for note in report.notes)


def test_a_product_by_the_host_is_named_beside_the_kernel(tmp_path: Path) -> None:
    """Doubles are multiplied in float32, between two kernels that convert; those of inputs are right."""
    product = model("(double[2,3] x, double[3,2] w) => (double[2,2] y) { y = MatMul(x, w) }")
    fault = onnx_bridge.bisect(product, target=TARGET, pipeline="none", host=False).fault
    assert fault is not None
    assert fault.kernel is not None
    assert (fault.kernel.value, fault.kernel.index) == ("y", (0, 0))
    assert fault.kernel.operands
    assert all(name.startswith("gpu::") for name in fault.kernel.operands)


def test_buckets_are_emulated(tmp_path: Path) -> None:
    text = "(float[N,4] x) => (float[N,4] y) { e = Exp(x) y = Softmax(e) }"
    bundle = onnx_bridge.convert(model(text), tmp_path / "bundle", target=TARGET, buckets={"N": [2, 4]})
    report = onnx_bridge.check(bundle, target=TARGET)
    assert report.passed
    assert [leg.name for leg in report.legs if "emulated gfx942" in leg.name and leg.comparisons] == [
        f"bucket N={size}, emulated gfx942" for size in (2, 4)
    ]
    assert any("kernels" in note for note in report.notes)


SUMS = """(int64[batch, tokens] input_ids, float[batch, 1, 8] past_state)
    => (float[batch, tokens, 16] logits, float[batch, 1, 8] present_state) <int64 axis = {1}, int64[1] last = {-1}> {
        x = Gather(table, input_ids) c = CumSum(x, axis) s = Add(c, past_state) t = Tanh(s) logits = MatMul(t, o)
        present_state = Gather<axis = 1>(s, last) }"""


def test_decoders_are_emulated(tmp_path: Path) -> None:
    source = harness.model(SUMS, **weights(table=(16, 8), o=(8, 16)))
    onnx.save(ir.to_proto(source), tmp_path / "model.onnx")
    sizes: dict[str, Any] = {"decoder": True, "max_length": 16, "prefill": [4]}
    bundle = onnx_bridge.convert(tmp_path / "model.onnx", tmp_path / "bundle", target="ref", **sizes)
    report = onnx_bridge.check(bundle, target=TARGET)
    assert report.passed
    emulated = [leg for leg in report.legs if "emulated gfx942" in leg.name]
    assert len(emulated) * 2 == len(report.legs)
    assert all(leg.comparisons for leg in emulated)


@pytest.mark.parametrize(
    ("precision", "keep", "kernels"),
    [
        ("fp8", (), {"fp8": 2}),
        ("fp8", ("MatMul_2",), {"fp8": 1, "float": 1}),
        ("int8", ("MatMul_2",), {"int8": 1, "float": 1}),
    ],
)
def test_products_are_quantized_for_it(
    precision: str, keep: tuple[str, ...], kernels: dict[str, int], tmp_path: Path
) -> None:
    """MIGraphX's own fp8 does not compile for it; and what it drops of a constant's pair is nothing of the model."""
    text = "(float[16,32] x) => (float[16,8] y) { h = MatMul(x, a) r = Relu(h) y = MatMul(r, b) }"
    source = harness.model(text, opset=21, **weights(a=(32, 64), b=(64, 8)))
    how: dict[str, Any] = {"precision": precision, "keep_fp32": keep}
    bundle = onnx_bridge.convert(source, tmp_path / "bundle", target=TARGET, **how)
    assert bundle.manifest.wholly_on_migraphx
    assert bundle.manifest.program.forecast["kernels"] == kernels
    assert onnx_bridge.check(bundle, target=TARGET).passed


def test_a_program_alone_is_not_proven(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="proven by one for ref"):
        onnx_bridge.convert(model(PRODUCT), tmp_path / "program.mxr", target=TARGET)


def test_kernels_that_the_library_lacks_are_not_emulated() -> None:
    """Debian builds MIGraphX's own kernels for some architectures alone: those of others copy nothing."""
    report = onnx_bridge.check(model(PRODUCT), target="gpu:gfx1201")
    assert report.passed
    assert not any(leg.name == "emulated gfx1201" for leg in report.legs)
    assert any("not built for this GPU" in note for note in report.notes)


def test_unknown_architectures(tmp_path: Path) -> None:
    for verb in (onnx_bridge.doctor, onnx_bridge.check, onnx_bridge.bisect):
        with pytest.raises(InputError, match="gfx942"):
            verb(model(PRODUCT), target="gpu:gfx924")


def test_errors_of_the_kernels_compiler() -> None:
    printed = (
        "x.hip:3:1: error: unsupported cmpxchg\n1 error generated when compiling for gfx942.\nError: std::bad_alloc\n"
    )
    assert PrintedError.parse(printed) == PrintedError("a kernel cannot be compiled: unsupported cmpxchg", False)
    assert PrintedError.parse("Error: std::bad_alloc").out_of_memory
