"""Verdicts of the real MIGraphX: what it accepts, rejects, crashes on and gets wrong, one node at a time."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference.reference import Reference
from onnx_bridge.verdicts.cache import CachedVerdict, VerdictCache, shared
from onnx_bridge.verdicts.probe_samples import samples
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.core import graphs, inference
from passes.core.base import Status, Target, Verdict
from passes.core.graphs import Scope
from passes.target.fusion_clusters import fusion_clusters
from passes.target.probe import Probe
from tests.passes.helpers import sealed, tiny, weigh

PADS = np.array([0, 0, 1, 1, 0, 0, 1, 1])


@pytest.fixture(scope="module")
def target(runtime: Runtime) -> Target:
    return ProbedRuntime(runtime, cache=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path))
    return tmp_path / "verdicts"


def scope_of(text: str, **given: Any) -> Scope:
    model = tiny(text, **given)
    inference.infer(model)
    scope = Scope(model, model.graph)
    graphs.name_nodes(scope)
    return scope


def probes_of(text: str, **given: Any) -> list[Probe]:
    scope = scope_of(text, **given)
    return [Probe.of([node], scope) for node in scope.graph]


def last(text: str, **given: Any) -> Probe:
    return probes_of(text, **given)[-1]


def cluster(text: str, **given: Any) -> Probe:
    scope = scope_of(text, **given)
    return Probe.of(list(scope.graph), scope)


def said(target: Target, probe: Probe, **how: bool) -> Verdict:
    (verdict,) = target.verdicts([probe], **how)
    return verdict


class TestNodes:
    def test_accepted_and_right(self, target: Target) -> None:
        verdict = said(target, last("(float[2,3] x) => (y) { y = Erf(x) }"))
        assert verdict.status is Status.OK and verdict.error is not None and verdict.error < 1e-5

    def test_only_parsed(self, target: Target) -> None:
        assert said(target, last("(float[2,5] x) => (y) { y = Erf(x) }"), run=False) == Verdict(Status.OK)

    def test_rejected_in_its_own_words(self, target: Target) -> None:
        verdict = said(target, last("(float[3,3] x) => (y) { y = Det(x) }"))
        assert verdict == Verdict(Status.REJECTED, "Unknown operator: Det")

    def test_attention_that_is_read_as_another_domains(self, target: Target) -> None:
        text = "(float[2,4,8] q) => (y) { y = Attention<q_num_heads=2,kv_num_heads=2>(q, q, q) }"
        verdict = said(target, last(text, opset=23))
        assert verdict == Verdict(Status.REJECTED, "PARSE_ATTENTION: num_heads attribute required")

    def test_an_output_that_is_missing(self, target: Target) -> None:
        used = said(target, last("(float[1,1,4,4] x) => (y, i) { y, i = MaxPool<kernel_shape=[2,2]>(x) }"))
        assert used == Verdict(Status.WRONG, "accepted, but with 1 of 2 outputs")
        unused = said(target, last("(float[1,1,4,4] x) => (y) { y, i = MaxPool<kernel_shape=[2,2]>(x) }"))
        assert unused.status is Status.OK

    def test_an_operand_that_follows_from_shapes(self, target: Target) -> None:
        cone = last("(float[2,6] x) => (y, i) { s = Shape<start=1>(x) y, i = TopK(x, s) }")
        assert said(target, cone).status is Status.OK
        without = said(target, last("(float[2,6] x, int64[1] k) => (y, i) { y, i = TopK(x, k) }"))
        assert without.status is Status.REJECTED and "must be constant" in without.message

    def test_subgraphs_with_captures(self, target: Target) -> None:
        text = (
            "(bool c, float[2,3] x) => (y) {{ a = Neg(x) y = If<"
            "then_branch = g1 () => (float[2,3] t) {{ t = {}(a) }},"
            "else_branch = g2 () => (float[2,3] e) {{ e = Abs(x) }}>(c) }}"
        )
        assert said(target, last(text.format("Relu"))) == Verdict(Status.OK, error=0.0)
        assert said(target, last(text.format("Mish"), opset=18)).message == "Unknown operator: Mish"

    def test_function_calls(self, target: Target) -> None:
        call = last(
            "(float[2] x) => (float[2] y) { y = local.f(x) }",
            functions='<domain: "local", opset_import: ["" : 17]> f (a) => (b) { b = Neg(a) }',
        )
        assert said(target, call) == Verdict(Status.REJECTED, "Unknown operator: f")

    def test_a_function_that_is_taken_for_the_operator_of_its_name(self, target: Target) -> None:
        call = last(
            "(float[2] x) => (float[2] y) { y = local.Relu(x) }",
            functions='<domain: "local", opset_import: ["" : 17]> Relu (a) => (b) { b = Neg(a) }',
        )
        assert said(target, call).status is Status.WRONG

    def test_random_operators_are_known_to_be_drawn_once(self, target: Target) -> None:
        verdict = said(target, last("(float[2,2] x) => (y) { y = RandomUniformLike(x) }"))
        assert verdict.status is Status.REJECTED and "draws new numbers in each run" in verdict.message

    def test_what_cannot_be_asked_is_rejected_for_that(self, target: Target) -> None:
        verdict = said(target, last("(string[2] x) => (y) { y = Identity(x) }"))
        assert verdict == Verdict(Status.REJECTED, "x holds strings")

    def test_an_operator_that_only_onnx_itself_can_evaluate(self, target: Target) -> None:
        probe = last("(int16[3,4] x) => (z) { z = Relu(x) }")
        with pytest.raises(InputError, match="Could not find an implementation for Relu"):
            Reference(probe.to_proto().SerializeToString())
        assert said(target, probe) == Verdict(Status.OK, error=0.0)


class TestWrongNumbers:
    def test_a_padded_answer_of_a_size_that_depends_on_the_data(self, target: Target) -> None:
        probe = last("(float[2,3] x) => (y) { y = NonZero(x) }")
        parsed = said(target, probe, run=False)
        assert parsed == Verdict(Status.WRONG, "accepted, but the size of output 0 depends on the data")
        assert said(target, probe).message == "output 0: shape [2, 6] ≠ [2, 5]"

    def test_integers(self, target: Target) -> None:
        text = "(uint8[4,8] x) => (y) { y = MatMulInteger(x, w, zero) }"
        verdict = said(target, last(text, w=np.ones((8, 2), np.uint8), zero=np.uint8(3)))
        assert verdict.status is Status.WRONG and verdict.error is not None and verdict.error > 1

    @pytest.mark.parametrize("value", [0.0, 5.0])
    def test_a_pad_and_a_convolution_that_are_right_alone(self, target: Target, value: float) -> None:
        scope = scope_of(
            "(float[1,1,4,4] x) => (y) { p = Pad(x, pads, value) y = Conv(p, w) }",
            pads=PADS,
            value=np.float32(value),
            w=np.ones((1, 1, 3, 3), np.float32),
        )
        (group,) = fusion_clusters(scope)
        *alone, together = target.verdicts([*(Probe.of([node], scope) for node in group), Probe.of(group, scope)])
        assert [verdict.status for verdict in alone] == [Status.OK, Status.OK]
        assert together.status is (Status.WRONG if value else Status.OK)

    @pytest.mark.parametrize("between", ["r = Identity(t)", "c = Conv(t, w) r = Relu(c)"])
    def test_a_view_and_a_resize_that_are_right_alone(self, target: Target, between: str) -> None:
        scope = scope_of(
            f"(float[1,4,4,3] x) => (y) {{ t = Transpose<perm=[0,3,1,2]>(x) {between} y = Resize(r, none, scales) }}",
            w=np.ones((2, 3, 1, 1), np.float32),
            none=np.zeros(0, np.float32),
            scales=np.array([1, 1, 2, 2], np.float32),
        )
        (group,) = fusion_clusters(scope)
        *alone, together = target.verdicts([*(Probe.of([node], scope) for node in group), Probe.of(group, scope)])
        assert {verdict.status for verdict in alone} == {Status.OK}
        assert together.status is Status.WRONG

    def test_negative_indices(self, target: Target) -> None:
        gather = said(target, last("(float[4,3] x, int64[2] i) => (y) { y = Gather(x, i) }"))
        elements = said(target, last("(float[4,3] x, int64[4,3] i) => (y) { y = GatherElements<axis=1>(x, i) }"))
        assert (gather.status, elements.status) == (Status.OK, Status.WRONG)

    def test_scales_of_quantized_operators_make_sense(self, target: Target) -> None:
        text = (
            "(uint8[1,1,5,5] x, float xs, uint8 xz, uint8[1,1,1,1] w, float ws, uint8 wz, float ys, uint8 yz) => (y)"
            " { y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz) }"
        )
        assert said(target, last(text)).status is Status.OK


class TestBlame:
    def test_a_crash_costs_one_verdict(self, target: Target) -> None:
        neighbours = [last(f"(float[2,{n}] x) => (y) {{ y = Tanh(x) }}") for n in range(1, 21)]
        crasher = last("(float[4,3] x, int64[2,1] i, float[2,3] u) => (y) { y = ScatterND(x, i, u) }")
        verdicts = target.verdicts([*neighbours[:10], crasher, *neighbours[10:]])
        assert verdicts[10].status is Status.CRASHES
        assert verdicts[10].message.startswith("SIGABRT: Assertion")
        assert {verdict.status for verdict in (*verdicts[:10], *verdicts[11:])} == {Status.OK}

    def test_a_corrupted_heap_is_blamed_on_who_did_it(self, target: Target) -> None:
        others = [last(f"(float[3,{n}] x) => (y) {{ y = Tanh(x) }}") for n in range(1, 9)]
        pad = last("(float[1,3,8,8] x) => (y) { y = Pad(x, pads) }", pads=-PADS)
        verdicts = target.verdicts([*others[:4], pad, *others[4:]])
        assert verdicts[4].status is Status.CRASHES
        assert {verdict.status for verdict in (*verdicts[:4], *verdicts[5:])} == {Status.OK}

    def test_the_heap_checks_itself(self, target: Target, runtime: Runtime) -> None:
        said(target, last("(float[2,1] x) => (y) { y = Erf(x) }"))
        maps = [Path(f"/proc/{worker.pid}/maps").read_text() for worker in workers._shared.values() if worker.pid]
        assert any("libc_malloc_debug" in text for text in maps)

    def test_hangs(self, runtime: Runtime) -> None:
        slow = last("(float[64,64] x) => (y) { y = MatMul(x, x) }")
        hasty = ProbedRuntime(runtime, cache=False, timeout=1e-4)
        assert said(hasty, slow) == Verdict(Status.HANGS, "no answer within 0.0001 s")
        assert said(ProbedRuntime(runtime, cache=False), slow).status is Status.OK


class TestConstants:
    def test_large_ones_are_not_read_where_it_is_not_needed(self, target: Target) -> None:
        model = tiny("(float[4,1024] x) => (float[4,1024] y) { y = MatMul(x, w) }")
        weigh(model, "w", sealed(1024, 1024))
        scope = Scope(model, model.graph)
        assert said(target, Probe.of([scope.graph[0]], scope)) == Verdict(Status.OK)

    def test_a_rejection_without_them_is_confirmed_with_them(self, target: Target) -> None:
        names = ", ".join(f"y{number}" for number in range(200))
        text = f"(float[2,600] x, int64[200] i) => ({names}) {{ {names} = Split<axis=1>(x, i) }}"
        rejected = said(target, last(text))
        assert rejected.status is Status.REJECTED and "constant" in rejected.message
        probe = last(text.replace(", int64[200] i", ""), i=np.full(200, 3))
        assert not probe.has_all_data and said(target, probe, run=False) == Verdict(Status.OK)


class TestSamples:
    def test_scattered_indices_differ_and_are_also_negative(self) -> None:
        model = tiny("(float[4,3] x, int64[3,2] i, float[3] u) => (float[4,3] y) { y = ScatterND(x, i, u) }")
        ordinary, edge = samples(model)
        assert len({tuple(row) for row in ordinary["i"]}) == 3 and (ordinary["i"] >= 0).all()
        np.testing.assert_array_equal(edge["i"], ordinary["i"] - [4, 3])

    def test_halves_zeros_and_negative_numbers_are_tried(self) -> None:
        _, edge = samples(tiny("(float[8,8] x) => (float[8,8] y) { y = Round(x) }"))
        assert {0.0, 0.5, -0.5, 2.5, -10.0} <= set(edge["x"].ravel().tolist())

    def test_scores_in_16_bits_stay_small(self) -> None:
        """No two ways of computing agree on the exponential of a large one."""
        text = "(float16[1,2,4,8] q) => (float16[1,2,4,8] y) {{ y = {}(q, q, q) }}"
        _, scored = samples(tiny(text.format("Attention"), opset=23))
        assert np.abs(scored["q"]).max() == 1
        _, other = samples(tiny(text.replace("q, q, q", "q, q").format("Add")))
        assert np.abs(other["q"]).max() == 10

    def test_nothing_negative_is_cast_to_an_unsigned_dtype(self) -> None:
        for sample in samples(tiny("(float[8,8] x) => (uint8[8,8] y) { y = Cast<to=2>(x) }")):
            assert (sample["x"] >= 0).all()


class TestCache:
    PROBES = "(float[2,3] x, float[3,3] m) => (y) { a = Erf(x) b = Det(m) y = Mul(a, b) }"

    def test_what_is_known_needs_no_worker(
        self, runtime: Runtime, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = probes_of(self.PROBES)
        first = ProbedRuntime(runtime).verdicts(asked)
        assert [verdict.status for verdict in first] == [Status.OK, Status.REJECTED, Status.OK]

        def refuse(*_: Any, **__: Any) -> None:
            raise AssertionError("a worker was asked")

        monkeypatch.setattr(workers, "shared", refuse)
        assert ProbedRuntime(runtime).verdicts(asked) == first
        assert ProbedRuntime(runtime).verdicts(asked, run=False) == first
        with pytest.raises(AssertionError, match="a worker was asked"):
            ProbedRuntime(runtime, cache=False).verdicts(asked)

    def test_what_was_only_parsed_is_still_to_be_run(self, runtime: Runtime, folder: Path) -> None:
        probe = last("(float[2,3] x) => (y) { y = Sin(x) }")
        assert said(ProbedRuntime(runtime), probe, run=False).error is None
        assert said(ProbedRuntime(runtime), probe).error is not None
        assert said(ProbedRuntime(runtime), probe, run=False).error is not None

    def test_the_environment_of_migraphx_counts(
        self, runtime: Runtime, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        probe = last("(float[2,3] x) => (y) { y = Sin(x) }")
        said(ProbedRuntime(runtime), probe, run=False)
        monkeypatch.setenv("MIGRAPHX_DISABLE_MULTI_OUTPUT_FUSION", "1")
        said(ProbedRuntime(runtime), probe, run=False)
        assert len(list(folder.glob("*.jsonl"))) == 2

    def test_a_damaged_file_is_passed_over(self, runtime: Runtime, folder: Path) -> None:
        probe = last("(float[2,3] x) => (y) { y = Sin(x) }")
        before = said(ProbedRuntime(runtime), probe, run=False)
        (file,) = folder.glob("*.jsonl")
        file.write_bytes(b'\x00\xff garbage\n["a"]\n{}\n[1,2,3,4,5]\n' + file.read_bytes()[:20])
        shared.cache_clear()  # as in another process
        assert said(ProbedRuntime(runtime), probe, run=False) == before
        assert said(ProbedRuntime(runtime), probe, run=False) == before
        cache = VerdictCache(file)
        cache.refresh()
        assert cache.get(probe.signature, run=False) == before

    def test_a_file_that_was_removed_is_forgotten(self, tmp_path: Path) -> None:
        file, known = tmp_path / "cache.jsonl", CachedVerdict(Verdict(Status.OK), True)
        cache = VerdictCache(file)
        for remove in (file.unlink, lambda: file.write_bytes(b"")):
            cache.add({"one": known, "two": known})
            cache.refresh()
            assert cache.get("one", run=True) == Verdict(Status.OK)
            remove()
            cache.refresh()
            assert cache.get("one", run=True) is cache.get("two", run=True) is None

    def test_one_that_was_only_written_is_forgotten_as_well(self, tmp_path: Path) -> None:
        file = tmp_path / "cache.jsonl"
        cache = VerdictCache(file)
        cache.refresh()
        cache.add({"one": CachedVerdict(Verdict(Status.OK), True)})
        file.unlink()
        cache.refresh()
        assert cache.get("one", run=True) is None

    @pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "written anew"])
    def test_another_file_in_its_place_is_read_from_the_start(self, tmp_path: Path, replaced: bool) -> None:
        """However long the other one is."""
        file, other, known = tmp_path / "cache.jsonl", tmp_path / "other.jsonl", CachedVerdict(Verdict(Status.OK), True)
        cache = VerdictCache(file)
        cache.add({"one": known})
        cache.refresh()
        names = ["two", "three", "four"]
        VerdictCache(other).add(dict.fromkeys(names, known))
        if replaced:
            other.replace(file)
        else:
            file.write_bytes(other.read_bytes())
        cache.refresh()
        assert cache.get("one", run=True) is None
        assert all(cache.get(name, run=True) == known.verdict for name in names)

    def test_the_thorough_one_of_two_counts(self, tmp_path: Path) -> None:
        file = tmp_path / "cache.jsonl"
        for ran in (False, True, False):
            VerdictCache(file).add({"one": CachedVerdict(Verdict(Status.OK, str(ran)), ran)})
        cache = VerdictCache(file)
        cache.refresh()
        assert cache.get("one", run=True) == Verdict(Status.OK, "True")

    def test_a_folder_that_cannot_be_written_is_done_without(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        cache = VerdictCache(tmp_path / "file" / "cache.jsonl")
        cache.add({"s": CachedVerdict(Verdict(Status.OK), True)})
        cache.refresh()
        assert cache.get("s", run=True) == Verdict(Status.OK)

    def test_processes_write_at_once(self, tmp_path: Path) -> None:
        file = tmp_path / "cache.jsonl"
        code = """
            import sys
            from pathlib import Path
            from onnx_bridge.verdicts.cache import CachedVerdict, VerdictCache
            from passes.core.base import Status, Verdict
            cache = VerdictCache(Path(sys.argv[1]))
            for turn in range(200):
                verdicts = [CachedVerdict(Verdict(Status.OK, "x" * n), True) for n in range(20)]
                cache.add({f"{sys.argv[2]}-{turn}-{n}": each for n, each in enumerate(verdicts)})
        """
        arguments = [sys.executable, "-c", textwrap.dedent(code), str(file)]
        running = [subprocess.Popen([*arguments, str(number)]) for number in range(4)]
        assert [process.wait() for process in running] == [0] * 4
        assert all(json.loads(line) for line in file.read_bytes().split(b"\n") if line)
        cache = VerdictCache(file)
        cache.refresh()
        assert (
            sum(
                cache.get(f"{p}-{t}-{n}", run=True) is not None for p in range(4) for t in range(200) for n in range(20)
            )
            == 16000
        )


class TestManyNodes:
    def test_a_transformer_is_asked_about_by_kind(
        self, runtime: Runtime, folder: Path, exported: Callable[..., Path]
    ) -> None:
        model = ir.load(exported("bert", "torchscript"))
        inference.infer(model)
        scope = Scope(model, model.graph)
        nodes = [node for node in scope.nodes() if graphs.constant_of(node) is None]

        def many() -> list[Probe]:
            return [Probe.of([node], scope) for _ in range(1000 // len(nodes) + 1) for node in nodes]

        heard: list[str] = []
        cold = ProbedRuntime(runtime, progress=heard.append).verdicts(many(), run=False)
        assert len(cold) >= 1000
        assert heard
        assert len({probe.signature for probe in many()}) < len(nodes) * 2 / 3
        assert ProbedRuntime(runtime).verdicts(many(), run=False) == cold
