"""A check as JUnit's XML, which CI systems read: a suite for each leg, a case for each output of each sample.

There is no written standard; this is what Jenkins, GitLab and GitHub's actions agree on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from xml.etree import ElementTree as xml

from onnx_bridge.core.files.atomic_write import write_text
from onnx_bridge.parity.checking.accuracy import AccuracyReport
from onnx_bridge.parity.checking.report import CheckReport, Leg
from onnx_bridge.reference.comparison.compare import OutputComparison

_FORBIDDEN = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, not even escaped."""


def write_junit(path: str | os.PathLike[str], report: CheckReport) -> None:
    """Write the results of a check; raises InputError if the file cannot be written.

    A leg that could not be run is an error, and so is one that compared nothing.
    """
    about = {**report.versions, **({} if report.seed is None else {"seed": report.seed})}
    legs = report.legs or (Leg("check"),)
    _write_suites(path, [_suite(report.model, leg.name, _cases(report, leg), about) for leg in legs])


def write_accuracy_junit(path: str | os.PathLike[str], report: AccuracyReport) -> None:
    """Write the scores of `check --data`: a suite for each side, a case for each output and metric.

    Raises InputError if the file cannot be written.
    """
    sides = dict.fromkeys((*(score.side for score in report.scores), *report.failures))
    _write_suites(path, [_suite(report.model, side, _scores(report, side)) for side in sides])


def _suite(
    model: str, name: str, cases: Iterable[xml.Element], about: Mapping[str, object] | None = None
) -> xml.Element:
    suite = xml.Element("testsuite", name=_text(f"{model}: {name}"))
    if about is not None:
        properties = xml.SubElement(suite, "properties")
        for key, value in about.items():
            xml.SubElement(properties, "property", name=_text(key), value=_text(value))
    for case in cases:
        case.set("classname", _text(f"{model}.{name}"))
        suite.append(case)
    return suite


def _scores(report: AccuracyReport, side: str) -> Iterator[xml.Element]:
    for score in (score for score in report.scores if score.side == side):
        case = xml.Element("testcase", name=_text(f"{score.output} {score.metric}"))
        if not score.passed:
            xml.SubElement(case, "failure", message=_text(f"{score.shown}, below {score.least:g}"), type="minimum")
        yield case
    if (failure := report.failures.get(side)) is not None:
        case = xml.Element("testcase", name=failure.step)
        xml.SubElement(case, "error", message=_text(failure), type=failure.kind.value)
        yield case


def _write_suites(path: str | os.PathLike[str], suites: Sequence[xml.Element]) -> None:
    """Write test suites, with the numbers of their cases; raises InputError."""
    root = xml.Element("testsuites", name="onnx-bridge check")
    root.extend(suites)
    for suite in suites:
        _count(suite, [suite])
    _count(root, list(suites))
    xml.indent(root)
    write_text(path, '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(root, encoding="unicode") + "\n")


def _cases(report: CheckReport, leg: Leg) -> Iterator[xml.Element]:
    for sample, comparison in enumerate(leg.comparisons):
        for output in comparison.outputs:
            case = xml.Element("testcase", name=_text(f"{output.name} [sample {sample}]"))
            if output.undetermined is not None:
                xml.SubElement(case, "skipped", message=_text(f"not determined: {output.undetermined}"))
            elif output.reason is not None:
                failure = xml.SubElement(case, "failure", message=_text(output.reason), type="difference")
                failure.text = _text("\n".join(_figures(output)))
            yield case
    compared = any(comparison.outputs for comparison in leg.comparisons)
    problem = leg.error or (None if compared else "nothing was compared")
    if problem is not None:
        failed = leg.failure
        case = xml.Element("testcase", name=failed.step if failed else "run")
        kind = failed.kind.value if failed else "error"
        lines = [problem] if failed is None else [problem, report.blame, failed.printed]
        xml.SubElement(case, "error", message=_text(problem), type=kind).text = _text("\n".join(filter(None, lines)))
        yield case


def _figures(output: OutputComparison) -> Iterator[str]:
    for name, value in output.to_json().items():
        if value is not None and name not in ("name", "passed", "reason"):
            yield f"{name}: {value}"


def _count(element: xml.Element, suites: Sequence[xml.Element]) -> None:
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(name, str(sum(1 for suite in suites for _ in suite.iter(tag))))


def _text(text: object) -> str:
    """Return a text without the characters that XML cannot hold."""
    return _FORBIDDEN.sub("�", str(text))
