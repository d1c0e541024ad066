"""Texts as data: tokens in pieces, each labelled with the next one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from onnx_bridge.core.errors import InputError
from onnx_bridge.samples.inputs import TensorSpec
from onnx_bridge.samples.text import as_data

IDS = TensorSpec("input_ids", np.dtype(np.int32), (2, 3))
POSITIONS = TensorSpec("position_ids", np.dtype(np.int64), (2, 3))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(20)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"w{number}" for number in range(16)))
    return path


def test_tokens_and_those_that_follow(text: Path) -> None:
    (sample, label), (second, _) = as_data(text, [IDS, POSITIONS], [])
    np.testing.assert_array_equal(sample["input_ids"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(label, [[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(second["input_ids"], [[6, 7, 8], [9, 10, 11]])
    np.testing.assert_array_equal(sample["position_ids"], [[0, 1, 2], [0, 1, 2]])
    assert sample["input_ids"].dtype == np.int32


def test_a_model_that_takes_any_length(text: Path) -> None:
    spec = TensorSpec("tokens", np.dtype(np.int64), ("batch", "sequence"))
    for longest, lengths in ((128, [15]), (6, [6, 6])):
        assert [sample["tokens"].shape for sample, _ in as_data(text, [spec], [], longest)] == [(1, n) for n in lengths]


def test_texts_that_cannot_be_read(text: Path, tmp_path: Path) -> None:
    past = TensorSpec("past", np.dtype(np.float32), (1, 2, 3, 4))
    long = TensorSpec("input_ids", np.dtype(np.int64), (1, 16))
    for specs, word in (([IDS, past], "input_ids, past"), ([past], "takes past"), ([long], "longer")):
        with pytest.raises(InputError, match=word):
            as_data(text, specs, [])
    text.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match="cannot be read"):
        as_data(text, [IDS], [])
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        as_data(text, [IDS], [tmp_path / "elsewhere"])
    assert as_data([1, 2], [IDS], []) == [1, 2]
