"""Files of numpy that lie, and those that are not what their names say: one error each, before memory is taken."""

from __future__ import annotations

import base64
import io
import json
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from onnx_bridge.core.errors import InputError
from onnx_bridge.parity.bisect.expected_outputs import read_expected_outputs
from onnx_bridge.requests import texts
from onnx_bridge.samples import files
from onnx_bridge.samples.dataset import Dataset
from onnx_bridge.samples.inputs import TensorSpec
from passes.isolation.numpy_files import read_npy, read_npz, write_npz


def header(descr: str, shape: str, data: bytes = b"") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def npz(**members: bytes) -> io.BytesIO:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_npy", ".npy"), content)
    stream.seek(0)
    return stream


ZEROS = header("'<f4'", f"({2**24 + 2**20},)", bytes(2**26 + 2**22))
SMALL = header("'<f4'", "(2, 3)", bytes(24))
INFLATED = "the array would inflate to 71,303,168 bytes"
X = TensorSpec("x", np.dtype(np.float32), (2, 3))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (header("'>f4'", "(1,)", b"abcd"), "big-endian"),
        (header("'|O'", "(1,)", b"abcd"), "Python objects"),
        (header("[('a', '<f4')]", "(1,)", b"abcd"), "not numbers"),
        (header("'<f4'", f"({2**62},)"), "the header says"),
        (header("'<f4'", "(-1,)"), r"\[-1\]"),
        (header("'<f4'", "(2,)", b"abcd"), "the header says 8 bytes"),
        (header("'<f4'", "x"), "not an .npy"),
        (header("[" * 3000, "(1,)"), "not an .npy"),
        (b"\x93NUMPY\x09\x00", "not an .npy"),
        (b"", "not an .npy"),
    ],
)
def test_arrays(content: bytes, says: str) -> None:
    for read in (lambda: read_npy(io.BytesIO(content), "a"), lambda: read_npz(npz(x_npy=content), "a")):
        with pytest.raises(InputError, match=says) as caught:
            read()
        assert "\n" not in str(caught.value)


def test_archives() -> None:
    good = header("'<f4'", "(1,)", b"abcd")
    assert read_npz(npz(x_npy=good), "a")["x"].shape == (1,)
    for broken in (npz(x=good), io.BytesIO(b"nothing"), io.BytesIO(npz(x_npy=good).getvalue()[:-30])):
        with pytest.raises(InputError):
            read_npz(broken, "a")
    whole = bytearray(npz(x_npy=good).getvalue())
    whole[40] ^= 0xFF  # in the content: its checksum does not fit
    with pytest.raises(InputError, match=r"cannot be read as \.npz|not an \.npy"):
        read_npz(io.BytesIO(whole), "a")


def test_what_the_model_does_not_take_is_not_read(tmp_path: Path) -> None:
    """Many zeros are small in the file: they are refused by the header, with no memory for the elements."""
    (tmp_path / "in.npz").write_bytes(npz(x_npy=ZEROS).getvalue())
    with pytest.raises(InputError, match=INFLATED):
        files.load(tmp_path / "in.npz", [X])


def test_what_is_written_is_read_back() -> None:
    arrays = {
        "file": np.arange(6.0).reshape(2, 3).T,
        "scalar": np.array(3),
        "text": np.array([["a", "bé"]], object),
        "none": np.zeros((0, 2), object),
    }
    file = io.BytesIO()
    write_npz(file, arrays)
    file.seek(0)
    found = read_npz(file, "it")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
    assert found["text"].dtype.kind == "U"
    assert found["file"].flags.c_contiguous


@pytest.mark.parametrize(
    ("descr", "shape"),
    [("'<U0'", "(10**11,)"), ("'|S0'", "(10**11,)"), ("'|V0'", "(10**11,)"), ("'<f4'", "(10**11, 0)")],
)
def test_rows_without_bytes(descr: str, shape: str) -> None:
    """A file of 80 bytes says that there are a hundred billion of them."""
    with pytest.raises(InputError):
        read_npy(io.BytesIO(header(descr, shape.replace("10**11", str(10**11)))), "x.npy")


def test_a_name_that_is_there_twice() -> None:
    """Each of 65,535 entries may be the same bytes, inflated anew."""
    stream = npz(x_npy=header("'<f4'", "(1,)", bytes(4)))
    with zipfile.ZipFile(stream, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(archive.infolist()[0].filename, header("'<f4'", "(1,)", bytes(4)))
    with pytest.raises(InputError, match="two arrays"):
        read_npz(stream, "x.npz")


@pytest.mark.parametrize("shape", [None, (None,), ("n",)])
@pytest.mark.slow
def test_an_open_size(tmp_path: Path, shape: tuple[str | None] | None) -> None:
    wanted = [TensorSpec("x", np.dtype(np.float32), shape)]
    (tmp_path / "in.npz").write_bytes(npz(x_npy=ZEROS).getvalue())
    with pytest.raises(InputError, match=INFLATED):
        files.load(tmp_path / "in.npz", wanted)
    np.savez(tmp_path / "in.npz", x=np.zeros(2**24 + 2**20, np.float32))  # the file is as large
    files.load(tmp_path / "in.npz", wanted)


def test_what_the_model_takes_may_be_inflated(tmp_path: Path) -> None:
    (tmp_path / "in.npz").write_bytes(npz(x_npy=ZEROS).getvalue())
    (sample,) = files.load(tmp_path / "in.npz", [TensorSpec("x", np.dtype(np.float32), (2**24 + 2**20,))])
    assert np.shape(sample["x"]) == (2**24 + 2**20,)


def test_labels(tmp_path: Path) -> None:
    (tmp_path / "in.npz").write_bytes(npz(x_npy=SMALL, label_npy=ZEROS).getvalue())
    with pytest.raises(InputError, match=f"'label': {INFLATED}"):
        list(Dataset(tmp_path / "in.npz", [X]))


def test_an_archive_in_polygraphys_json(tmp_path: Path) -> None:
    """Its arrays are not compressed; those of a file have no memory to spare."""
    content = npz(x_npy=header("'<f4'", f"({2**20},)", bytes(2**22))).getvalue()
    array = {"array": base64.b64encode(content).decode(), "polygraphy_class": "ndarray"}
    (tmp_path / "in.json").write_text(json.dumps([{"x": array}]))
    with pytest.raises(InputError, match="the array would inflate to 4,194,304 bytes"):
        files.load(tmp_path / "in.json", [TensorSpec("x", np.dtype(np.float32), (None,))])


def test_a_long_header() -> None:
    """It would be inflated as a whole before numpy says that it is too long."""
    content = b"\x93NUMPY\x02\x00" + (2**26).to_bytes(4, "little") + bytes(2**26)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"not an \.npy"):
        read_npz(npz(x_npy=content), "a")
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    path.write_bytes(npz(x_npy=SMALL, y_npy=b"nothing", z_npy=ZEROS).getvalue())
    values = texts.values_of("--freeze", "k=[5]")
    assert values([f"x=@{path}"]) == {"x": "[[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]"}
    with pytest.raises(InputError, match="there are x, y, z"):
        values([f"other=@{path}"])
    with pytest.raises(InputError, match=INFLATED):
        values([f"z=@{path}"])


def test_expected_outputs(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    path.write_bytes(npz(x_npy=SMALL, z_npy=ZEROS).getvalue())
    x, z = np.ones((2, 3), np.float32), np.ones(2**24 + 2**20, np.float32)
    with pytest.raises(InputError, match=f"'z': {INFLATED}"):
        read_expected_outputs(path, [{"x": x}])
    (found,) = read_expected_outputs(path, [{"x": x, "z": z}])
    assert found.keys() == {"x", "z"}


def test_a_large_dataset_of_a_model_with_a_batch(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.zeros((2**20, 6), np.float32))
    assert len(list(Dataset(tmp_path / "in.npz", [TensorSpec("x", np.dtype(np.float32), (2**18, 6))]))) == 4
