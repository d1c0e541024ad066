"""What is on a page: of checks that have less to tell, of a diagnosis, and of a real model on the real MIGraphX."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from onnx_bridge.bundle.device import Device
from onnx_bridge.conversion.cleaning import clean
from onnx_bridge.conversion.convert import convert
from onnx_bridge.conversion.diagnosis.diagnosis import PlannedAction
from onnx_bridge.conversion.diagnosis.doctor import doctor
from onnx_bridge.core.errors import InputError, MigraphxError
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.parity.bisect.bisection import Bisection, Component, Culprit, Fault
from onnx_bridge.parity.checking.evidence import Evidence, Network
from onnx_bridge.parity.checking.report import CheckReport, Leg
from onnx_bridge.parity.failure import Failure
from onnx_bridge.parity.layers.compare import compare_layers
from onnx_bridge.parity.layers.subject import LayerSubject
from onnx_bridge.parity.symptoms.symptom import SymptomKind
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.reference import Reference
from onnx_bridge.views.html.check import page_of
from onnx_bridge.views.html.diagnosis import page_of as diagnosis_page
from onnx_bridge.views.html.html import Column, Page, Row, Table, _breakable, unfolding
from tests.views.html.browser import browser
from tests.views.html.scenes import model, scene


def table(page: Page, name: str) -> Table:
    return next(each for each in page.tables if each.id == name)


def column(found: Table, label: str) -> list[str]:
    place = [each.label for each in found.columns].index(label)
    return [row.cells[place].text for row in found.rows]


def test_a_report_alone(tmp_path: Path) -> None:
    y = np.array([1, math.nan, math.inf], np.float32)
    good = compare({"y": y}, {"y": y})
    failed = MigraphxError("ended by SIGABRT <here>")
    report = CheckReport("m", (Leg("cleaned", (good,)), Leg("MIGraphX", failure=Failure("run", failed))))
    page = page_of(report)
    assert not page.passed
    assert page.headline == "MIGraphX fails"
    assert page.sections == [("outputs", "Outputs")]
    assert column(table(page, "outputs"), "verdict") == ["failed", "agrees, 2 NaN or Inf"]
    assert column(table(page, "outputs"), "SQNR dB") == ["", "inf"]
    text = page.html()
    assert "ended by SIGABRT &lt;here&gt;" in text
    assert 'id="plots"' not in text


def test_nothing_compared() -> None:
    page = page_of(CheckReport("m", ()))
    assert (page.passed, page.headline) == (False, "Parity fails")
    assert "nothing was compared" in page.html()


def test_what_agrees_needs_no_graph() -> None:
    found = scene(fault=0)
    page = page_of(found.report, evidence=found.evidence)
    assert page.passed
    assert page.headline == "Parity holds"
    assert page.graphs is None
    assert set(column(table(page, "layers"), "verdict")) == {"agrees"}


def test_layers_that_differ_beneath_outputs_that_agree() -> None:
    good, bad = scene(fault=0), scene()
    page = page_of(replace(good.report, layers=bad.report.layers))
    assert page.passed
    assert page.headline == "Parity holds at the outputs, but not in every layer"


def test_without_layers_the_graph_is_around_the_output() -> None:
    found = scene()
    page = page_of(replace(found.report, layers=None), evidence=found.evidence)
    assert page.graphs is not None
    assert page.graphs.title == "Around Mul layer.6/Mul"
    assert next(title for title, _ in page.tensors.values()) == "y · MIGraphX ref · sample 0"


def test_a_bisection_says_where_to_look() -> None:
    found = scene()
    culprit = Culprit("layer.2/Add", "Add")
    fault = Fault(Component.MIGRAPHX, SymptomKind.WRONG, "it is off by one", "run", nodes=(culprit,))
    alone = replace(found.report, layers=None)
    page = page_of(alone, evidence=found.evidence, bisection=Bisection("m", fault))
    assert page.graphs is not None
    assert page.graphs.title == "Around Add layer.2/Add"
    assert page.graphs.after is not None
    assert [box.name for box in page.graphs.after.boxes if box.status == "bad"] == ["layer.2/Add"]
    assert any("MIGraphX computes Add layer.2/Add wrongly" in each for each in page.sentences)


def test_a_pass_that_took_nodes_away_is_shown_where_they_were() -> None:
    found = scene()
    fault = Fault(
        Component.PASSES,
        SymptomKind.WRONG,
        "it differs",
        pass_name="remove-identity",
        before=("layer.0/Identity",),
        after=(),
    )
    page = page_of(found.report, evidence=found.evidence, bisection=Bisection("m", fault))
    assert page.graphs is not None
    assert page.graphs.title == "Around Identity layer.0/Identity"
    assert page.graphs.before is not None
    assert page.graphs.after is None


def test_cleaning_is_blamed_where_it_began(worker: Worker) -> None:
    """A weight that was changed on the way: the first value that moved, and none of those after it."""
    original = model()
    cleaned = clean(original).model
    weights = next(each for name, each in cleaned.graph.initializers.items() if "bias" in name)
    assert weights.const_value is not None
    weights.const_value = ir.tensor(weights.const_value.numpy() + np.float32(1))
    sample = {"x": np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)}
    layers = compare_layers(LayerSubject(cleaned, sample, original), Device(worker))
    comparison = compare(Reference(cleaned).run(sample), Reference(original).run(sample))
    report = CheckReport("m", (Leg("cleaned on ONNX Runtime", (comparison,)),), layers=layers)
    evidence = Evidence(before=Network.of(original), after=Network.of(cleaned))
    page = page_of(report, evidence=evidence)
    found = table(page, "layers")
    verdicts = dict(zip(column(found, "operator"), column(found, "verdict"), strict=True))
    assert verdicts["Add"] == "changed by cleaning"
    assert verdicts["Relu"] == verdicts["Mul"] == "propagates"
    assert verdicts["MatMul"] == "agrees"
    assert page.graphs is not None
    assert page.graphs.title == "Around Add layer.2/Add"


def test_a_real_model_on_migraphx(worker: Worker, tmp_path: Path) -> None:
    """Everything real: the page of what `check` sees, in a browser."""
    original = model()
    sample = {"x": np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)}
    bundle = convert(original, tmp_path / "bundle", target="ref")
    assert bundle.model_path is not None
    cleaned = bundle.model_path
    expected, actual = Reference(original).run(sample), bundle(sample)
    layers = compare_layers(LayerSubject(cleaned, sample, original), Device(worker))
    report = CheckReport("m", (Leg("MIGraphX ref", (compare(actual, expected),)),), layers=layers)
    after = Network.of(clean(original).model)
    evidence = Evidence(
        {"ONNX Runtime": (expected,), "MIGraphX ref": (actual,)},
        Network.of(original),
        after,
        bundle.manifest.program.passes,
    )
    path = tmp_path / "report.html"
    page_of(report, evidence=evidence).write(path)
    with browser() as window:
        window.open(path)
        assert window.complaints == []
        assert window.texts("h1") == ["✓ Parity holds"]
        assert len(window.texts("#layers-table tbody tr")) == len(after.nodes) == 7
        assert len(window.texts("#passes-table tbody tr")) == len(bundle.manifest.program.passes)
        assert window.evaluate("document.querySelector('#tensor').length") == 2
    bundle.close()


def test_a_network_knows_what_subgraphs_take() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (bool c, float[2] x) => (float[2] y) {
        k = Constant <value_float = 1.0> ()
        a = Add (x, k)
        y = If (c) <then_branch = t () => (float[2] p) { p = Neg (a) },
                    else_branch = e () => (float[2] q) { q = Abs (x) }>
    }"""
    network = Network.of(ir.from_proto(parser.parse_model(text)))
    assert [(node.operator, {*node.inputs}) for node in network.nodes] == [("Add", {"x"}), ("If", {"a", "c", "x"})]
    assert (network.inputs, network.outputs) == (("c", "x"), ("y",))


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        page_of(CheckReport("m", ())).write(tmp_path / "nowhere" / "r.html")


CASTS = """<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x) => (float[2,3] y) {
    a = Relu (x)
    s = Cast <to = 8> (a)
    b = Cast <to = 1> (s)
    y = Neg (b)
}"""


def test_what_is_alike_in_all_rows_is_said_once() -> None:
    columns = (
        Column("node", "name"),
        Column("runs on"),
        Column("module"),
        Column("error", "number"),
        Column("details"),
    )
    rows = [Row.of(f"a.b_{n}", "MIGraphX", None, 0, unfolding([f"tensor {n}"], "more")) for n in range(4)]
    shown = Table("t", "T", columns, rows).trimmed()
    assert [column.label for column in shown.columns] == ["node", "error", "details"]
    assert "runs on MIGraphX" in shown.note
    assert _breakable("com.microsoft::Bias<Gelu> 0.25") == "com.<wbr>microsoft::<wbr>Bias&lt;Gelu&gt; 0.25"


def test_a_diagnosis(runtime: object, tmp_path: Path) -> None:
    diagnosis = doctor(ir.from_proto(parser.parse_model(CASTS)))
    page = diagnosis_page(diagnosis)
    assert page.headline == "Everything will run, with ONNX Runtime on the host"
    nodes = table(page, "nodes")
    assert column(nodes, "operator") == ["Cast", "Cast", "Relu", "Neg"]  # obstacles first
    assert column(nodes, "planned action")[0] == "host partition"
    assert nodes.choices == [PlannedAction.HOST, PlannedAction.UNCHANGED]
    assert sum(each.count for each in page.shares) == 4
    assert [each.name.split(":")[0] for each in page.partitions] == ["MIGraphX", "ONNX Runtime", "MIGraphX"]
    path = tmp_path / "doctor.html"
    diagnosis_page(diagnosis).write(path)
    with browser() as window:
        window.show(390)
        window.open(path)
        assert window.complaints == []
        assert window.evaluate("document.documentElement.scrollWidth") == 390
        assert len(window.texts("#nodes-table tbody tr")) == 4
        window.show(1300, dark=True)
        window.evaluate(
            "(() => { const e = document.querySelector('select[data-table=nodes]:not(.order)');"
            "e.value = 'host partition'; e.dispatchEvent(new Event('change')); })()"
        )
        assert all("Cast" in each for each in window.texts("#nodes-table tbody tr"))


def test_a_diagnosis_that_says_no(runtime: object) -> None:
    page = diagnosis_page(doctor(ir.from_proto(parser.parse_model(CASTS)), host=False))
    assert (page.passed, page.headline) == (False, "It will not run")
    assert any("cannot run on MIGraphX" in each for each in page.sentences)
    assert re.search(r'class="verdict bad"', page.html())
