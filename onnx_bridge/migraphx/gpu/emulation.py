"""Running a program for a GPU on the CPU: its kernels by the emulator, its matrix products by numpy.

The stub of the GPU's libraries calls the hooks of this module, in the process that has loaded MIGraphX. A product is
computed in the type that the call names, also if that is the wrong one.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from onnx_bridge.core.errors import NotEmulated
from onnx_bridge.emulation import errors
from onnx_bridge.emulation.comgr import Comgr
from onnx_bridge.emulation.emulator import Launch, Program

_TYPES = {0: "float32", 1: "float64", 2: "float16", 3: "int8", 8: "uint8", 10: "int32", 12: "uint32"}
_BFLOAT16, _FLOAT16 = 14, 2
_MOST_RANGES = 1 << 16


class _Launched(ctypes.Structure):
    _fields_ = (
        *(("code", c_void_p), ("code_size", c_size_t), ("kernel", c_char_p)),
        *(("threads", c_uint32 * 3), ("workgroup", c_uint32 * 3), ("lds", c_size_t)),
        *(("arguments", c_void_p), ("arguments_size", c_size_t), ("parameters", POINTER(c_void_p))),
    )


class _Matrix(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("type", c_int64), ("leading", c_int64), ("stride", c_int64))


class _Product(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("transpose_a", "transpose_b", "m", "n", "k", "batch", "compute", "scale")),
        *(("alpha", c_void_p), ("beta", c_void_p)),
        *((name, _Matrix) for name in "abcd"),
    )


_LaunchHook = CFUNCTYPE(c_int, POINTER(_Launched))
_ProductHook = CFUNCTYPE(c_int, POINTER(_Product))


class Emulation:
    """What carries out launches and products; `coverage` counts them since it was last read.

    Args:
        stub: the library of the stub, which the process has loaded.
    """

    def __init__(self, stub: Path) -> None:
        self._stub = ctypes.CDLL(str(stub))
        self._stub.gpustub_absent.restype = c_char_p
        self._disassemble = Comgr().disassemble
        self._programs: dict[bytes, Program] = {}
        self._counts: Counter[str] = Counter()
        self._running = False
        self._error: Exception | None = None
        self._hooks = _LaunchHook(self._launch), _ProductHook(self._multiply)
        self._stub.gpustub_set_launch_hook(self._hooks[0])
        self._stub.gpustub_set_product_hook(self._hooks[1])

    @contextmanager
    def running(self) -> Iterator[None]:
        """Carry out what is launched within the block; raises the error of a launch instead of MIGraphX's."""
        self._running, self._error = True, None
        try:
            yield
        finally:
            self._running = False
            if self._error is not None:
                raise self._error
            if (symbol := self._stub.gpustub_absent()) is not None:
                raise NotEmulated(f"not emulated: {symbol.decode()}")

    def coverage(self) -> dict[str, int]:
        """Return the numbers of launches, instructions of waves, and products since the last call."""
        counts, self._counts = self._counts, Counter()
        return dict(counts)

    def _launch(self, launched: Any) -> int:
        if not self._running:
            return 0
        return self._carried_out(lambda: self._compute(launched.contents))

    def _compute(self, launched: _Launched) -> None:
        data = ctypes.string_at(launched.code, launched.code_size)
        key = hashlib.sha256(data).digest()
        if key not in self._programs:
            self._programs[key] = Program(data, self._disassemble)
        program, name = self._programs[key], launched.kernel.decode()
        if launched.arguments is None:
            arguments = _packed(program, name, launched.parameters)
        else:
            arguments = ctypes.string_at(launched.arguments, launched.arguments_size)
        grid, size = ((axes[0], axes[1], axes[2]) for axes in (launched.threads, launched.workgroup))
        launch = Launch(grid, size, arguments, launched.lds, self._allocations())
        self._counts["instructions"] += program.launch(name, launch)
        self._counts["kernels"] += 1

    def _multiply(self, product: Any) -> int:
        if not self._running:
            return 0

        def work() -> None:
            multiply(product.contents)
            self._counts["products"] += 1

        return self._carried_out(work)

    def _carried_out(self, work: Callable[[], None]) -> int:
        try:
            work()
            return 0
        except errors.NotEmulated as error:
            self._error = self._error or NotEmulated(str(error))
        except Exception as error:  # nothing passes through MIGraphX's C++
            self._error = self._error or error
        return 1

    def _allocations(self) -> list[tuple[int, int]]:
        ranges = (c_uint64 * 2 * _MOST_RANGES)()
        count = self._stub.gpustub_allocations(ranges, c_size_t(_MOST_RANGES))
        return [(pair[0], pair[1]) for pair in ranges[:count]]


def _packed(program: Program, kernel: str, parameters: Any) -> bytes:
    """Return the arguments of a kernel, given a pointer to each, as they lie in its argument memory."""
    explicit = [a for a in program.code_object.kernels[kernel].arguments if not a.kind.startswith("hidden_")]
    memory = bytearray(max((argument.offset + argument.size for argument in explicit), default=0))
    for argument, address in zip(explicit, parameters, strict=False):
        memory[argument.offset : argument.offset + argument.size] = ctypes.string_at(address, argument.size)
    return bytes(memory)


def multiply(product: _Product) -> None:
    """Compute d = alpha · op(a) · op(b) + beta · c in the type that the product names."""
    compute = np.dtype(_dtype(product.compute))
    # half precision accumulates in float32, as the matrix units do
    accumulate = np.dtype(np.float32) if product.compute == _FLOAT16 else compute
    a = _values(product.a, product.m, product.k, product.batch, product.transpose_a)
    b = _values(product.b, product.k, product.n, product.batch, product.transpose_b)
    alpha, beta = (_scalar(address, product.scale) for address in (product.alpha, product.beta))
    with np.errstate(all="ignore"):
        result = np.matmul(a.astype(accumulate), b.astype(accumulate)) * alpha.astype(accumulate)
        if beta:
            c = _values(product.c, product.m, product.n, product.batch, 0)
            result = result + beta.astype(accumulate) * c.astype(accumulate)
        _store(product.d, product.m, product.n, product.batch, result.astype(accumulate))


def _scalar(address: int, type_: int) -> np.ndarray[Any, np.dtype[Any]]:
    dtype = np.dtype(_dtype(type_))
    return np.frombuffer(ctypes.string_at(address, dtype.itemsize), dtype)


def _dtype(type_: int) -> str:
    """Return the numpy dtype of a type as HIP numbers it; raises NotEmulated."""
    if type_ not in _TYPES:
        raise NotEmulated(f"not emulated: a matrix product of HIP's type {type_}")
    return _TYPES[type_]


def _view(matrix: _Matrix, rows: int, columns: int, batch: int, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a batch of matrices in memory, which lie column by column."""
    stride = matrix.stride if batch > 1 else 0
    elements = (batch - 1) * stride + (columns - 1) * matrix.leading + rows
    memory = (ctypes.c_uint8 * (elements * dtype.itemsize)).from_address(matrix.data)
    strides = (stride * dtype.itemsize, dtype.itemsize, matrix.leading * dtype.itemsize)
    return np.ndarray((batch, rows, columns), dtype, memory, strides=strides)


def _values(matrix: _Matrix, rows: int, columns: int, batch: int, transposed: int) -> np.ndarray[Any, np.dtype[Any]]:
    shape = (columns, rows) if transposed else (rows, columns)
    if matrix.type == _BFLOAT16:
        bits = _view(matrix, *shape, batch, np.dtype(np.uint16)).astype(np.uint32)
        values = (bits << 16).view(np.float32)
    else:
        values = _view(matrix, *shape, batch, np.dtype(_dtype(matrix.type)))
    return values.swapaxes(1, 2) if transposed else values


def _store(matrix: _Matrix, rows: int, columns: int, batch: int, values: np.ndarray[Any, np.dtype[Any]]) -> None:
    if matrix.type == _BFLOAT16:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        nearest = bits + 0x7FFF + (bits >> 16 & 1)
        nearest = np.where(np.isnan(values), bits | 0x400000, nearest)
        _view(matrix, rows, columns, batch, np.dtype(np.uint16))[...] = (nearest >> 16).astype(np.uint16)
    else:
        dtype = np.dtype(_dtype(matrix.type))
        _view(matrix, rows, columns, batch, dtype)[...] = values.astype(dtype)
