"""The page of a benchmark, as a real browser shows it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onnx_bridge.benchmark.operators import OperatorTime
from onnx_bridge.benchmark.outcome import BenchResult, Gate, Row
from onnx_bridge.benchmark.statistics import Change, Ratio
from onnx_bridge.views.html.benchmark import page_of
from tests.views.html.browser import Page
from tests.views.html.scenes import HOSTILE

SIZES = (1, 2, 4, 8)


def scene() -> BenchResult:
    """Two engines over four batch sizes; the first grows no faster from 4 on."""
    rng = np.random.default_rng(0)
    rows = []
    for batch in SIZES:
        ours = 0.02 * (0.25 if batch == 1 else 0.3 if batch == 2 else batch / 10)
        for engine, target, seconds in (("migraphx", "ref", ours), ("ort", "", 1e-4 * batch**0.5)):
            latencies = tuple((seconds * rng.lognormal(0, 0.02, 40)).tolist())
            found = OperatorTime("dot", ("MatMul",), 4, 0.01, 0.75, "@5", 0.004)
            other = OperatorTime("mlir_add", ("Add",), 1, 0.0033, 0.25, "@7", 0.0033)
            operators = (found, other) if engine == "migraphx" and batch == 1 else ()
            rows.append(Row(engine, target, "fp32", batch, latencies, 0.1, 0.2, 1 << 20, 7, operators))
    return BenchResult(HOSTILE, "d", tuple(rows), {"MIGraphX": "2.14"}, ("<b>a note</b>",), {"ort-rocm": "none here"})


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "bench.html"
    page_of(scene()).write(path)
    return path


def test_it_is_one_file_that_fetches_nothing(page: Page, file: Path) -> None:
    assert page.complaints == []
    assert not re.search(r"(src|href)=[\"']?(https?:)?//|@import|url\(", file.read_text())
    assert file.stat().st_size < 150_000
    assert page.evaluate("document.images.length") == 0


def test_the_interpreter_is_no_measure() -> None:
    on_gpu = replace(scene(), rows=tuple(replace(row, target=row.target and "gpu") for row in scene().rows))
    assert on_gpu.caveat is None
    assert page_of(on_gpu).headline == "Most samples a second: ort, fp32, batch 8"


def test_the_outcome_is_on_top(page: Page) -> None:
    assert "no measure" in page.texts("h1")[0]  # the interpreter crowns no engine
    top = page.texts("#verdict")[0]
    assert "ort-rocm: not available, none here" in top
    assert "<b>a note</b>" in top
    assert page.texts("nav a") == [
        "Latency of a call",
        "Throughput over batch",
        "All figures",
        "Where MIGraphX's time goes",
    ]


def test_latencies_lie_where_their_numbers_are(page: Page) -> None:
    bands = page.evaluate("[...document.querySelectorAll('#latencies g')].map((e) => e.dataset.name)")
    assert bands == [row.name for row in scene().rows]
    counts = "[...document.querySelectorAll('#latencies g')].map((g) => [...g.querySelectorAll('rect title')]"
    counts += ".map((e) => parseInt(e.textContent)).reduce((a, b) => a + b))"
    assert page.evaluate(counts) == [40] * len(bands)
    marks = "[...document.querySelectorAll('#latencies g')].map((g) => [...g.querySelectorAll('path')]"
    marks += ".map((e) => parseFloat(e.getAttribute('d').slice(1))))"
    places = np.array(page.evaluate(marks))
    assert (np.diff(places, axis=1) >= 0).all()  # median, p90, p99
    medians = np.log([row.summary.p50 for row in scene().rows])
    assert np.corrcoef(places[:, 0], medians)[0, 1] > 0.9999


def test_engines_keep_their_colours(page: Page) -> None:
    tones = page.evaluate("[...document.querySelectorAll('#latencies g')].map((e) => e.classList[0])")
    assert tones == ["first", "second"] * len(SIZES)


def test_the_knee_and_the_best_are_ringed(page: Page) -> None:
    hints = page.evaluate(
        "[...document.querySelectorAll('#throughput circle.ring + circle title')].map((e) => e.textContent)"
    )
    knees = {f"{kind[0]} {kind[1]}".strip(): found for kind, found in scene().knees().items()}
    assert len(hints) == sum(len({*found}) for found in knees.values())
    for name, (best, knee) in knees.items():
        assert any(hint.startswith(name) and f" at {best}, best throughput" in hint for hint in hints)
        assert any(hint.startswith(name) and f" at {knee}, " in hint and hint.endswith("knee") for hint in hints)
    assert page.texts("#throughput .legend li") == ["migraphx ref, fp32", "ort, fp32"]
    assert [text for text in page.texts("#throughput svg text") if text in map(str, SIZES)][:4] == [*map(str, SIZES)]


def test_figures_are_sorted_and_filtered(page: Page) -> None:
    heading = "#rows-table th:nth-child(3) button"  # without the precision, which is alike in all rows
    assert page.texts(heading)[0].startswith("p50")
    page.click(heading)
    cells = page.evaluate(
        "[...document.querySelectorAll('#rows-table tbody td:nth-child(3)')].map((e) => e.dataset.sort)"
    )
    assert [*map(float, cells)] == sorted(map(float, cells), reverse=True)
    page.press("/")
    page.write("ort")
    assert page.texts("output[data-table=rows]") == ["4 of 8 rows"]


def test_operators_are_listed(page: Page) -> None:
    assert page.texts("#operators-table tbody td[data-label=operator]") == ["dot", "mlir_add"]
    assert page.texts("#operators-table tbody td:nth-child(2)") == ["MatMul", "Add"]


def test_a_plot_can_be_scrolled_by_key_on_a_phone(page: Page, file: Path) -> None:
    page.show(390)
    page.open(file)
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    room = "document.querySelector('#latencies .scroll')"
    assert page.evaluate(f"{room}.scrollWidth > {room}.clientWidth && {room}.tabIndex") == 0
    assert page.texts("#rows-table th") == []


def test_light_and_dark(page: Page, tmp_path: Path) -> None:
    seen = set()
    for dark in (False, True):
        page.show(1300, dark=dark)
        seen.add(page.evaluate("getComputedStyle(document.querySelector('#latencies g.first rect')).fill"))
        assert len(page.screenshot(tmp_path / f"{dark}.png")) > 10_000
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("change", "headline", "passed"),
    [
        (Change.SLOWER, "Slower than the baseline", False),
        (Change.WITHIN, "Not slower than the baseline", True),
        (Change.UNDECIDED, "Too noisy to compare with the baseline", True),
    ],
)
def test_a_baseline_decides_on_the_headline(change: Change, headline: str, passed: bool) -> None:
    gates = (Gate("migraphx ref, fp32, batch 1", Ratio(1.2, 1.1, 1.3), change),)
    found = page_of(replace(scene(), gates=gates, max_slowdown=0.05))
    assert (found.headline, found.passed) == (headline, passed)
    assert found.tables[1].rows[0].cells[1].text == change.value


def test_one_row_and_equal_latencies_are_drawn(tmp_path: Path) -> None:
    row = replace(scene().rows[0], latencies=(0.5,), batch=None, operators=())
    page = page_of(replace(scene(), rows=(row,)))
    assert [chart.id for chart in page.charts] == ["latencies"]
    assert len(page.charts[0].across) >= 2
    page.write(tmp_path / "one.html")
