"""Verdicts of the real MIGraphX: what it accepts, rejects, crashes on and gets wrong, one node at a time."""

from __future__ import annotations

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
from onnx_bridge.verdicts import probed_runtime, prober
from onnx_bridge.verdicts.cache import VerdictCache, shared
from onnx_bridge.verdicts.probe_request import ProbeRequest, prepare
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from onnx_bridge.verdicts.prober import Prober
from onnx_bridge.verdicts.run_time import longest_seconds, run_seconds
from passes.graphs.scopes import Scope, name_nodes
from passes.graphs.tensors import constant_of
from passes.probing.fusion_clusters import fusion_clusters
from passes.probing.probe import Probe
from passes.probing.witness import witness
from passes.rewriting.base import Obstacle, Proof, Skip, Status, Target, Unproven, Verdict
from passes.shapes import inference
from tests.passes.helpers import tiny

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
    name_nodes(scope)
    return scope


def probes_of(text: str, **given: Any) -> list[Probe]:
    scope = scope_of(text, **given)
    return [Probe.of([node], scope) for node in scope.graph]


def last_node(text: str, **given: Any) -> Probe:
    return probes_of(text, **given)[-1]


def cluster(text: str, **given: Any) -> Probe:
    scope = scope_of(text, **given)
    return Probe.of(list(scope.graph), scope)


def judged(target: Target, probe: Probe) -> Verdict:
    (verdict,) = target.verdicts([probe])
    return verdict


class TestNodes:
    def test_accepted_and_right(self, target: Target) -> None:
        verdict = judged(target, last_node("(float[2,3] x) => (y) { y = Erf(x) }"))
        assert verdict.status is Status.OK and verdict.error is not None and verdict.error < 1e-5

    def test_a_branch_of_too_many_nodes_is_not_tried(self, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
        """It would end at the time limit, again and again: in a batch, alone, and cleaned."""
        monkeypatch.setattr(Prober, "_send", None)
        many = "".join(f"v{index + 1} = Sin (v{index}) " for index in range(15_000))
        text = f"""(bool c, float[2] v0) => (float[2] y) {{ y = If (c) <
            then_branch = t () => (float[2] v15000) {{ {many} }}, else_branch = e () => (float[2] z) {{ z = Neg (v0) }}
        > }}"""
        assert judged(target, last_node(text)).status is Status.HANGS

    @pytest.mark.parametrize("most", [9, 2**63 - 1])
    def test_a_loop_that_is_compiled_and_cannot_run(self, target: Target, most: int) -> None:
        """Where it may take too long to run, its witness does not."""
        text = """(int32 x) => (int32 y) { y = Loop (m, yes, x) <
            body = b (int64 i, bool c, int32 s) => (bool d, int32 t) { t = Add(s, one) d = Less(t, ten) }> }"""
        one, ten = (np.array(each, np.int32) for each in (1, 10))
        verdict = judged(target, last_node(text, m=np.array(most), yes=np.array(True), one=one, ten=ten))
        assert verdict.status is Status.REJECTED
        assert "int32_type" in verdict.message

    def test_numbers_that_a_model_does_not_have_are_not_tried(self, runtime: Runtime, target: Target) -> None:
        """MIGraphX before 2.16 makes an infinity in bfloat16 a number; there is none after a Softmax."""
        text = "(bfloat16[4,8] x) => (float[4,8] y) {{ {} y = Cast<to=1>(p) }}"
        expected = Status.WRONG if runtime.release < (2, 16) else Status.OK
        assert judged(target, last_node(text.format("p = Neg(x)"))).status is expected
        assert judged(target, last_node(text.format("p = Softmax(x)"))).status is Status.OK

    def test_rejected_with_migraphx_message(self, target: Target) -> None:
        verdict = judged(target, last_node("(float[3,3] x) => (y) { y = Det(x) }"))
        assert verdict == Verdict(Status.REJECTED, "Unknown operator: Det")

    def test_attention_is_parsed_as_com_microsoft_attention(self, target: Target) -> None:
        text = "(float[2,4,8] q) => (y) { y = Attention<q_num_heads=2,kv_num_heads=2>(q, q, q) }"
        verdict = judged(target, last_node(text, opset=23))
        assert verdict == Verdict(Status.REJECTED, "PARSE_ATTENTION: num_heads attribute required")

    def test_an_output_that_is_missing(self, target: Target) -> None:
        used = judged(target, last_node("(float[1,1,4,4] x) => (y, i) { y, i = MaxPool<kernel_shape=[2,2]>(x) }"))
        assert used == Verdict(Status.WRONG, "accepted, but with 1 of 2 outputs")
        unused = judged(target, last_node("(float[1,1,4,4] x) => (y) { y, i = MaxPool<kernel_shape=[2,2]>(x) }"))
        assert unused.status is Status.OK

    def test_operand_computed_from_shapes(self, target: Target) -> None:
        cone = last_node("(float[2,6] x) => (y, i) { s = Shape<start=1>(x) y, i = TopK(x, s) }")
        assert judged(target, cone).status is Status.OK
        without = judged(target, last_node("(float[2,6] x, int64[1] k) => (y, i) { y, i = TopK(x, k) }"))
        assert without.status is Status.REJECTED and "must be constant" in without.message

    def test_subgraphs_with_captures(self, target: Target) -> None:
        text = (
            "(bool c, float[2,3] x) => (y) {{ a = Neg(x) y = If<"
            "then_branch = g1 () => (float[2,3] t) {{ t = {}(a) }},"
            "else_branch = g2 () => (float[2,3] e) {{ e = Abs(x) }}>(c) }}"
        )
        assert judged(target, last_node(text.format("Relu"))) == Verdict(Status.OK, error=0.0, proof=Proof.RUN)
        assert judged(target, last_node(text.format("Mish"), opset=18)).message == "Unknown operator: Mish"

    def test_function_calls(self, target: Target) -> None:
        call = last_node(
            "(float[2] x) => (float[2] y) { y = local.f(x) }",
            functions='<domain: "local", opset_import: ["" : 17]> f (a) => (b) { b = Neg(a) }',
        )
        assert judged(target, call) == Verdict(Status.REJECTED, "Unknown operator: f")

    def test_function_with_the_name_of_an_operator(self, target: Target) -> None:
        call = last_node(
            "(float[2] x) => (float[2] y) { y = local.Relu(x) }",
            functions='<domain: "local", opset_import: ["" : 17]> Relu (a) => (b) { b = Neg(a) }',
        )
        assert judged(target, call).status is Status.WRONG

    def test_random_operators_are_known_to_be_drawn_once(self, target: Target) -> None:
        verdict = judged(target, last_node("(float[2,2] x) => (y) { y = RandomUniformLike(x) }"))
        assert verdict.status is Status.REJECTED and "draws new numbers in each run" in verdict.message

    def test_probe_with_a_problem_is_rejected(self, target: Target) -> None:
        verdict = judged(target, last_node("(string[2] x) => (y) { y = Identity(x) }"))
        assert verdict == Verdict(Status.REJECTED, "x holds strings")

    def test_an_operator_that_only_onnx_itself_can_evaluate(self, target: Target) -> None:
        probe = last_node("(int16[3,4] x) => (z) { z = Relu(x) }")
        with pytest.raises(InputError, match="Could not find an implementation for Relu"):
            Reference(probe.to_proto().SerializeToString())
        assert judged(target, probe) == Verdict(Status.OK, error=0.0, proof=Proof.RUN)


class TestWrongNumbers:
    def test_fixed_output_size_that_depends_on_data(self, target: Target, runtime: Runtime) -> None:
        assert judged(target, last_node("(float[2,3] x) => (y) { y = NonZero(x) }")).message == (
            "output 0: shape [2, 6] ≠ [2, 5]"
        )
        compiler = ProbedRuntime(runtime, cache=False, budget=0.0)
        compiled = judged(compiler, last_node("(float[2000,3000] x) => (y) { y = NonZero(x) }"))
        assert compiled.status is Status.WRONG and "depends on the data" in compiled.message

    def test_integers(self, target: Target) -> None:
        text = "(uint8[4,8] x) => (y) { y = MatMulInteger(x, w, zero) }"
        verdict = judged(target, last_node(text, w=np.ones((8, 2), np.uint8), zero=np.uint8(3)))
        assert verdict.status is Status.WRONG and verdict.error is not None and verdict.error > 1

    @pytest.mark.usefixtures("defective_runtime")
    @pytest.mark.parametrize("value", [0.0, 5.0])
    def test_a_pad_and_a_convolution_that_are_right_alone(self, target: Target, value: float) -> None:
        scope = scope_of(
            "(float[1,1,4,4] x) => (y) { p = Pad(x, pads, value) y = Conv(p, w) }",
            pads=PADS,
            value=np.float32(value),
            w=np.ones((1, 1, 3, 3), np.float32),
        )
        (cluster,) = fusion_clusters(scope)
        *alone, together = target.verdicts([*(Probe.of([node], scope) for node in cluster.nodes), cluster.probe])
        assert [verdict.status for verdict in alone] == [Status.OK, Status.OK]
        assert together.status is (Status.WRONG if value else Status.OK)

    @pytest.mark.usefixtures("defective_runtime")
    @pytest.mark.parametrize(
        "before",
        [
            "r = Transpose<perm=[0,3,1,2]>(x)",
            "t = Transpose<perm=[0,3,1,2]>(x) c = Conv(t, w) r = Relu(c)",
            "t = Transpose<perm=[0,3,1,2]>(x) c0 = Conv(t, w)"
            + "".join(f" c{index + 1} = Relu(c{index})" for index in range(40))
            + " r = Concat<axis=1>(c40, c20)",
            't = Einsum<equation="bhwc->bchw">(x) r = Softmax(t)',
            "t = Hardmax<axis=1>(x) r = Neg(t)",
            "t = GridSample(x, g) r = Neg(t)",
            "t = Expand(e, sizes) r = MaxPool<kernel_shape=[1,1]>(t)",
        ],
    )
    def test_a_layout_that_reaches_a_resize_right_alone(self, target: Target, before: str) -> None:
        scope = scope_of(
            f"(float[1,4,5,3] x, float[1,5,3,2] g, float[1,3,1,8] e) => (y) {{ {before} y = Resize(r, none, scales) }}",
            w=np.random.default_rng(0).normal(size=(2, 3, 1, 1)).astype(np.float32),
            sizes=np.array([1, 3, 6, 8]),
            none=np.zeros(0, np.float32),
            scales=np.array([1, 1, 2, 2], np.float32),
        )
        (cluster,) = fusion_clusters(scope)
        assert cluster.nodes[-1].op_type == "Resize"
        whole = Probe.of(list(scope.graph), scope)
        *alone, whole, found = target.verdicts([*(Probe.of([n], scope) for n in cluster.nodes), whole, cluster.probe])
        assert {verdict.status for verdict in alone} == {Status.OK}
        assert whole.status is found.status is Status.WRONG

    def test_negative_indices(self, target: Target) -> None:
        gather = judged(target, last_node("(float[4,3] x, int64[2] i) => (y) { y = Gather(x, i) }"))
        elements = judged(target, last_node("(float[4,3] x, int64[4,3] i) => (y) { y = GatherElements<axis=1>(x, i) }"))
        assert (gather.status, elements.status) == (Status.OK, Status.WRONG)

    def test_scales_of_quantized_operators_are_positive(self, target: Target) -> None:
        text = (
            "(uint8[1,1,5,5] x, float xs, uint8 xz, uint8[1,1,1,1] w, float ws, uint8 wz, float ys, uint8 yz) => (y)"
            " { y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz) }"
        )
        assert judged(target, last_node(text)).status is Status.OK


CONV = "(float[{},3,32,32] x) => (y) {{ y = Conv<pads=[1,1,1,1]>(x, w) }}"


class TestBudget:
    def conv(self, batch: int) -> Probe:
        weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
        return last_node(CONV.format(batch), w=weights)

    def test_large_nodes_share_a_witness(self, runtime: Runtime, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[Probe] = []
        self.record(asked, monkeypatch)
        verdicts = ProbedRuntime(runtime, budget=0.0).verdicts([self.conv(8), self.conv(10), self.conv(12)])
        expected = Unproven(Obstacle.SIZE)
        assert {(each.status, each.proof, each.unproven) for each in verdicts} == {(Status.OK, Proof.WITNESS, expected)}
        assert len(asked) == 1 and asked[0].bytes < self.conv(8).bytes

    @staticmethod
    def record(asked: list[Probe], monkeypatch: pytest.MonkeyPatch, *, all_of_them: bool = False) -> None:
        """Add the probes to ``asked`` that are sent, or only those that are run."""

        def recorded(probe: Probe, *, run: bool, **options: bool) -> ProbeRequest:
            asked.extend([probe] if run or all_of_them else [])
            return prepare(probe, run=run, **options)

        monkeypatch.setattr(prober, "prepare", recorded)

    def test_what_fits_runs_at_real_size(self, runtime: Runtime) -> None:
        cost = run_seconds(self.conv(8), runtime)
        found = ProbedRuntime(runtime, cache=False, budget=cost * 1.5).verdicts([self.conv(12), self.conv(8)])
        assert [each.proof for each in found] == [Proof.WITNESS, Proof.RUN]

    def test_a_witness_has_the_edge_cases(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        """At real size the ordinary sample is enough, unless the witness proves nothing."""
        asked: list[tuple[Probe, bool]] = []

        def recorded(probe: Probe, *, run: bool, edge_cases: bool = True, **options: bool) -> ProbeRequest:
            asked.append((probe, edge_cases))
            return prepare(probe, run=run, edge_cases=edge_cases, **options)

        monkeypatch.setattr(prober, "prepare", recorded)
        large, proven = self.conv(8), witness(self.conv(8))
        unproven = last_node("(float[2] x) => (float[2] y) { y = local.Relu(x) }")
        attributes = "strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]"
        wrong = last_node(
            f"(float[1,3,4,4] x) => (y) {{ y = ConvTranspose<{attributes}>(x, w) }}",
            w=np.ones((3, 2, 3, 3), np.float32),
        )
        for small, expected in (
            (proven, [(proven, True), (large, False)]),
            (unproven, [(unproven, True), (large, False), (large, True)]),
            (wrong, [(wrong, True), (large, False), (large, True)]),
        ):
            monkeypatch.setattr(probed_runtime, "witness", lambda _, small=small: small)
            asked.clear()
            verdict = judged(ProbedRuntime(runtime, cache=False, budget=9.0), large)
            assert (verdict.status, verdict.proof) == (Status.OK, Proof.RUN)
            assert asked == expected

    def test_without_a_witness_comes_first(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        larger = self.conv(12)
        monkeypatch.setattr(
            probed_runtime, "witness", lambda probe: Skip("none") if probe is larger else witness(probe)
        )
        cost = run_seconds(larger, runtime)
        found = ProbedRuntime(runtime, cache=False, budget=cost).verdicts([self.conv(8), larger])
        assert [each.proof for each in found] == [Proof.WITNESS, Proof.RUN]

    def test_verdicts_in_the_cache(self, runtime: Runtime, folder: Path) -> None:
        """That of a witness holds until there is a larger budget; that of a run holds always."""
        proofs = [judged(ProbedRuntime(runtime, budget=each), self.conv(8)).proof for each in (0.0, 9.0, 0.0)]
        assert proofs == [Proof.WITNESS, Proof.RUN, Proof.RUN]

    def test_a_long_recurrence_is_not_compiled(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        """MIGraphX unrolls it: 500 steps take about a minute, which is no hang."""
        asked: list[Probe] = []
        self.record(asked, monkeypatch, all_of_them=True)
        draw = np.random.default_rng(0)
        weights = {"w": draw.standard_normal((1, 12, 3)), "r": draw.standard_normal((1, 12, 4))}
        text = "(float[500,1,3] x) => (float[500,1,1,4] y) { y = GRU<hidden_size=4>(x, w, r) }"
        probe = last_node(text, **{name: array.astype(np.float32) for name, array in weights.items()})
        verdict = judged(ProbedRuntime(runtime, cache=False), probe)
        assert (verdict.status, verdict.proof, verdict.unproven) == (Status.OK, Proof.WITNESS, Unproven(Obstacle.SIZE))
        assert probe not in asked and len(asked) == 1

    def test_wrong_numbers_hold_for_the_constants_that_they_were_found_with(
        self, runtime: Runtime, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A recurrence with large weights is chaotic, so that no two runtimes agree; with small ones it is not."""

        def probe(scale: float) -> Probe:
            draw = np.random.default_rng(0)
            shapes = {"w": (1, 32, 32), "r": (1, 32, 32)}
            weights = {name: (draw.standard_normal(shape) * scale).astype("f") for name, shape in shapes.items()}
            return last_node("(float[40,1,32] x) => (y) { y = RNN<hidden_size=32>(x, w, r) }", **weights)

        assert probe(1.0).signature == probe(0.01).signature
        for _ in range(2):
            statuses = [judged(ProbedRuntime(runtime), probe(scale)).status for scale in (1.0, 0.01)]
            assert statuses == [Status.WRONG, Status.OK]
            monkeypatch.setattr(ProbedRuntime, "_ask", lambda *_: {})  # the second time all is in the cache

    def test_too_much_memory_is_never_run(self, runtime: Runtime) -> None:
        huge = last_node("(float[300,1000,1000] x) => (y) { y = Abs(x) }")
        verdict = judged(ProbedRuntime(runtime, cache=False, budget=1e9), huge)
        assert (verdict.status, verdict.proof) == (Status.OK, Proof.WITNESS)


class TestUnproven:
    def test_an_order_that_is_undefined(self, target: Target) -> None:
        text = "(float[3,7] x) => (y, i) {{ y, i = TopK<sorted={}>(x, k) }}"
        for is_sorted in (0, 1):
            verdict = judged(target, last_node(text.format(is_sorted), k=np.array([3])))
            assert (verdict.status, verdict.proof) == (Status.OK, Proof.RUN)

    def test_no_reference(self, target: Target) -> None:
        """Neither ONNX Runtime nor ONNX knows the operator; MIGraphX, which ignores domains, takes it for its own."""
        probe = last_node("(float[2] x) => (float[2] y) { y = local.Relu(x) }")
        verdict = judged(target, probe)
        assert (verdict.status, verdict.proof) == (Status.OK, Proof.NONE)
        assert verdict.unproven == Unproven(Obstacle.REFERENCE)


class TestAttribution:
    def test_a_crash_costs_one_verdict(self, target: Target) -> None:
        neighbours = [last_node(f"(float[2,{n}] x) => (y) {{ y = Tanh(x) }}") for n in range(1, 21)]
        crasher = last_node("(float[4,3] x, int64[2,1] i, float[2,3] u) => (y) { y = ScatterND(x, i, u) }")
        verdicts = target.verdicts([*neighbours[:10], crasher, *neighbours[10:]])
        assert verdicts[10].status is Status.CRASHES
        assert verdicts[10].message.startswith("SIGABRT: ")
        assert {verdict.status for verdict in (*verdicts[:10], *verdicts[11:])} == {Status.OK}

    @pytest.mark.usefixtures("defective_runtime")
    def test_corrupted_heap_is_attributed_to_its_probe(self, target: Target) -> None:
        """What is written beyond a tensor may hit what the heap checks, or only the numbers of others."""
        others = [last_node(f"(float[3,{n}] x) => (y) {{ y = Tanh(x) }}") for n in range(1, 9)]
        pad = last_node("(float[1,3,8,8] x) => (y) { y = Pad(x, pads) }", pads=-PADS)
        verdicts = target.verdicts([*others[:4], pad, *others[4:]])
        assert verdicts[4].status in (Status.CRASHES, Status.WRONG)
        assert {verdict.status for verdict in (*verdicts[:4], *verdicts[5:])} == {Status.OK}

    def test_the_heap_checks_itself(self, target: Target, runtime: Runtime) -> None:
        judged(target, last_node("(float[2,1] x) => (y) { y = Erf(x) }"))
        maps = [Path(f"/proc/{worker.pid}/maps").read_text() for worker in workers._shared.values() if worker.pid]
        assert any("libc_malloc_debug" in text for text in maps)

    def test_a_long_replacement_has_time_to_compile(self, runtime: Runtime) -> None:
        """Such as an unrolled LSTM of int8 models: MIGraphX takes seconds, and on a busy machine many times as long."""
        text = " ".join(f"x{each + 1} = Add(x{each}, x0)" for each in range(1500))
        assert longest_seconds(cluster(f"(float[2] x0) => (x1500) {{ {text} }}"), runtime, run=False) > 1

    def test_hangs(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = last_node("(float[2000000] x) => (y) { y = Erf(x) }")
        monkeypatch.setattr(prober, "_SLOWER", 0)
        hasty = ProbedRuntime(runtime, cache=False, timeout=1e-3)
        assert judged(hasty, slow) == Verdict(Status.HANGS, "no answer within 0.001 s")
        assert judged(ProbedRuntime(runtime, cache=False), slow).status is Status.OK

    def test_what_takes_too_long_to_compile(self, runtime: Runtime) -> None:
        """MIGraphX would unroll 1,200 steps to 38,000 instructions; a limit of ten minutes allows that."""
        weights = {"w": np.ones((1, 12, 3), np.float32), "r": np.ones((1, 12, 4), np.float32)}
        text = "(float[1200,1,3] x) => (float[1200,1,1,4] y) { y = GRU<hidden_size=4>(x, w, r) }"
        verdict = judged(ProbedRuntime(runtime, cache=False), last_node(text, **weights))
        assert verdict.status is Status.HANGS and "instructions" in verdict.message
        assert judged(ProbedRuntime(runtime, cache=False, timeout=600), last_node(text, **weights)).status is Status.OK


class TestConstants:
    def test_rejection_is_confirmed_with_constants(self, target: Target) -> None:
        names = ", ".join(f"y{number}" for number in range(200))
        text = f"(float[2,600] x, int64[200] i) => ({names}) {{ {names} = Split<axis=1>(x, i) }}"
        rejected = judged(target, last_node(text))
        assert rejected.status is Status.REJECTED and "constant" in rejected.message
        probe = last_node(text.replace(", int64[200] i", ""), i=np.full(200, 3))
        assert not probe.has_all_data and judged(target, probe).status is Status.OK


class TestCache:
    PROBES = "(float[2,3] x, float[3,3] m) => (y) { a = Erf(x) b = Det(m) y = Mul(a, b) }"

    def test_cached_verdicts_need_no_worker(
        self, runtime: Runtime, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        probes = probes_of(self.PROBES)
        first = ProbedRuntime(runtime).verdicts(probes)
        assert [verdict.status for verdict in first] == [Status.OK, Status.REJECTED, Status.OK]

        def refuse(*_: Any, **__: Any) -> None:
            raise AssertionError("a worker was asked")

        monkeypatch.setattr(workers, "shared", refuse)
        assert ProbedRuntime(runtime).verdicts(probes) == first
        with pytest.raises(AssertionError, match="a worker was asked"):
            ProbedRuntime(runtime, cache=False).verdicts(probes)

    def test_environment_is_part_of_the_key(
        self, runtime: Runtime, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        probe = last_node("(float[2,3] x) => (y) { y = Sin(x) }")
        judged(ProbedRuntime(runtime), probe)
        monkeypatch.setenv("MIGRAPHX_DISABLE_MULTI_OUTPUT_FUSION", "1")
        judged(ProbedRuntime(runtime), probe)
        assert len(list(folder.glob("*.jsonl"))) == 2

    def test_damaged_lines_are_skipped(self, runtime: Runtime, folder: Path) -> None:
        probe = last_node("(float[2,3] x) => (y) { y = Sin(x) }")
        before = judged(ProbedRuntime(runtime), probe)
        (file,) = folder.glob("*.jsonl")
        file.write_bytes(b'\x00\xff garbage\n["a"]\n{}\n[1,2,3,4,5]\n' + file.read_bytes()[:20])
        shared.cache_clear()  # as in another process
        assert judged(ProbedRuntime(runtime), probe) == before
        assert judged(ProbedRuntime(runtime), probe) == before
        cache = VerdictCache(file)
        cache.refresh()
        known = cache.get(probe.signature, 0.0)
        assert known is not None and known.verdict == before


class TestManyNodes:
    def test_equal_nodes_of_a_transformer_are_judged_once(
        self, runtime: Runtime, folder: Path, exported: Callable[..., Path]
    ) -> None:
        model = ir.load(exported("bert", "torchscript"))
        inference.infer(model)
        scope = Scope(model, model.graph)
        nodes = [node for node in scope.nodes() if constant_of(node) is None]

        def many() -> list[Probe]:
            return [Probe.of([node], scope) for _ in range(1000 // len(nodes) + 1) for node in nodes]

        reported: list[str] = []
        cold = ProbedRuntime(runtime, progress=reported.append).verdicts(many())
        assert len(cold) >= 1000
        assert reported
        assert len({probe.signature for probe in many()}) < len(nodes) * 2 / 3
        assert ProbedRuntime(runtime).verdicts(many()) == cold


CANCELLED = """(float[2, 256] x, bool c) => (y) {{ y = If (c) <
    then_branch = network () => (float[2, 8] t) {{
        s = MatMul(x, w) n = Neg(x) r = MatMul(n, v) d = Add(s, r) {last} }},
    else_branch = other () => (float[2, 8] e) {{ e = MatMul(x, w) }}> }}"""
"""A result that is nothing but what two products round differently, 100,000 times as large."""


@pytest.mark.parametrize(
    ("last", "status", "proof"),
    [
        ("t = Mul(d, big)", Status.OK, Proof.NONE),
        ("m = Mul(d, big) f = Floor(m) t = Identity(f)", Status.WRONG, Proof.RUN),  # it may be a fault of Floor
    ],
)
def test_a_network_that_rounds_as_far_by_itself(target: Target, last: str, status: Status, proof: Proof) -> None:
    weight = np.random.default_rng(0).standard_normal((256, 8)).astype(np.float32) * 100
    given = {"w": weight, "v": weight * (1 + np.float32(2**-22)), "big": np.float32(1e5)}
    verdict = judged(target, last_node(CANCELLED.format(last=last), **given))
    assert (verdict.status, verdict.proof) == (status, proof), verdict
    if status is Status.OK:
        assert verdict.unproven is not None and verdict.unproven.obstacle is Obstacle.CONDITION
