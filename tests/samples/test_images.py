"""Images as inputs, calibration data and datasets: their folders, labels, sizes and dtypes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from onnx_bridge.core.errors import InputError
from onnx_bridge.samples import files
from onnx_bridge.samples.dataset import Dataset
from onnx_bridge.samples.inputs import TensorSpec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two images of zebras and one of an ape, 8 × 6 pixels, all of one value each."""
    for name, value in (("zebra/0", 10), ("zebra/1", 20), ("ape/0", 30)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((6, 8, 3), value, np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "images.toml").write_text('scale = 1\nmean = 0\nstd = 1\nclasses = ["zebra", "ape"]\n')
    return tmp_path


def spec(*shape: int | str, dtype: str = "f4") -> TensorSpec:
    return TensorSpec("x", np.dtype(dtype), shape)


@pytest.mark.parametrize(("classes", "labels"), [('["zebra", "ape"]', [1, 0, 0]), ('"sorted"', [0, 1, 1])])
def test_the_folder_of_an_image_is_its_label(folder: Path, classes: str, labels: list[int]) -> None:
    (folder / "images.toml").write_text(f"scale = 1\nmean = 0\nstd = 1\nclasses = {classes}\n")
    samples = list(Dataset(folder, [spec("batch", 3, 4, 4)]))
    assert [int(label[0]) for _, label in samples if label is not None] == labels
    assert [float(np.mean(sample["x"])) for sample, _ in samples] == [30, 10, 20]  # type: ignore[arg-type]


def test_a_folder_that_is_no_class(folder: Path) -> None:
    (folder / "images.toml").write_text('classes = ["zebras", "ape"]')
    with pytest.raises(InputError, match="did you mean zebras"):
        list(Dataset(folder, [spec(1, 3, 4, 4)]))


@pytest.mark.parametrize(
    ("wanted", "name", "shape"),
    [
        (spec(1, 3, 4, 4), "", (1, 3, 4, 4)),
        (spec(1, 4, 4, 1), "ape", (1, 4, 4, 1)),
        (spec("N", 3, "height", "width"), "zebra/0.png", (1, 3, 6, 8)),
        (spec(1, 4, 5, 3, dtype="u1"), "zebra/0.png", (1, 4, 5, 3)),
    ],
)
def test_inputs_from_images(folder: Path, wanted: TensorSpec, name: str, shape: tuple[int, ...]) -> None:
    samples = files.load(folder / name, [wanted])
    assert len(samples) == (3 if not name else 1)
    array = samples[-1]["x"]
    assert isinstance(array, np.ndarray)
    assert (array.shape, array.dtype) == (shape, wanted.dtype)
    assert name != "zebra/0.png" or np.unique(array).tolist() == [10]  # by the rules of the folder above


def test_a_batch_is_not_filled_up_with_the_same_images(folder: Path) -> None:
    with pytest.raises(InputError, match="3 images.*not a multiple of the model's batch of 2"):
        files.load(folder, [spec(2, 3, 4, 4)])
    assert len(files.load(folder, [spec(2, 3, 4, 4)], count=1)) == 1


def test_arrays_and_protobufs_come_before_images(folder: Path) -> None:
    np.savez(folder / "a.npz", np.ones((1, 3, 4, 4), np.float32))
    (sample,) = files.load(folder, [spec(1, 3, 4, 4)])
    assert isinstance(sample["x"], np.ndarray)
    assert sample["x"].all()
