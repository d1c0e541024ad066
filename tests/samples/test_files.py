"""Samples read from files: .npz, and folders of .pb as ONNX test suites have them."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Kind
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples import files, inputs
from onnx_bridge.samples.inputs import TensorSpec

SUITE = Path(onnx.__file__).parent / "backend" / "test" / "data" / "pytorch-operator"


def spec(dtype: object, *shape: int | str | None, name: str = "x") -> TensorSpec:
    return TensorSpec(name, np.dtype(dtype), shape)  # type: ignore[call-overload]


def test_npz_of_one_sample(tmp_path: Path) -> None:
    wanted = [spec(ml_dtypes.bfloat16, 2), spec("O", 2, name="t")]
    x = np.array([1.5, -2], ml_dtypes.bfloat16)
    np.savez(tmp_path / "in.npz", x=x, t=np.array(["a", "é"]))
    (sample,) = files.load(tmp_path / "in.npz", wanted)
    assert sample["x"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(sample["x"], x)
    assert sample["t"].tolist() == ["a", "é"]


def test_npz_of_several_samples(tmp_path: Path) -> None:
    x, n = np.arange(6, dtype="f4").reshape(3, 2), np.arange(3)
    np.savez(tmp_path / "in.npz", x=x, n=n)
    samples = files.load(tmp_path / "in.npz", [spec("f4", "N"), spec("i8", name="n")])
    assert [(sample["x"].tolist(), int(sample["n"])) for sample in samples] == [([0, 1], 0), ([2, 3], 1), ([4, 5], 2)]
    np.savez(tmp_path / "in.npz", x=x, n=n[:2])
    with pytest.raises(InputError, match="numbers of samples differ: x 3, n 2"):
        files.load(tmp_path / "in.npz", [spec("f4", "N"), spec("i8", name="n")])


def test_npz_that_does_not_fit_names_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.zeros(2))
    with pytest.raises(InputError, match=r"in\.npz, input 'x': is float64"):
        files.load(tmp_path / "in.npz", [spec("f4", 2)])
    np.savez(tmp_path / "in.npz", x=np.array(["a"], object))
    with pytest.raises(InputError, match=r"in\.npz, array 'x': .*save strings as numpy\.str_"):
        files.load(tmp_path / "in.npz", [spec("O", 1)])
    (tmp_path / "in.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"in\.npz: .*cannot be read"):
        files.load(tmp_path / "in.npz", [spec("f4", 2)])


FOLDERS = sorted(path.parent for path in SUITE.glob("*/model.onnx"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_folders_of_the_onnx_test_suite(folder: Path) -> None:
    made = ir.load(folder / "model.onnx")
    samples = files.load(folder, made)
    assert len(samples) == len(list(folder.glob("test_data_set_*")))
    assert [list(sample) for sample in samples] == [[each.name for each in inputs.specs(made)]] * len(samples)
    if made.opset_imports[""] >= 7:  # the oldest that ONNX Runtime has kernels for
        reference = Reference(folder / "model.onnx")
        for number, sample in enumerate(samples):
            for index, output in enumerate(reference.run(sample).values()):
                file = folder / f"test_data_set_{number}" / f"output_{index}.pb"
                expected = onnx.numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))
                np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-6)
    (one,) = files.load(folder / "test_data_set_0", made)
    assert all(np.array_equal(one[name], samples[0][name]) for name in one)


def test_folders_are_sorted_by_number(tmp_path: Path) -> None:
    wanted = [spec("f4", 1, name=f"x{index}") for index in range(11)]
    for data_set in range(11):
        folder = tmp_path / f"test_data_set_{data_set}"
        folder.mkdir()
        for index in range(11):
            tensor = onnx.numpy_helper.from_array(np.array([100 * data_set + index], "f4"))
            (folder / f"input_{index}.pb").write_bytes(tensor.SerializeToString())
    samples = files.load(tmp_path, wanted)
    assert [[int(sample[each.name][0]) for each in wanted] for sample in samples] == [
        [100 * data_set + index for index in range(11)] for data_set in range(11)
    ]
    with pytest.raises(InputError, match="has 11 input files .*the model takes 10 inputs"):
        files.load(tmp_path, wanted[:10])


def test_invalid_files(tmp_path: Path) -> None:
    wanted = [spec("f4", 1)]
    with pytest.raises(InputError, match="the file or folder does not exist"):
        files.load(tmp_path / "no.npz", wanted)
    (tmp_path / "in.txt").write_text("1")
    with pytest.raises(InputError, match=r"in\.txt: this is not a known format of inputs .inputs come as an \.npz"):
        files.load(tmp_path / "in.txt", wanted)
    with pytest.raises(InputError, match=r"has 0 input files \(none\)"):
        files.load(tmp_path, wanted)
    (tmp_path / "in.json").write_text('[{"x": {"polygraphy_class": ["ndarray"]}}]')
    with pytest.raises(InputError, match=r"in\.json: the class of a value"):
        files.load(tmp_path / "in.json", wanted)
    (tmp_path / "in.json").unlink()
    for data in (b"", b"\xff\xff"):
        (tmp_path / "input_0.pb").write_bytes(data)
        with pytest.raises(InputError, match=r"input_0\.pb: is no serialized tensor"):
            files.load(tmp_path, wanted)


@pytest.mark.slow
def test_many_arrays_that_are_no_inputs(tmp_path: Path) -> None:
    """Each is small enough to be read by mistake; together they are not."""
    path = tmp_path / "in.npz"
    np.savez_compressed(path, x=np.zeros(2, np.float32), **{f"a{index}": np.zeros(2**21, "f4") for index in range(9)})
    with pytest.raises(InputError, match="'a8': the array would inflate"):
        files.load(path, [spec("f4", 2)])


def test_a_string_that_is_not_utf8(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", t=np.array([b"\xff"]))
    with pytest.raises(InputError, match="UTF-8"):
        files.load(tmp_path / "in.npz", [spec(object, 1, name="t")])


def test_an_element_with_a_number_of_many_digits(tmp_path: Path) -> None:
    wanted = [TensorSpec("s", np.dtype("f4"), None, kind=Kind.SEQUENCE)]
    np.savez(tmp_path / "in.npz", **{f"s[{'1' * 5000}]": np.zeros(2, np.float32)})
    with pytest.raises(InputError):
        files.load(tmp_path / "in.npz", wanted)
