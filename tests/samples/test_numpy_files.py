"""Files of numpy that lie, and those that are not what their names say: one error each, before memory is taken."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from onnx_bridge.core.errors import InputError
from onnx_bridge.samples import files
from onnx_bridge.samples.inputs import TensorSpec
from passes.core.numpy_files import read_npy, read_npz, write_npz


def header(descr: str, shape: str, data: bytes = b"") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def npz(**members: bytes) -> io.BytesIO:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_npy", ".npy"), content)
    stream.seek(0)
    return stream


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (header("'>f4'", "(1,)", b"abcd"), "big-endian"),
        (header("'|O'", "(1,)", b"abcd"), "Python objects"),
        (header("[('a', '<f4')]", "(1,)", b"abcd"), "not numbers"),
        (header("'<f4'", f"({2**62},)"), "its header says"),
        (header("'<f4'", "(-1,)"), r"\[-1\]"),
        (header("'<f4'", "(2,)", b"abcd"), "its header says 8 bytes"),
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
    """256 MiB of zeros are small in the file: the shape is refused by the header, with no memory for the elements."""
    with zipfile.ZipFile(tmp_path / "in.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("x.npy", header("'<f4'", f"({2**26},)", bytes(2**28)))
    wanted = [TensorSpec("x", np.dtype(np.float32), (2, 3))]
    with pytest.raises(InputError, match=r"\[67108864\].*takes \[2, 3\]"):
        files.read(tmp_path / "in.npz", wanted)


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
