"""multiply-dft and multiply-stft, compared with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.math.fourier import Transform, multiply_dft, multiply_stft
from tests.passes.device import Device
from tests.passes.harness import Array, operators
from tests.passes.legalize.indexing import declared, left, legal


def signal(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
def test_transforms(device: Device, parts: int, inverse: int, dtype: str) -> None:
    x = signal(2, 5, parts, dtype=dtype)
    y = declared("y", signal(2, 5, 2, dtype=dtype))
    result = legal(multiply_dft, device, f"y = DFT<inverse = {inverse}>(x)", {"x": x}, y, opset=20)
    assert operators(result.model) == ["Reshape", "MatMul", "Reshape"]


def test_half_spectra_and_back(device: Device) -> None:
    y = "float[2,4,2] y"
    legal(multiply_dft, device, "y = DFT<onesided = 1>(x)", {"x": signal(2, 7, 1)}, y, opset=20)
    nodes = "y = DFT<onesided = 1, inverse = 1>(x)"
    legal(multiply_dft, device, nodes, {"x": signal(2, 4, 2)}, "float[2,6,1] y", opset=20)
    nodes = "y = DFT<onesided = 1, inverse = 1>(x, n)"
    legal(multiply_dft, device, nodes, {"x": signal(2, 4, 2)}, "float[2,7,1] y", opset=20, n=np.array(7))


@pytest.mark.parametrize(("opset", "nodes"), [(17, "y = DFT(x)"), (20, "y = DFT(x, , a)")])
def test_the_axis_by_opset(device: Device, opset: int, nodes: str) -> None:
    constants = {} if opset == 17 else {"a": np.array(-3)}
    x = signal(2, 4, 3, 2)
    result = legal(multiply_dft, device, nodes, {"x": x}, "float[2,4,3,2] y", opset=opset, **constants)
    assert operators(result.model) == ["Transpose", "Reshape", "MatMul", "Reshape", "Transpose"]


@pytest.mark.parametrize("length", [3, 5, 8])
def test_signals_are_cut_or_padded(device: Device, length: int) -> None:
    y = f"float[2,{length},2] y"
    result = legal(multiply_dft, device, "y = DFT(x, n)", {"x": signal(2, 5, 1)}, y, n=np.array(length))
    assert ("Slice" in operators(result.model)) == (length < 5)


def test_a_length_that_the_output_tells(device: Device) -> None:
    inputs = {"x": signal(2, 5, 1), "n": np.array(6)}
    legal(multiply_dft, device, "y = DFT(x, n)", inputs, "float[2,6,2] y")


@pytest.mark.parametrize("length", [1, 16, 241, 1000])
def test_angles_stay_exact(length: int) -> None:
    x = signal(length, 2, dtype="float64")
    number = x[:, 0] + 1j * x[:, 1]
    for inverse, transform in ((False, np.fft.fft), (True, np.fft.ifft)):
        matrix = Transform(length, length, 2, inverse=inverse).matrix()
        y = np.tensordot(x, matrix)
        np.testing.assert_allclose(y[:, 0] + 1j * y[:, 1], transform(number), atol=1e-12)


def test_unsupported_transforms() -> None:
    dft = "y = DFT<axis = 1, onesided = 1>(x)"
    (reason,) = left(multiply_dft, f"(float[2,5,2] x) => (float[a,b,c] y) {{ {dft} }}")
    assert reason == "the standard defines no one-sided spectrum of complex input"
    text = "(float[2,5,2] x) => (float[a,b,c] y) { y = DFT<axis = 1, onesided = 1, inverse = 1>(x, n) }"
    (reason,) = left(multiply_dft, text, n=np.array(6))
    assert reason == "ONNX Runtime deviates from the standard for half a spectrum of 6 with 5 elements"
    text = "(float[2,5,1] x, int64 n) => (float[a,b,c] y) { y = DFT(x, n) }"
    (reason,) = left(multiply_dft, text)
    assert reason == "the dft_length is not constant: freeze it with --freeze n=VALUE"
    text = "(float[2,5,1] x, int64 k) => (float[a,b,c] y) { y = DFT(x, , k) }"
    (reason,) = left(multiply_dft, text, opset=20)
    assert reason == "the axis is not constant: freeze it with --freeze k=VALUE"
    (reason,) = left(multiply_dft, "(float[n,5,1] x) => (float[n,b,c] y) { y = DFT(x) }")
    assert "freeze the dimensions" in reason
    (reason,) = left(multiply_dft, "(float[1,9000,2] x) => (float[1,b,c] y) { y = DFT(x) }")
    assert reason == "the matrix would have 324000000 elements"


STEP = np.array(3)


@pytest.mark.parametrize("onesided", [0, 1])
def test_frames_with_a_constant_window(device: Device, onesided: int) -> None:
    y = f"float[2,5,{4 if onesided else 6},2] y"
    nodes, window = f"y = STFT<onesided = {onesided}>(x, step, w)", signal(6, seed=1)
    result = legal(multiply_stft, device, nodes, {"x": signal(2, 20, 1)}, y, step=STEP, w=window)
    assert operators(result.model) == ["Reshape", "Gather", "Reshape", "MatMul", "Reshape"]


def test_frames_with_a_computed_window(device: Device) -> None:
    nodes, inputs = "y = STFT(x, step, w, n)", {"x": signal(2, 20, 1), "w": signal(6, seed=1)}
    result = legal(multiply_stft, device, nodes, inputs, "float[2,5,4,2] y", step=STEP, n=np.array(6))
    assert "Mul" in operators(result.model)


def test_frames_without_a_window(device: Device) -> None:
    nodes = "y = STFT<onesided = 0>(x, step, , n)"
    x = signal(2, 20, 2)
    legal(multiply_stft, device, nodes, {"x": x}, "float[2,5,6,2] y", step=STEP, n=np.array(6))


def test_unsupported_frames() -> None:
    (reason,) = left(multiply_stft, "(float[2,20,1] x, int64 s) => (float[2,a,b,2] y) { y = STFT(x, s, , n) }", n=STEP)
    assert reason == "the frame_step is not constant: freeze it with --freeze s=VALUE"
    text = "(float[2,20,1] x, int64 n) => (float[2,a,b,2] y) { y = STFT(x, step, , n) }"
    (reason,) = left(multiply_stft, text, step=STEP)
    assert reason == "the frame_length is not constant: freeze it with --freeze n=VALUE"
    text = "(float[2,20,2] x, float[6] w) => (float[2,a,b,2] y) { y = STFT(x, step, w) }"
    (reason,) = left(multiply_stft, text, step=STEP)
    assert reason == "the standard defines no one-sided spectrum of complex input"


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_transform(device: Device, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    axis = data.draw(st.integers(0, len(sizes) - 1))
    inverse, onesided = data.draw(st.booleans()), data.draw(st.booleans())
    parts = (2 if inverse else 1) if onesided else data.draw(st.sampled_from([1, 2]))
    length = data.draw(st.none() | st.integers(1, 9))
    if inverse and onesided:
        length = data.draw(st.integers(1, 9))
        sizes[axis] = length // 2 + 1
    count = length or sizes[axis]
    shape = [*sizes, 1 if inverse and onesided else 2]
    shape[axis] = count // 2 + 1 if onesided and not inverse else count
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    x = signal(*sizes, parts, dtype=dtype)
    attributes = f"inverse = {int(inverse)}, onesided = {int(onesided)}"
    constants = {"n": np.array(count)}
    written = axis - len(shape) * data.draw(st.booleans())
    y = declared("y", signal(*shape, dtype=dtype))
    if data.draw(st.booleans()):
        constants["a"] = np.array(written)
        legal(multiply_dft, device, f"y = DFT<{attributes}>(x, n, a)", {"x": x}, y, opset=20, **constants)
    else:
        legal(
            multiply_dft, device, f"y = DFT<axis = {written}, {attributes}>(x, n)", {"x": x}, y, opset=17, **constants
        )
