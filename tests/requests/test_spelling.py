"""Options in messages: as the API has them, and as they are typed."""

from __future__ import annotations

import pytest

from onnx_bridge.requests.spelling import as_typed


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("`max_length`", "--max-length"),
        ("`decoder=True`", "--as decoder"),
        ("`host=False`", "--no-host"),
        ("`dims={'batch': 2, 'length': 'N'}`", "--dim batch=2 --dim length=N"),
        ("`shapes={'x': [1, 3], 'y': ['…']}`", "--shape x:[1,3] --shape y:[…]"),
        ("`buckets={'batch': (1, 4), 'total': 'past + 1'}`", "--bucket batch=1,4 --bucket 'total=past + 1'"),
        ("`keep_fp32=['Softmax', 'Exp']`", "--keep-fp32 Softmax --keep-fp32 Exp"),
        ("`precision='fp32'`", "--precision fp32"),
        ("`onnx-bridge check`, `x` and `dims=(`", "`onnx-bridge check`, `x` and `dims=(`"),
    ],
)
def test_options_are_typed(text: str, typed: str) -> None:
    assert as_typed(text) == typed


def test_options_of_other_verbs() -> None:
    assert as_typed("give `stop=2`, not `max_length`", {"stop": "--stop"}) == "give --stop 2, not `max_length`"
