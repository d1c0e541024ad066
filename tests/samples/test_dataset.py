"""Datasets: samples with labels, read one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_bridge.core.errors import InputError
from onnx_bridge.samples import files
from onnx_bridge.samples.dataset import Dataset
from onnx_bridge.samples.inputs import TensorSpec

SPECS = [TensorSpec("x", np.dtype(np.float32), (2, 3))]
ROWS = np.arange(18, dtype=np.float32).reshape(6, 3)


def read(source: Any, limit: int | None = None) -> list[tuple[list[float], list[int] | None]]:
    """The first column of each sample, and its labels."""
    return [
        (np.asarray(sample["x"])[:, 0].tolist(), None if label is None else label.tolist())
        for sample, label in Dataset(source, SPECS, limit)
    ]


BATCHES = [([0.0, 3.0], [5, 4]), ([6.0, 9.0], [3, 2]), ([12.0, 15.0], [1, 0])]
LABELS = np.array([5, 4, 3, 2, 1, 0])


def test_one_file_of_all_rows(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=ROWS, label=LABELS)
    assert read(tmp_path / "all.npz") == BATCHES
    assert read(tmp_path / "all.npz", limit=2) == BATCHES[:2]


def test_one_file_of_stacked_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=ROWS.reshape(3, 2, 3), label=LABELS.reshape(3, 2))
    assert read(tmp_path / "all.npz") == BATCHES


@pytest.mark.parametrize("ending", ["npz", "npy"])
def test_a_folder_with_a_file_for_each(tmp_path: Path, ending: str) -> None:
    for index in range(3):
        rows = slice(2 * index, 2 * index + 2)
        if ending == "npz":
            np.savez(tmp_path / f"{index}.npz", x=ROWS[rows], label=LABELS[rows])
        else:
            np.save(tmp_path / f"{index}.npy", ROWS[rows])
    assert read(tmp_path) == [(x, label if ending == "npz" else None) for x, label in BATCHES]
    assert Dataset(tmp_path, SPECS).count == 3


def test_a_script(tmp_path: Path) -> None:
    script = tmp_path / "data.py"
    script.write_text(
        "import numpy as np\ndef load_data():\n    while True: yield {'x': np.ones((2, 3), 'f')}, [1, 2]\n"
    )
    assert read(script, limit=3) == [([1.0, 1.0], [1, 2])] * 3


def test_samples_are_read_one_at_a_time() -> None:
    taken = []

    def samples() -> Iterator[dict[str, Any]]:
        for index in range(1000):
            taken.append(index)
            yield {"x": ROWS[:2]}

    next(iter(Dataset(samples, SPECS)))
    assert taken == [0]


@pytest.mark.parametrize(
    ("shapes", "sizes", "samples"),
    [
        ([("batch", 3)], [(4, 3)], 4),
        ([(2, 3)], [(2, 3), (2, 3)], 4),
        ([("N", 3), ("N",)], [(4, 3), (4,)], 4),
        ([("sequence", 3)], [(4, 3)], 1),
        ([("batch", 3), (5, 5)], [(4, 3), (5, 5)], 1),
        ([()], [()], 1),
    ],
)
def test_samples_are_counted_in_batches(shapes: Any, sizes: Any, samples: int) -> None:
    specs = [TensorSpec(f"x{number}", np.dtype(np.float32), shape) for number, shape in enumerate(shapes)]
    given = [sizes[index : index + len(specs)] for index in range(0, len(sizes), len(specs))]
    batches = [{f"x{number}": np.zeros(size, "f4") for number, size in enumerate(batch)} for batch in given]
    assert files.count(batches, specs) == samples


@pytest.mark.parametrize(
    "source",
    [
        [],
        [{"x": ROWS[:3]}],
        [{"y": ROWS[:2]}],
        [({"x": ROWS[:2]}, [0.5, 1.0])],
        [({"x": ROWS[:2]}, [0], "more")],
        Path("nowhere"),
    ],
)
def test_what_is_no_dataset(source: Any) -> None:
    with pytest.raises(InputError):
        read(source)
