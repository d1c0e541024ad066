"""Arrays that do not fit: the hint's expression, and the line for a file, make them fit."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from onnx_bridge.core.errors import InputError
from onnx_bridge.samples import files, inputs
from onnx_bridge.samples.inputs import TensorSpec

CASES = {
    "channels last": ((1, 8, 9, 3), "f4", (1, 3, 8, 9)),
    "channels first": ((1, 3, 8, 9), "f4", ("batch", 8, 9, 3)),
    "no batch": ((3, 8, 9), "f4", (1, 3, 8, 9)),
    "one image of bytes": ((8, 9, 3), "u1", ("N", 3, "height", "width")),
    "a batch of bytes": ((2, 8, 9, 3), "u1", (2, 3, 8, 9)),
    "bytes": ((1, 3, 8, 9), "u1", (1, 3, 8, 9)),
    "doubles, channels last": ((1, 8, 9, 3), "f8", (1, 3, 8, 9)),
    "grey": ((8, 9), "u1", (1, 1, 8, 9)),
    "grey, channels last": ((8, 9), "f4", (1, 8, 9, 1)),
    "a batch of grey": ((2, 8, 9), "f4", ("N", 1, 8, 9)),
    "no batch axis in the model": ((8, 9, 3), "f4", (3, 8, 9)),
    "a video": ((1, 4, 8, 9, 3), "f4", (1, 3, 4, 8, 9)),
    "samples, channels last": ((5, 1, 8, 9, 3), "f4", (1, 3, 8, 9)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ending", [".npz", ".npy"])
def test_the_line_for_a_file(name: str, ending: str, tmp_path: Path) -> None:
    shape, dtype, wanted = CASES[name]
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    specs, path = [TensorSpec("a b", np.dtype(np.float32), wanted)], tmp_path / f"it's{ending}"
    np.savez(path, **{"a b": array}) if ending == ".npz" else np.save(path, array)
    with pytest.raises(InputError) as raised:
        files.load(path, specs)
    python, option, code = shlex.split(raised.value.details["command"])
    assert (python, option) == ("python3", "-c")
    exec(code, {})
    samples = files.load(tmp_path / f"it's-fitting{ending}", specs)
    assert len(samples) == (5 if name.startswith("samples") else 1)
    total = sum(float(np.sum(sample["a b"])) for sample in samples)  # type: ignore[arg-type]
    assert total == pytest.approx(array.astype(float).sum() / (255 if dtype == "u1" else 1), rel=1e-5)


def test_the_hint_for_an_array_in_memory() -> None:
    spec, image = TensorSpec("image", np.dtype(np.float32), (1, 3, 8, 9)), np.ones((8, 9, 3), np.uint8)
    with pytest.raises(InputError) as raised:
        inputs.validate({"image": image}, [spec])
    expression = str(raised.value.hint).rpartition(": give ")[2]
    fitting = eval(expression, {"np": np, "image": image})
    assert inputs.validate({"image": fitting}, [spec])["image"] is fitting


@pytest.mark.parametrize("array", [np.ones((1, 3, 8, 8), "f4"), np.ones(3, "f4"), np.array(["a"]), [[1.0]], None])
def test_what_nothing_makes_fit_has_the_usual_hint(array: object) -> None:
    with pytest.raises(InputError) as raised:
        inputs.validate({"image": array}, [TensorSpec("image", np.dtype(np.float32), (1, 3, 8, 9))])
    assert ": give np" not in str(raised.value.hint)
