"""Tables in narrow terminals, and the progress of batches."""

from __future__ import annotations

import re

import pytest

from onnx_bridge.batch.outcome import Result
from onnx_bridge.views.terminal import batch_progress
from onnx_bridge.views.terminal.tables import console, facts_table, plain_table

ROWS = (
    ("cleaned on ONNX Runtime", "output_label", "ai.onnx.ml::ArrayFeatureExtractor", "7.15e-07"),
    ("bucket batch=1,sequence=128", "probabilities", "com.microsoft::QLinearGlobalAveragePool", "0"),
)
WORDS = {word for row in ROWS for cell in row for word in re.split(r"[^A-Za-z0-9]+", cell) if len(word) > 2}


@pytest.mark.parametrize("width", [200, 120, 80, 60, 44, 30])
def test_no_word_is_cut(width: int) -> None:
    screen = console(width=width)
    table = plain_table("leg", "output", "operator", "largest error", numbers=("largest error",))
    for row in ROWS:
        table.add_row(*row)
    with screen.capture() as printed:
        screen.print(table)
    lines = printed.get().splitlines()
    assert set(re.split(r"[^A-Za-z0-9]+", "\n".join(lines))) >= WORDS
    assert max(map(len, lines)) <= width


def test_types_and_figures_stay_whole() -> None:
    screen = console(width=60)
    table = plain_table("leg", "type", "", last=["type"])
    table.add_row("cleaned on ONNX Runtime", "float32[1, 3, 224, 224]", "agrees in all places")
    table.add_row("", "float32[1, 10]", "agrees")
    with screen.capture() as printed:
        screen.print(table)
        screen.width = 24
        screen.print(table)
        screen.print(facts_table({"seconds": "clean 1.42, parse 0.0135"}))
    wide, narrow = printed.get().split("leg: ")
    assert "float32[1, 3, 224, 224]" in wide
    assert "\n  type: float32[1, 10]" in narrow  # below its leg, like that of the row before
    assert "0.0135" in narrow


def test_the_time_that_is_left_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(batch_progress.time, "monotonic", lambda: now)
    table = batch_progress.LiveTable()
    table.begin(3)
    assert table.remaining is None
    now = 10.0
    table.ended(Result("a", None, "converted"))  # type: ignore[arg-type]
    assert table.remaining == 20
    now = 14.0
    assert table.remaining == 16
    now = 31.0
    assert table.remaining is None
