"""JUnit's XML: one case for each output of each sample, and the reason of each failure."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree as xml

import numpy as np
import pytest

from onnx_bridge.core.errors import InputError, WorkerCrashed
from onnx_bridge.parity.checking.report import CheckReport, Leg
from onnx_bridge.parity.failure import Failure
from onnx_bridge.reference.comparison.compare import Comparison, compare
from onnx_bridge.views.junit import write_junit

CRASH = Failure("run", WorkerCrashed("run", returncode=-6, output="one\ntwo\n"), 2)


def compared(**pairs: tuple[float, float]) -> Comparison:
    sides = [{name: np.array([pair[side]], np.float32) for name, pair in pairs.items()} for side in (0, 1)]
    return compare(*sides)


def written(report: CheckReport, folder: Path) -> xml.Element:
    path = folder / "results.xml"
    write_junit(path, report)
    assert [each.name for each in folder.iterdir()] == ["results.xml"]
    return xml.parse(path).getroot()


def counts(element: xml.Element) -> tuple[str | None, ...]:
    return tuple(element.get(name) for name in ("tests", "failures", "errors"))


def test_a_case_for_each_output_of_each_sample(tmp_path: Path) -> None:
    good, bad = compared(y=(1, 1), z=(2, 2)), compared(y=(1, 3), z=(2, 2))
    report = CheckReport(
        "m.onnx", (Leg("cleaned", (good, good)), Leg("MIGraphX", (good, bad))), 3, {"MIGraphX": "2.14"}
    )
    root = written(report, tmp_path)
    assert root.tag == "testsuites"
    assert counts(root) == ("8", "1", "0")
    first, second = root
    assert [counts(each) for each in root] == [("4", "0", "0"), ("4", "1", "0")]
    assert first.get("name") == "m.onnx: cleaned"
    assert [case.get("name") for case in second.iter("testcase")] == [
        "y [sample 0]",
        "z [sample 0]",
        "y [sample 1]",
        "z [sample 1]",
    ]
    (failure,) = root.iter("failure")
    assert failure.get("message") == "1 of 1 elements beyond tolerance; worst at [0]: 1 against 3"
    assert "max_abs: 2.0" in str(failure.text)
    assert {each.get("name"): each.get("value") for each in second.iter("property")} == {
        "MIGraphX": "2.14",
        "seed": "3",
    }


def test_a_leg_that_could_not_be_run_is_an_error(tmp_path: Path) -> None:
    root = written(CheckReport("m", (Leg("MIGraphX", failure=CRASH),)), tmp_path)
    assert counts(root) == ("1", "0", "1")
    (error,) = root.iter("error")
    assert str(error.get("message")).startswith("run, sample 2: MIGraphX's process was killed by SIGABRT during run")
    assert error.get("type") == "crashes"
    assert str(error.text).splitlines()[1:] == ["one", "two"]
    (case,) = root.iter("testcase")
    assert case.get("name") == "run"


def test_nothing_compared_is_an_error(tmp_path: Path) -> None:
    for index, report in enumerate(
        (CheckReport("m", ()), CheckReport("m", (Leg("x"),)), CheckReport("m", (Leg("x", (Comparison(()),)),)))
    ):
        folder = tmp_path / str(index)
        folder.mkdir()
        assert counts(written(report, folder)) == ("1", "0", "1")


def test_what_xml_cannot_hold_is_replaced(tmp_path: Path) -> None:
    hostile = compared(**{"a\x00b<&\ud800\"'": (1, math.nan)})
    root = written(CheckReport("m\x1b[0m", (Leg("leg", (hostile,)),)), tmp_path)
    (case,) = root.iter("testcase")
    assert case.get("name") == "a�b<&�\"' [sample 0]"
    assert case.get("classname") == "m�[0m.leg"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_junit(tmp_path / "nowhere" / "out.xml", CheckReport("m", ()))
