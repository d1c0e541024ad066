"""Shared memory that one side of a connection writes the arrays of its messages to, again and again.

The pages of a new memory file are made and mapped one by one, which takes several times as long as copying what is in
them. These stay. So what the other side reads there is only valid until it sends or receives the next message, unless
it is an answer: its arrays keep the memory that they lie in, and the next answer is written to another.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import os
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MOST = 1 << 28
"""The most bytes of a memory: they are held as long as the connection."""
MOST_MEMORIES = 3
"""For answers: two that arrays lie in, since one is often kept until the next has come, and one that is copied from."""
_LEAST_LENT = 1 << 16
"""An array of fewer bytes is copied: whoever keeps it would keep the whole memory."""
_STEP = 1 << 20
"""Sizes are a multiple of it."""
_FAILED, _MREMAP_MAYMOVE_FIXED = 2**64 - 1, 3
"""Of mmap(2) and mremap(2)."""


class ReusedMemory:
    """One side's view of it, and what the last message there was like.

    Attributes:
        text: the last message that was written, encoded, without the elements of its arrays.
        message: the last one that was read, without its arrays.
        wanted: the number of the memory that the last message wants an answer in; 0 for none.
        packet: what the last message was received in, if nothing refers to it.
    """

    _access = mmap.PROT_READ

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._entries: dict[str, Mapping[str, Any]] = {}
        self._arrays: dict[str, Array] = {}
        self.text = b""
        self.message: dict[str, Any] = {}
        self.wanted = 0
        self.packet: Array | None = None

    def grow(self, size: int) -> int | None:
        """Make room for some bytes; raises OSError if there is no memory.

        Returns:
            The descriptor of a new file for the other side, if there was too little memory.
        """
        if self._memory is not None and len(self._memory) >= size:
            return None
        descriptor = os.memfd_create("onnx-bridge-arrays", os.MFD_CLOEXEC)
        try:
            steps = -(-size // _STEP) or 1
            os.posix_fallocate(descriptor, 0, steps * _STEP)  # written by pages, the lack of one would kill
            self._memory = mmap.mmap(descriptor, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def map(self, descriptor: int) -> None:
        """Read from a file of the other side from now on."""
        self._memory = mmap.mmap(descriptor, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, self._access)

    def lay_out(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Find the places of arrays, which are as in `placed`."""
        assert self._memory is not None
        self._entries = {entry["name"]: entry for entry in entries}
        self._arrays = {name: placed(entry, self._memory) for name, entry in self._entries.items()}

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Write the elements of the arrays that were laid out, in C order."""
        for name, place in self._arrays.items():
            np.copyto(place, arrays[name])

    def read(self) -> dict[str, Array]:
        """Return the arrays that were laid out, with what the other side has written."""
        return self._arrays


class AnswerMemory(ReusedMemory):
    """Memory for answers, as the side sees it that asked; arrays that are read stay valid, and are writable.

    If it ``lends``, arrays may lie in it, rather than be copied.
    """

    _access = mmap.PROT_READ | mmap.PROT_WRITE

    def __init__(self, number: int, lends: bool) -> None:
        super().__init__()
        self.number = number
        self._lends = lends
        self._lent: list[weakref.ref[Array]] = []

    @property
    def is_lent(self) -> bool:
        """Return whether an array that lies here is in use; views of it keep it in use."""
        return any(reference() is not None for reference in self._lent)

    def read(self) -> dict[str, Array]:
        arrays, self._lent = {}, []
        for name, array in self._arrays.items():
            if self._lends and array.nbytes >= _LEAST_LENT:
                arrays[name] = self._lend(name)
            else:
                arrays[name] = array.copy()
        return arrays

    def make_private(self) -> None:
        """Replace what is shared by private memory with the same bytes, at the same address; raises OSError."""
        assert self._memory is not None
        address, size = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)), len(self._memory)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
        mapped = libc.mmap(None, size, self._access, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if mapped != _FAILED:
            ctypes.memmove(mapped, address, size)
            # at once, for threads that read it
            mapped = libc.mremap(mapped, size, size, _MREMAP_MAYMOVE_FIXED, address)
        if mapped == _FAILED:
            raise OSError(ctypes.get_errno(), "outputs that are kept stay shared with a fork")

    def _lend(self, name: str) -> Array:
        """Return an array that lies here, another one each time, so that it lives as long as it is used."""
        assert self._memory is not None
        array = placed(self._entries[name], self._memory)
        self._lent.append(weakref.ref(array))
        return array


class AnswerMemories:
    """The memories for the answers on a connection, as the side sees them that asks."""

    def __init__(self) -> None:
        self._memories: list[AnswerMemory] = []
        self._numbers = itertools.count(1)
        self._most_lent = MOST_MEMORIES - 1

    def free(self) -> AnswerMemory:
        """Return a memory that is not lent."""
        for memory in self._memories:
            if not memory.is_lent:
                return memory
        self._memories.append(AnswerMemory(next(self._numbers), lends=len(self._memories) < self._most_lent))
        return self._memories[-1]

    def prepare_fork(self) -> None:
        """Leave what is lent to its users, of whom there will be two; then everything is copied; raises OSError."""
        lent = [memory for memory in self._memories if memory.is_lent]
        if lent:
            self._memories, self._most_lent = [], 0
        for array in lent:
            array.make_private()


def placed(entry: Mapping[str, Any], memory: mmap.mmap | Array) -> Array:
    """Return an array in some memory; an entry has its name, the name of its dtype, its shape, and its offset."""
    return np.ndarray(tuple(entry["shape"]), _dtype(entry["dtype"]), memory, entry["offset"])


@functools.cache
def _dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name, of numpy or of ml_dtypes."""
    if hasattr(np, name):
        return np.dtype(name)
    import ml_dtypes  # MIGraphX's worker process, which never receives these, starts faster without it

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype
