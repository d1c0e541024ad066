"""Inputs that select between branches: a program for each of their values in one bundle, chosen by the call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import onnx_bridge
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.conversion import convert as conversion
from onnx_bridge.conversion.selecting_inputs import selecting_inputs
from onnx_bridge.conversion.steps.run import run as run_steps
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.parity.checking.bucket_check import check_buckets
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests import texts
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.parity import CheckRequest
from tests.batch.requests import convert_all, job

DECODER = """
    (float[1, seq, 4] x, float[1, past, 4] cache, bool[1] use_cache)
    => (float[1, seq, 4] y, float[1, total, 4] present) {
        y, present = If (use_cache) <
            then_branch = cached () => (float[1, seq, 4] a, float[1, all, 4] b) {
                k = MatMul(x, w) b = Concat <axis = 1> (cache, k)
                t = Transpose <perm = [0, 2, 1]> (b) s = MatMul(x, t) p = Softmax <axis = -1> (s) a = MatMul(p, b)
            },
            else_branch = first () => (float[1, seq, 4] c, float[1, seq, 4] d) {
                d = MatMul(x, w)
                t2 = Transpose <perm = [0, 2, 1]> (d) s2 = MatMul(x, t2) p2 = Softmax <axis = -1> (s2) c = MatMul(p2, d)
            }
        >
    }
"""


def write(path: Path, text: str) -> Path:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> decoder {text}')
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(proto, path)
    return path


def sample(seq: int, past: int, use_cache: bool) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    x, cache = (random.standard_normal((1, size, 4)).astype(np.float32) for size in (seq, past))
    return {"x": x, "cache": cache, "use_cache": np.array([use_cache])}


@pytest.fixture(scope="module")
def made(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle]:
    folder = tmp_path_factory.mktemp("selecting")
    path = write(folder / "m.onnx", DECODER)
    request = ConvertRequest(target="ref", dims={"seq": 2, "past": 3})
    bundle = conversion.run(path, folder / "out", request)
    return path, bundle


class TestBundle:
    @pytest.mark.parametrize("use_cache", [False, True])
    def test_the_value_chooses_the_program(self, made: tuple[Path, Bundle], use_cache: bool) -> None:
        path, bundle = made
        given = sample(2, 3, use_cache)
        outputs, expected = bundle(given), Reference(path).run(given)
        assert outputs["present"].shape == (1, 5 if use_cache else 2, 4)  # type: ignore[union-attr]
        assert compare(outputs, expected).passed
        assert bundle.notes == [f"run in the bucket use_cache={int(use_cache)}"]

    def test_all_of_it_is_on_the_device(self, made: tuple[Path, Bundle]) -> None:
        bundle = made[1]
        assert [each.dims for each in bundle.manifest.programs] == [{"use_cache": 0}, {"use_cache": 1}]
        assert not any(not each.wholly_on_migraphx for each in bundle.manifest.programs)
        assert [each.name for each in bundle.specs] == ["x", "cache", "use_cache"]

    def test_check(self, made: tuple[Path, Bundle]) -> None:
        report = check_buckets(made[1], CheckRequest())
        assert report.passed, report.to_json()
        assert [len(leg.comparisons) for leg in report.legs] == [1, 1]

    def test_loading(self, made: tuple[Path, Bundle]) -> None:
        loaded = onnx_bridge.load(made[1].path)
        given = sample(2, 3, True)
        assert compare(loaded(given), made[1](given)).passed

    def test_a_batch_keeps_it(self, made: tuple[Path, Bundle], tmp_path: Path) -> None:
        for resumed in (False, True):
            request = job(target="ref", dims={"seq": 2, "past": 3}, check=True)
            (found,) = convert_all([made[0]], tmp_path, request, jobs=1).jobs
            assert found.status == ("kept" if resumed else "converted"), found


def test_sizes_and_values_together(runtime: Runtime, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", DECODER)
    request = ConvertRequest(target="ref", dims={"past": 3}, buckets={"seq": (1, 2)})
    bundle = conversion.run(path, tmp_path / "out", request)
    assert len(bundle.programs) == 4
    for seq, use_cache in ((1, True), (2, False), (2, True), (1, False)):
        given = sample(seq, 3, use_cache)
        assert compare(bundle(given), Reference(path).run(given)).passed
        assert bundle.notes == [f"run in the bucket use_cache={int(use_cache)},seq={seq}"]
    options = {"buckets": {"use_cache": [1]}, "dims": {"past": 3}, "dim_default": 1, "target": "ref"}
    only = onnx_bridge.convert(path, tmp_path / "one", **options)
    with pytest.raises(InputError, match="no bucket holds use_cache=0"):
        only(sample(1, 3, False))


def test_a_frozen_input_and_a_single_program_select_nothing(runtime: Runtime, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", DECODER)
    plain = ConvertRequest(target="ref", dim_default=1)
    frozen = conversion.run(path, tmp_path / "out", replace(plain, freeze={"use_cache": "true"}))
    assert isinstance(frozen, Bundle)
    assert frozen.wholly_on_migraphx
    whole = run_steps(path, tmp_path / "host", plain)
    assert any("--bucket use_cache=false,true" in note for note in whole.manifest.notes)


class TestDetection:
    def found(self, text: str, tmp_path: Path, **options: object) -> dict[str, tuple[int, ...]]:
        request = ConvertRequest(**{"dim_default": 1, **options})  # type: ignore[arg-type]
        return selecting_inputs(ir.load(write(tmp_path / "m.onnx", text)), request)

    def test_the_condition_may_be_computed(self, tmp_path: Path) -> None:
        inner = DECODER.replace(
            "y, present = If (use_cache)", "no = Not(use_cache) c0 = Squeeze(no) y, present = If (c0)"
        )
        assert self.found(inner, tmp_path) == {"use_cache": (0, 1)}
        assert self.found(inner, tmp_path, freeze={"use_cache": "true"}) == {}

    def test_results_of_one_shape(self, tmp_path: Path) -> None:
        text = """(float[n, 4] x, bool b) => (float[n, 4] y) {
            y = If (b) <then_branch = t () => (float[n, 4] u) { u = MatMul(x, w) },
                        else_branch = e () => (float[n, 4] v) { v = Neg(x) }> }"""
        assert self.found(text, tmp_path) == {}

    @pytest.mark.parametrize("kind", ["float[n]", "bool[2]", "bool"])
    def test_conditions_of_other_inputs(self, tmp_path: Path, kind: str) -> None:
        """A size of data, one of several elements, and two inputs together."""
        condition = {"float[n]": "s = ReduceSum(b) c0 = Greater(s, s)", "bool[2]": "c0 = Gather(b, z)"}
        text = f"""(float[n, 4] x, {kind} b, bool d, int64 z) => (float[k, 4] y) {{
            {condition.get(kind, "c0 = And(b, d)")}
            y = If (c0) <then_branch = t () => (float[m, 4] u) {{ u = Concat <axis = 0> (x, x) }},
                         else_branch = e () => (float[n, 4] v) {{ v = Neg(x) }}> }}"""
        assert self.found(text, tmp_path) == {}


def test_values_on_the_command_line() -> None:
    assert texts.buckets(["use_cache=false,true", "seq=1,8"]) == {"use_cache": (0, 1), "seq": (1, 8)}
    with pytest.raises(InputError):
        texts.buckets(["use_cache=true;false"])


def test_other_values(runtime: Runtime, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", DECODER)
    with pytest.raises(InputError, match="false and true"):
        onnx_bridge.convert(path, tmp_path / "out", buckets={"use_cache": [2]}, target="ref")


def test_the_batch_of_a_state_follows_before_branches_are_closed() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[b, 1, n] x, float[2, o, 1, 4] state, int64 sr)
        => (float[b, 1, l] y, z) < float[1, 1, 9] wide = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[1, 1, 3] narrow = {1, 2, 3},
        int64 k = {16000}, int64 zero = {0}> { s = Gather (state, zero) z = Concat <axis = 2> (x, s) c = Equal (sr, k)
        y = If (c) < then_branch = a () => (float[b, 1, o] t) { t = Conv <strides = [8]> (x, narrow) },
            else_branch = f () => (float[b, 1, p] e) { e = Conv <strides = [8]> (x, wide) }> }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert selecting_inputs(model, ConvertRequest(dims={"b": 4, "n": 6})) == {"sr": (16000,)}
