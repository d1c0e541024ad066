"""Samples from Polygraphy's files and scripts, and from Python."""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnx_bridge.core.errors import InputError
from onnx_bridge.samples import files
from onnx_bridge.samples.inputs import TensorSpec

WANTED = [TensorSpec("x", np.dtype("f4"), (2, 3)), TensorSpec("i", np.dtype("i8"), (2,))]


def saved(array: np.ndarray) -> dict[str, str]:
    """An array as Polygraphy writes it (``polygraphy/json/serde.py``)."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return {"array": base64.b64encode(file.getvalue()).decode(), "polygraphy_class": "ndarray"}


def sample(index: int) -> dict[str, np.ndarray]:
    return {"x": np.full((2, 3), index, np.float32), "i": np.array([index, 1])}


def same(found: list[Any], count: int) -> None:
    assert len(found) == count
    for index, each in enumerate(found):
        assert list(each) == ["x", "i"]
        for name, array in sample(index).items():
            np.testing.assert_array_equal(each[name], array)


class TestPolygraphyJson:
    def write(self, path: Path, values: Any) -> Path:
        path.write_text(json.dumps(values))
        return path

    def test_several_samples_in_a_file(self, tmp_path: Path) -> None:
        values = [{name: saved(array) for name, array in sample(index).items()} for index in range(3)]
        path = self.write(tmp_path / "inputs.json", values)
        same(files.load(path, WANTED), 3)
        same(files.load(path, WANTED, count=2), 2)
        with pytest.raises(InputError, match="there are 3 samples, and 5 were asked for"):
            files.load(path, WANTED, count=5)

    def test_a_file_a_sample(self, tmp_path: Path) -> None:
        for index in range(3):
            values = {name: saved(array) for name, array in sample(index).items()}
            self.write(tmp_path / f"{index:010}.json", values)
        same(files.load(tmp_path, WANTED), 3)

    def test_older_formats(self, tmp_path: Path) -> None:
        x, i = sample(0).values()
        file = io.BytesIO()
        np.savez(file, x)
        old = {
            "array": file.getvalue().decode("latin-1"),
            "__polygraphy_encoded_ndarray": "constants.LEGACY_TYPE_MARKER",
        }
        lazy = {"values": saved(i), "polygraphy_class": "LazyNumpyArray"}
        same(files.load(self.write(tmp_path / "old.json", [{"x": old, "i": lazy}]), WANTED), 1)

    def test_dtypes_beyond_numpy(self, tmp_path: Path) -> None:
        x = np.array([1.5, -2], ml_dtypes.bfloat16)
        path = self.write(tmp_path / "in.json", [{"x": saved(x)}])
        (found,) = files.load(path, [TensorSpec("x", x.dtype, (2,))])
        np.testing.assert_array_equal(found["x"], x)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("{", "the file cannot be read"),
            ("[1, 2]", "the content is not a list of dicts of arrays"),
            ('{"x": {"array": "AAAA", "polygraphy_class": "ndarray"}}', r"is not an \.npy"),
            ('[{"x": {"tensor": "", "polygraphy_class": "Tensor"}}]', r"torch\.Tensor.*return numpy arrays"),
            ('{"lst": [], "polygraphy_class": "RunResults"}', r"the file holds results, not inputs.*--save-inputs"),
            ("[]", "there are no samples"),
        ],
    )
    def test_invalid_files(self, tmp_path: Path, text: str, says: str) -> None:
        (tmp_path / "in.json").write_text(text)
        with pytest.raises(InputError, match=says) as caught:
            files.load(tmp_path / "in.json", WANTED)
        assert "in.json" in str(caught.value.where)


class TestScripts:
    LOADER = """
import numpy as np
from beside import VALUE

def load_data():
    for index in range(3):
        yield {"x": np.full((2, 3), index, np.float32), "i": np.array([index, VALUE])}

def endless():
    while True:
        yield from load_data()

def listed():
    return list(load_data())

def broken():
    yield from listed()[:1]
    raise KeyError("row 7")
"""

    @pytest.fixture
    def script(self, tmp_path: Path) -> Path:
        (tmp_path / "beside.py").write_text("VALUE = 1\n")
        (tmp_path / "loader.py").write_text(self.LOADER)
        return tmp_path / "loader.py"

    def test_the_function_is_called_by_name(self, script: Path) -> None:
        same(files.load(script, WANTED), 3)
        same(files.load(Path(f"{script}:listed"), WANTED), 3)
        same(files.load(Path(f"{script}:endless"), WANTED, count=2), 2)

    def test_an_endless_loader(self, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "_MAX_SAMPLES", 20)
        with pytest.raises(InputError, match=r"more than 20 samples.*`samples`"):
            files.load(Path(f"{script}:endless"), WANTED)

    def test_the_line_that_raised_is_named(self, script: Path) -> None:
        with pytest.raises(InputError, match=r"loader\.py:18: the loader raised KeyError: 'row 7'"):
            files.load(Path(f"{script}:broken"), WANTED)
        script.write_text("import nothing_of_this_name\n")
        with pytest.raises(InputError, match=r"loader\.py:1: the loader raised ModuleNotFoundError"):
            files.load(script, WANTED)

    def test_a_missing_function(self, script: Path) -> None:
        with pytest.raises(InputError, match=r"no function 'load_date'.*did you mean load_data"):
            files.load(Path(f"{script}:load_date"), WANTED)

    def test_a_missing_script(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"no\.py: the file or folder does not exist"):
            files.load(tmp_path / "no.py:load", WANTED)


class TestPython:
    def test_a_function_an_iterator_a_list_a_sample(self) -> None:
        def loader() -> Iterator[dict[str, Any]]:
            yield from (sample(index) for index in range(2))

        same(files.load(loader, WANTED), 2)
        same(files.load(loader(), WANTED), 2)
        same(files.load([sample(0), sample(1)], WANTED), 2)
        same(files.load(sample(0), WANTED), 1)
        same(files.load(lambda: sample(0), WANTED), 1)
        same(files.load(map(sample, itertools.count()), WANTED, count=4), 4)

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ([], "there are no samples"),
            ([[1]], "sample 0: a sample is a dict of arrays by input name, and this is a list"),
            ([sample(0), {"x": sample(0)["x"]}], "sample 1, input 'i': the input is missing"),
            ([{**sample(0), "j": np.zeros(1)}], "input 'j'.*no such input"),
            ({"pixels": np.zeros(1)}, "the model takes x, i: are these the inputs of another model"),
            ({"x": [[1], [2, 3]], "i": [1, 2]}, "input 'x': cannot be converted to an array"),
        ],
    )
    def test_invalid_samples(self, given: Any, says: str) -> None:
        with pytest.raises(InputError, match=says):
            files.load(given, WANTED)


def test_nan_and_inf_are_reported(tmp_path: Path) -> None:
    x = np.array([[1, math.nan, math.inf], [0, math.nan, 0]], np.float32)
    samples = [sample(0), {**sample(1), "x": x}]
    assert files.find_non_finite(samples) == ["sample 1, input x: 3 of 6 elements are NaN or Inf"]
    assert files.find_non_finite([sample(0)]) == []


def test_the_inputs_of_another_model_in_an_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", output=np.zeros(2), logits=np.zeros(3))
    with pytest.raises(InputError, match=r"none of its arrays \(output, logits\) is an input.*another model"):
        files.load(tmp_path / "in.npz", WANTED)


def test_a_single_input_by_a_wrong_name() -> None:
    with pytest.raises(InputError, match="none of its arrays .*did you mean pixel_values"):
        files.load({"pixels_values": np.zeros(2)}, [TensorSpec("pixel_values", np.dtype("f8"), (2,))])
