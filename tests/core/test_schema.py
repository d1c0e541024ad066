"""JSON of others: nothing that is nested too deeply to be processed."""

from __future__ import annotations

import pytest

from onnx_bridge.core.schema import parse_json


@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}"), ('[1, {"a": [], "b":', "}]")])
def test_values_that_are_nested_too_deeply(start: str, end: str) -> None:
    levels = 100 // (start.count("[") - start.count("]") + start.count("{"))
    assert parse_json(f"{start * levels}1{end * levels}")
    for depth in (levels + 1, 900, 100_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(f"{start * depth}1{end * depth}")


@pytest.mark.parametrize(("text", "value"), [("1", 1), ('"[[["', "[[["), ("null", None), ("[]", [])])
def test_values_that_are_not_nested(text: str, value: object) -> None:
    assert parse_json(text) == value
