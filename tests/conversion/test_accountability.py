"""What passes did and why: verification, traces, limits, the catalogue, explanations, differences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

import onnx_bridge
import passes
from onnx_bridge.conversion.diagnosis.explain import catalogue, explain
from onnx_bridge.core.errors import BridgeError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.views.terminal.conversion import trace
from onnx_bridge.views.terminal.view import render
from passes.rewriting.base import Context, Exactness, Pass, Result, Rewrite

TEXT = """<ir_version: 10, opset_import: ["": 20]> g (float[batch,4] x) => (float[batch,4] y)
    <float[4] w = {1, 2, 3, 4}> {
    [twice] w2 = Add(w, w)  [same] same = Identity(x)  [scaled] scaled = Mul(same, w2)
    [noop] t = Transpose<perm=[0,1]>(scaled)  [out] y = Relu(t) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(TEXT), path)
    return path


@pytest.fixture
def faulty() -> Iterator[str]:
    """A pass that says it changes nothing and halves a weight."""

    @dataclass(frozen=True)
    class HalveWeights(Pass):
        name: ClassVar[str] = "halve-weights"
        exactness: ClassVar[Exactness] = Exactness.BITWISE

        def run(self, model: ir.Model, context: Context) -> Result:
            result = Result(model)
            for value in model.graph.initializers.values():
                if value.const_value is not None and context.budget.take():
                    value.const_value = ir.Tensor(value.const_value.numpy() / 2, name=value.name)
                    result.rewrites.append(Rewrite((), (), f"halved {value.name}"))
            return result

    passes.register(HalveWeights)
    yield HalveWeights.name
    del passes._registered[HalveWeights.name]


class TestVerify:
    def test_good_passes(self, model: Path) -> None:
        cleaned = onnx_bridge.clean(model, dims={"batch": 3}, verify="each")
        assert cleaned.passed
        assert len(cleaned.checked) == len(cleaned.steps)
        for step, found in zip(cleaned.steps, cleaned.checked, strict=True):
            assert (found is not None) == step.result.modified
            assert found is None or [each.name for each in found.outputs] == ["y"]

    def test_whole_shapes(self, model: Path) -> None:
        cleaned = onnx_bridge.clean(model, shapes={"x": [2, 4]}, verify="each")
        assert cleaned.passed
        first = cleaned.checked[0]
        assert first is not None
        assert first.outputs[0].shape == (2, 4)

    def test_the_pass_at_fault_is_named(self, model: Path, faulty: str) -> None:
        cleaned = onnx_bridge.clean(model, pipeline=f"fold-constants,{faulty},remove-identity", verify="each")
        assert not cleaned.passed
        verdicts = {step.name: found for step, found in zip(cleaned.steps, cleaned.checked, strict=True)}
        wrong = [name for name, found in verdicts.items() if found is not None and not found.passed]
        assert wrong == [faulty]  # the passes after it answer for themselves alone
        values = cleaned.to_json()
        assert [
            each["name"] for each in values["passes"] if not each.get("verified", {"passed": True})["passed"]
        ] == wrong
        json.dumps(values, allow_nan=False)

    def test_max_rewrites_finds_the_one_at_fault(self, model: Path, faulty: str) -> None:
        pipeline = f"fold-constants,remove-identity,{faulty}"
        total = sum(len(step.result.rewrites) for step in onnx_bridge.clean(model, pipeline=pipeline).steps)
        passed = [
            onnx_bridge.clean(model, pipeline=pipeline, verify="each", max_rewrites=count).passed
            for count in range(total + 1)
        ]
        assert passed == [True] * total + [False]
        last = onnx_bridge.clean(model, pipeline=pipeline, max_rewrites=total).steps[-1]
        assert last.name == faulty

    def test_no_rewrites_at_all(self, model: Path) -> None:
        cleaned = onnx_bridge.clean(model, max_rewrites=0)
        assert not any(step.result.rewrites for step in cleaned.steps)
        assert len(cleaned.model.graph) == 5


class TestTrace:
    def test_every_rewrite_in_order(self, model: Path) -> None:
        cleaned = onnx_bridge.clean(model, dims={"batch": 3})
        lines = trace(cleaned).renderables
        assert lines[0] == "freeze-shapes: x: [batch,4] → [3,4]"
        assert any(line.startswith("fold-constants: twice →") for line in lines)
        assert any(line.startswith("remove-identity: noop →") for line in lines)
        order = [step.name for step in cleaned.steps for _ in step.result.rewrites]
        assert [line.partition(":")[0] for line in lines if " skips " not in line] == order


class TestCatalogue:
    def test_all_passes_and_pipelines(self) -> None:
        found = catalogue()
        assert [each.name for each in found.passes] == passes.names()
        assert all(each.does.endswith(".") for each in found.passes)
        assert {"default", "minimal", "none"} <= set(found.pipelines)
        assert next(each for each in found.passes if each.name == "fold-qdq").options["policy"] == "keep-int8"


class TestExplain:
    def test_what_would_be_rewritten(self, model: Path) -> None:
        found = explain("remove-identity", model)
        assert {name for each in found.rewrites for name in each.before} == {"same", "noop"}
        assert [each.before for each in explain("remove-identity", model, node="noop").rewrites] == [("noop",)]

    def test_skips(self, tmp_path: Path) -> None:
        text = """<ir_version: 10, opset_import: ["": 20]> g () => (float[2] y) {
            shape = Constant<value_ints=[2]>()  [dice] r = RandomUniform<shape=[2]>()  y = Add(r, r) }"""
        onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
        found = explain("fold-constants", tmp_path / "m.onnx", node="dice")
        assert not found.rewrites
        assert any("random" in each.reason for each in found.skips)
        assert "skips dice" in " ".join(render(found).renderables)

    def test_no_match(self, model: Path) -> None:
        found = explain("remove-identity", model, node="out")
        assert (found.rewrites, found.skips) == ([], [])
        assert "out" in " ".join(render(found).renderables)

    def test_the_model_is_not_modified(self, model: Path) -> None:
        loaded = onnx_bridge.model.io.load(model)
        explain("remove-identity", loaded)
        assert len(loaded.graph) == 5

    @pytest.mark.parametrize(
        ("name", "node", "word"), [("remove-identiti", None, "remove-identity"), ("remove-identity", "noob", "noop")]
    )
    def test_unknown_names(self, model: Path, name: str, node: str | None, word: str) -> None:
        with pytest.raises(BridgeError, match=word):
            explain(name, model, node=node)


class TestDiff:
    def test_by_name_and_provenance(self, model: Path, tmp_path: Path) -> None:
        onnx_bridge.clean(model, tmp_path / "clean.onnx")
        found = onnx_bridge.diff(model, tmp_path / "clean.onnx")
        assert {each.name for each in found.removed} | {each.name for each in found.replaced} == {
            "twice",
            "same",
            "noop",
        }
        assert not found.added
        assert {each.name for each in found.changed} == {"scaled", "out"}
        assert any("inputs same, w2 → x, w2" in each.changes for each in found.changed)

    def test_what_a_pass_made(self, tmp_path: Path, exported: object) -> None:
        before, after = tmp_path / "a.onnx", tmp_path / "b.onnx"
        onnx.save(parser.parse_model(TEXT), before)
        changed = parser.parse_model(TEXT.replace("[noop] t = Transpose<perm=[0,1]>(scaled)", "[new] t = Neg(scaled)"))
        node = next(each for each in changed.graph.node if each.name == "new")
        node.metadata_props.add(key="onnx_bridge.pass", value="some-pass")
        node.metadata_props.add(key="onnx_bridge.origin", value='["noop"]')
        onnx.save(changed, after)
        found = onnx_bridge.diff(before, after)
        assert [(each.name, each.made_by, each.origin) for each in found.added] == [("new", "some-pass", ("noop",))]
        assert [each.name for each in found.replaced] == ["noop"]
        assert not found.removed

    def test_a_model_against_itself(self, model: Path) -> None:
        found = onnx_bridge.diff(model, model)
        assert found.unchanged == 5
        assert not (found.added or found.removed or found.replaced or found.changed)

    @pytest.mark.runtime
    def test_a_bundle_is_its_cleaned_model(self, runtime: Runtime, model: Path, tmp_path: Path) -> None:
        bundle = onnx_bridge.convert(model, tmp_path / "m", target="ref")
        assert onnx_bridge.diff(model, tmp_path / "m") == onnx_bridge.diff(model, bundle.model_path)
        alone = onnx_bridge.convert(model, tmp_path / "m.mxr", target="ref")
        with pytest.raises(BridgeError, match="no cleaned model"):
            onnx_bridge.diff(model, alone.path)
        sizes = onnx_bridge.convert(model, tmp_path / "sizes", buckets={"batch": [1, 2]}, target="ref")
        assert onnx_bridge.diff(sizes.path, sizes.model_path).unchanged

    def test_attributes(self, model: Path, tmp_path: Path) -> None:
        onnx.save(parser.parse_model(TEXT.replace("perm=[0,1]", "perm=[1,0]")), tmp_path / "b.onnx")
        (found,) = onnx_bridge.diff(model, tmp_path / "b.onnx").changed
        assert found.name == "noop"
        assert "perm" in found.changes[0]


def test_numbers_do_not_move_with_the_default_pipeline(model: Path, tmp_path: Path) -> None:
    from onnx_bridge.reference.reference import Reference

    onnx_bridge.clean(model, tmp_path / "clean.onnx")
    x = {"x": np.random.default_rng(0).standard_normal((3, 4), np.float32)}
    np.testing.assert_array_equal(Reference(model).run(x)["y"], Reference(tmp_path / "clean.onnx").run(x)["y"])
