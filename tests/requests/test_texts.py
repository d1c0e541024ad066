"""Texts of options on the command line."""

from __future__ import annotations

import pytest

from onnx_bridge.core.errors import InputError
from onnx_bridge.requests import texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x:[1,3,4]", {"x": (1, 3, 4)}),
        ("x:1x3x4", {"x": (1, 3, 4)}),
        ("x=1,3,4", {"x": (1, 3, 4)}),
        ("x=[1, 3]", {"x": (1, 3)}),
        ("input:0:[2]", {"input:0": (2,)}),
        ("a=b:2x2", {"a=b": (2, 2)}),
        ("x:[]", {"x": ()}),
    ],
)
def test_shapes(text: str, expected: dict[str, tuple[int, ...]]) -> None:
    """Also as trtexec and Polygraphy write them."""
    assert texts.shapes([text]) == expected


@pytest.mark.parametrize("text", ["x", "x:", "x:[1,-1]", "x:1x", "x:[1x2", "[1,2]", ":[1]", "x:[1e3]"])
def test_no_shapes(text: str) -> None:
    with pytest.raises(InputError, match="--shape"):
        texts.shapes([text])
