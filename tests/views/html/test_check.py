"""The page of a check, as a real browser shows it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from onnx_bridge.views.html.check import page_of
from tests.views.html.browser import Page, chromium, options
from tests.views.html.scenes import HOSTILE, Scene, scene

NODES = "#layers-table tbody td[data-label=node]"


@pytest.fixture(scope="module")
def shown() -> Scene:
    return scene()


@pytest.fixture(scope="module")
def file(shown: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    page_of(shown.report, evidence=shown.evidence).write(path)
    return path


def test_it_is_one_file_that_fetches_nothing(page: Page, file: Path) -> None:
    assert page.complaints == []
    text = file.read_text()
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
    assert not re.search(r"@import|url\(", text)
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    assert file.stat().st_size < 200_000


def test_it_would_not_be_let_to_fetch(page: Page) -> None:
    asked = "fetch('https://example.org/').then(() => 'got it', (error) => String(error))"
    assert "Failed to fetch" in page.evaluate(asked)
    assert any("Content Security Policy" in each for each in page.complaints)


def test_the_verdict_is_on_top(page: Page) -> None:
    assert page.texts("h1") == ["✗ Parity fails"]
    top = page.texts("#verdict")[0]
    assert "2 of 8 comparisons differ" in top
    assert "Sigmoid layer.4/Sigmoid" in top
    assert "by its own error" in top
    assert "the reference is <b>the cleaned model</b>" in top
    assert page.evaluate("document.querySelector('#verdict').getBoundingClientRect().top") < 100
    assert page.evaluate("document.title") == "Parity fails · model.onnx"


def test_a_name_stays_text(page: Page) -> None:
    assert HOSTILE in page.texts(NODES)
    assert page.evaluate("document.images.length") == 0


def test_without_a_script_the_tables_are_there_as_well(file: Path, tmp_path: Path) -> None:
    command = [chromium(), *options(str(tmp_path)), "--dump-dom", file.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    for words in ("Parity fails", "layer.4/Sigmoid", "introduces the error", "propagates", "remove-identity", "1.2.3"):
        assert words in dom
    assert dom.count("data-tensor=") > 10


class TestTables:
    def test_layers_are_sorted_by_a_heading(self, page: Page) -> None:
        natural = page.texts(NODES)
        heading = "#layers-table th:nth-child(5) button"
        assert page.texts(heading)[0].startswith("local")
        page.click(heading)
        assert page.texts(NODES)[0] == "layer.4/Sigmoid"
        assert page.evaluate("document.querySelector('#layers-table th:nth-child(5)').ariaSort") == "descending"
        page.click(heading)
        assert page.texts(NODES)[-1] == "layer.4/Sigmoid"
        assert page.evaluate("document.querySelector('#layers-table th:nth-child(5)').ariaSort") == "ascending"
        page.click(heading)
        assert page.texts(NODES) == natural

    def test_numbers_are_sorted_as_numbers(self, page: Page) -> None:
        page.click("#layers-table th:nth-child(7) button")
        cells = page.evaluate(
            "[...document.querySelectorAll('#layers-table tbody td:nth-child(7)')].map((e) => e.dataset.sort)"
        )
        assert list(map(float, cells)) == sorted(map(float, cells), reverse=True)
        assert len({*cells}) > 3

    def test_they_are_filtered_by_words(self, page: Page) -> None:
        page.click("input[data-table=layers]")
        page.write("LAYER. -sigmoid -add")
        left = page.texts(NODES)
        assert "layer.1/MatMul" in left
        assert not {"layer.4/Sigmoid", "layer.2/Add", HOSTILE} & {*left}
        assert page.texts("output[data-table=layers]") == [f"{len(left)} of 7 rows"]

    def test_they_are_filtered_by_verdict(self, page: Page) -> None:
        page.evaluate(
            "(() => { const e = document.querySelector('select[data-table=layers]:not(.order)');"
            "e.value = 'propagates'; e.dispatchEvent(new Event('change')); })()"
        )
        assert page.texts(NODES) == [HOSTILE, "layer.6/Mul", "layer.7/ReduceMax"]

    def test_what_is_chosen_stands_in_the_address(self, page: Page, file: Path) -> None:
        page.click("input[data-table=layers]")
        page.write("layer")
        page.click("#layers-table th:nth-child(5) button")
        seen = page.texts(NODES)
        fragment = page.evaluate("location.hash.slice(1)")
        page.open(file, fragment)
        assert page.texts(NODES) == seen
        assert page.evaluate("document.querySelector('input[data-table=layers]').value") == "layer"

    def test_differences_come_first(self, page: Page) -> None:
        assert page.texts("#outputs-table td[data-label=verdict]") == ["differs"] * 2 + ["agrees"] * 6

    def test_passes_say_what_they_did(self, page: Page) -> None:
        page.evaluate("document.querySelectorAll('#passes details').forEach((each) => (each.open = true))")
        rows = [each for each in page.texts("#passes-table tbody tr") if "remove-identity" in each]
        assert "layer.0/Identity" in rows[0]


class TestKeys:
    def test_a_filter_is_reached_and_left(self, page: Page) -> None:
        page.press("/")
        assert page.evaluate("document.activeElement.dataset.table") == "outputs"
        page.write("nothing like this")
        assert page.texts("output[data-table=outputs]") == ["0 of 8 rows"]
        page.press("Escape")
        assert page.texts("output[data-table=outputs]") == ["8 rows"]
        assert page.evaluate("document.activeElement.tagName") == "BODY"

    def test_rows_are_walked_and_plotted(self, page: Page) -> None:
        page.evaluate("document.querySelector('#layers-table tbody tr').focus()")
        page.press("j")
        page.press("ArrowDown")
        page.press("k")
        focused = "document.activeElement.querySelector('[data-label=node]').textContent.trim()"
        assert page.evaluate(focused) == page.texts(NODES)[1]
        page.press("Enter")
        assert page.texts("#scatter-title")[0].startswith("t · layer")

    def test_one_row_of_a_table_is_in_the_order_of_tabs(self, page: Page) -> None:
        counts = "[...document.querySelectorAll('tbody')].map((e) => e.querySelectorAll('tr[tabindex=\"0\"]').length)"
        assert page.evaluate(counts) == [1, 1, 1]

    def test_headings_are_buttons(self, page: Page) -> None:
        page.evaluate("document.querySelector('#layers-table th:nth-child(2) button').focus()")
        page.press("Enter")
        assert page.texts(NODES) == sorted(page.texts(NODES), key=lambda name: (name[0] != "<", name))

    def test_help(self, page: Page) -> None:
        assert page.texts("#help") == []
        page.press("?")
        assert "next and previous row" in page.texts("#help")[0]
        page.press("Escape")
        assert page.texts("#help") == []

    def test_the_results_are_one_tab_away(self, page: Page) -> None:
        page.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the results"


class TestPlots:
    def test_the_worst_output_comes_first(self, page: Page) -> None:
        assert page.texts("#histogram-title") == ["Differences of y · MIGraphX ref · sample 0"]
        assert page.evaluate("document.querySelectorAll('#histogram rect').length") == 41
        assert page.evaluate("document.querySelectorAll('#scatter circle').length") == 24

    def test_a_click_on_a_row_chooses(self, page: Page) -> None:
        page.click("#layers-table tbody tr:nth-child(1) td:nth-child(2)")
        assert page.texts("#scatter-title") == ["s · layer: 24 of 24 elements"]
        bars = "[...document.querySelectorAll('#histogram title')].map((e) => parseInt(e.textContent))"
        assert sum(page.evaluate(bars)) == 24
        assert "tensor=" in page.evaluate("location.hash")

    def test_points_lie_where_their_numbers_are(self, page: Page) -> None:
        page.click("#layers-table tbody tr:nth-child(1) td:nth-child(2)")
        off = "[...document.querySelectorAll('#scatter circle')].map((e) => (240 - e.getAttribute('cy')) / 230 - "
        off += "(e.getAttribute('cx') - 62) / 348)"
        found = page.evaluate(off)
        assert min(found) == pytest.approx(max(found), rel=1e-3)  # the fault is the same for each element
        assert min(found) > 0.1

    def test_the_error_profile(self, page: Page) -> None:
        hints = page.evaluate(
            "[...document.querySelectorAll('.error_profile .beyond title')].map((e) => e.textContent)"
        )
        assert [each.splitlines()[0] for each in hints if "\nlocal" in each] == ["Sigmoid layer.4/Sigmoid"]
        assert len([each for each in hints if "\naccumulated" in each]) == 4
        assert page.texts(".error_profile text").count("tolerance") == 1
        ends = page.evaluate(
            "[...document.querySelectorAll('.error_profile circle')].map((e) => +e.getAttribute('cy'))"
        )
        assert 0 < min(ends) < max(ends) < 250


class TestGraph:
    def test_before_and_after_stand_beside_each_other(self, page: Page) -> None:
        assert page.texts("#graph h2") == ["Around Sigmoid layer.4/Sigmoid"]
        boxes = "[...document.querySelectorAll('#graph figure')].map((figure) => "
        boxes += "[...figure.querySelectorAll('.box')].map((e) => e.dataset.name))"
        before, after = page.evaluate(boxes)
        assert {"layer.0/Identity", "layer.4/Sigmoid", HOSTILE} < {*before}
        assert "layer.0/Identity" not in after
        left, right = page.evaluate("[...document.querySelectorAll('#graph figure')].map((e) => e.offsetTop)")
        assert left == right

    def test_colours_say_who_is_to_blame(self, page: Page) -> None:
        found = page.evaluate(
            "Object.fromEntries([...document.querySelectorAll('#graph figure:last-child .box')]"
            ".map((e) => [e.dataset.name, e.classList[1]]))"
        )
        assert found["layer.4/Sigmoid"] == "bad"
        assert found[HOSTILE] == found["layer.6/Mul"] == "warn"
        assert found["layer.3/Relu"] == "good"
        assert found["y"] == "end"

    def test_on_a_phone_the_fault_is_in_sight(self, page: Page, file: Path) -> None:
        page.show(390)
        page.open(file)
        middles = "[...document.querySelectorAll('#graph .bad rect')].map((e) => e.getBoundingClientRect())"
        places = page.evaluate(f"{middles}.map((r) => r.x + r.width / 2)")
        assert len(places) == 2
        assert all(85 < place < 305 for place in places)


class TestLooks:
    def test_light_and_dark(self, page: Page, tmp_path: Path) -> None:
        colours = "(() => { const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]; })()"
        seen = {}
        for dark in (False, True):
            page.show(1300, dark=dark)
            seen[dark] = page.evaluate(colours), page.screenshot(tmp_path / f"{dark}.png")
        assert seen[False][0] == ["rgb(255, 255, 255)", "rgb(27, 31, 36)"]
        assert seen[True][0] == ["rgb(20, 23, 28)", "rgb(228, 232, 238)"]
        assert seen[False][1] != seen[True][1]
        page.press("t")  # against the system
        assert page.evaluate(colours) == seen[False][0]
        assert "theme=light" in page.evaluate("location.hash")
        page.click("#theme")
        assert page.evaluate(colours) == seen[True][0]
        assert "theme" not in page.evaluate("location.hash")

    @pytest.mark.parametrize("width", [320, 390, 768, 1300])
    def test_nothing_hangs_over_the_edge(self, page: Page, file: Path, width: int) -> None:
        page.show(width)
        page.open(file)
        assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [width, width]

    def test_on_a_phone_rows_are_cards_that_can_be_sorted(self, page: Page, file: Path, tmp_path: Path) -> None:
        page.show(390)
        page.open(file)
        assert page.texts("#layers-table th") == []
        label = "getComputedStyle(document.querySelector('#layers-table td:nth-child(5)'), '::before').content"
        assert page.evaluate(label) == '"local"'
        page.evaluate(
            "(() => { const e = document.querySelector('select.order[data-table=layers]');"
            "e.value = '4'; e.dispatchEvent(new Event('change')); })()"
        )
        assert page.texts(NODES)[0].endswith("layer.4/Sigmoid")
        assert len(page.screenshot(tmp_path / "phone.png")) > 10_000
