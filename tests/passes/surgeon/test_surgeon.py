"""graphsurgeon scripts as passes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import passes
from passes.core.errors import InputError
from passes.graphs import lineage
from passes.rewriting.base import Context, Exactness
from passes.rewriting.pipeline import Pipeline
from passes.surgeon.surgeon import Surgeon, surgeon_pass
from tests.passes import harness
from tests.passes.surgeon.scripts import (
    SMALL,
    Script,
    W,
    build,
    negate,
    nothing,
    outputs,
    replace_relu,
    run,
    text,
    touch,
)


@pytest.mark.parametrize(
    "script", [nothing, touch, lambda graph: graph.copy(), lambda graph: graph.cleanup().toposort()]
)
def test_a_script_that_changes_nothing_leaves_the_model_identical(script: Script) -> None:
    model = build(SMALL, w=W)
    before, graph = text(model), model.graph
    assert not run(script, model).modified
    assert model.graph is graph
    assert text(model) == before


def test_results_names_and_origins_after_a_change() -> None:
    model = build(SMALL, w=W)
    before = outputs(model)
    relu, names = model.graph[1], [node.name for node in model.graph]
    weight = model.graph.initializers["w"].const_value
    result = run(replace_relu, model)
    np.testing.assert_array_equal(outputs(model)[0], before[0])
    assert [node.op_type for node in model.graph] == ["Mul", "Max", "Add"]
    assert model.graph.initializers["w"].const_value is weight
    assert [value.name for node in model.graph for value in node.outputs] == ["a", "b", "y"]
    new = model.graph[1]
    assert new.metadata_props[lineage.PASS] == "surgeon"
    assert lineage.origin(new) == [relu.name]
    assert [model.graph[0].name, model.graph[2].name] == [names[0], names[2]]
    assert not model.graph[0].metadata_props
    [rewrite] = result.rewrites
    assert (rewrite.before, rewrite.after, rewrite.note) == ((relu.name,), (new.name,), "script")
    assert not run(replace_relu, model).modified


def test_budget() -> None:
    model = build(SMALL, w=W)
    before = text(model)
    assert not run(replace_relu, model, budget=0).modified
    assert text(model) == before


SCRIPT = '''
"""A script with a helper module in its folder."""
import onnx_graphsurgeon as gs
import surgeon_test_helper

def neg(graph: gs.Graph) -> None:
    for node in graph.nodes:
        if node.op == "Relu":
            node.op = surgeon_test_helper.OP

def fail(graph):
    return graph.no_such_thing
'''


def test_a_script_in_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(SCRIPT)
    (tmp_path / "surgeon_test_helper.py").write_text('OP = "Neg"')
    model = build(SMALL, w=W)
    step = Surgeon(f"{tmp_path}/my.py:neg")
    path = list(sys.path)
    assert step.run(model, Context()).rewrites[0].note == f"{tmp_path}/my.py:neg"
    assert sys.path == path
    assert harness.operators(model) == ["Mul", "Neg", "Add"]
    assert step.exactness is Exactness.QUANTIZATION_STEP


def test_a_script_that_registers_passes_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_registered", {})
    (tmp_path / "registers.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from passes.surgeon.surgeon import surgeon_pass\n"
        "@dataclass\nclass Options:\n    name: str = 'renamed'\n"
        "@surgeon_pass\ndef rename_graph(graph):\n    graph.name = Options().name\n"
    )
    for _ in range(2):
        model = build(SMALL, w=W)
        assert Surgeon(f"{tmp_path}/registers.py:rename_graph").run(model, Context()).modified
        assert model.graph.name == "renamed"
    assert not Pipeline.parse("rename-graph").run(model)[0].result.modified


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("", "the option script must name a file and a function in it (as in surgeon{script=my.py:function})"),
        ("{}/my.py", "the option script must name a file and a function in it"),
        ("{}/none.py:neg", "none.py: the file does not exist"),
        ("{}/my.py:negg", "the file has no function negg (did you mean neg?)"),
        ("{}/my.py:fail", "my.py:fail, line 12: AttributeError"),
        ("{}/broken.py:f", "broken.py: the script cannot be loaded: ZeroDivisionError: division by zero"),
    ],
)
def test_invalid_scripts(script: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(SCRIPT)
    (tmp_path / "surgeon_test_helper.py").write_text('OP = "Neg"')
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(InputError) as caught:
        Surgeon(script.format(tmp_path)).run(build(SMALL, w=W), Context())
    assert message in str(caught.value)


def test_without_graphsurgeon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("def f(graph): pass")
    (tmp_path / "imports.py").write_text("import onnx_graphsurgeon\ndef f(graph): pass")
    monkeypatch.setitem(sys.modules, "onnx_graphsurgeon", None)
    for name in ("passes.surgeon.operation", "passes.surgeon.surgeon"):
        monkeypatch.delattr(name)
        monkeypatch.delitem(sys.modules, name)
    fresh = importlib.import_module("passes.surgeon.surgeon")
    for name in ("plain", "imports"):
        with pytest.raises(InputError, match=r"graphsurgeon is not installed \(pip install 'onnx-bridge\[surgeon\]'\)"):
            fresh.Surgeon(f"{tmp_path}/{name}.py:f").run(build(SMALL, w=W), Context())


def test_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_registered", {})

    @surgeon_pass
    def relu_to_max(graph: gs.Graph) -> None:
        """Write Relu as Max."""
        replace_relu(graph)

    @surgeon_pass(name="negate-all", exactness=Exactness.ROUNDING)
    def other(graph: gs.Graph) -> None:
        negate(graph)

    assert passes.describe("relu-to-max") == "Write Relu as Max."
    assert "onnx" not in passes.describe("negate-all")
    model = build(SMALL, w=W)
    pipeline = Pipeline.parse("relu-to-max,negate-all,remove-dead")
    assert str(pipeline) == "relu-to-max,negate-all,remove-dead"
    steps = pipeline.run(model)
    assert [step.exactness for step in steps[:2]] == [Exactness.QUANTIZATION_STEP, Exactness.ROUNDING]
    assert harness.operators(model) == ["Mul", "Max", "Add", "Neg"]
    assert [node.metadata_props.get(lineage.PASS) for node in model.graph] == [None, "relu-to-max", None, "negate-all"]
    with pytest.raises(InputError, match="there is already a pass or a pipeline relu-to-max"):
        surgeon_pass(lambda graph: None, name="relu-to-max")  # type: ignore[call-overload]
    relu_to_max(gs.Graph())


# Any change gives the same result as in graphsurgeon


@st.composite
def surgeries(draw: st.DrawFn) -> tuple[str, list[tuple[str, int]]]:
    count = draw(st.integers(2, 6))
    lines, known = [], ["x", "w"]
    for index in range(count):
        one, other = (draw(st.sampled_from(known)) for _ in range(2))
        lines.append(f"v{index} = {draw(st.sampled_from(['Add', 'Sub', 'Max']))}({one}, {other})")
        known.append(f"v{index}")
    steps = st.tuples(st.sampled_from(["bypass", "double", "swap", "constant", "rename"]), st.integers(0, count - 1))
    return f"(float[2, 3] x) => (float[2, 3] v{count - 1}) {{ {' '.join(lines)} }}", draw(st.lists(steps, max_size=4))


def perform(graph: gs.Graph, steps: list[tuple[str, int]]) -> None:
    for number, (what, index) in enumerate(steps):
        node = graph.nodes[index % len(graph.nodes)]
        match what:
            case "bypass" if node.outputs[0] not in graph.outputs:
                for consumer in list(node.outputs[0].outputs):
                    for place, tensor in enumerate(consumer.inputs):
                        if tensor is node.outputs[0]:
                            consumer.inputs[place] = node.inputs[0]
            case "double":
                made = gs.Variable(f"d{number}", np.float32, [2, 3])
                graph.nodes.append(gs.Node("Add", f"d{number}", inputs=[node.inputs[0]] * 2, outputs=[made]))
                node.inputs[0] = made
            case "swap":
                node.inputs = [node.inputs[1], node.inputs[0]]
            case "constant":
                node.inputs[1] = gs.Constant(f"k{number}", np.full((2, 3), number, np.float32))
            case "rename":
                node.name = f"n{number}"
    graph.cleanup().toposort()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(surgeries())
def test_any_change_is_the_same_as_in_graphsurgeon(surgery: tuple[str, list[tuple[str, int]]]) -> None:
    source, steps = surgery
    model = build(source, w=W)
    own = gs.import_onnx(ir.to_proto(model))
    perform(own, steps)
    expected = harness.run(gs.export_onnx(own), harness.feeds(ir.to_proto(model)))
    run(lambda graph: perform(graph, steps), model)
    found = harness.run(ir.to_proto(model), harness.feeds(ir.to_proto(model)))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
