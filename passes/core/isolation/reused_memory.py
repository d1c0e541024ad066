"""Shared memory that one side of a connection writes the arrays of its messages to, again and again.

The pages of a new memory file are made and mapped one by one, which takes several times as long as copying what is in
them. These stay. So what the other side reads there is only valid until it sends or receives the next message.
"""

from __future__ import annotations

import functools
import math
import mmap
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MOST = 1 << 28
"""The most bytes: they are held as long as the connection."""
_STEP = 1 << 20
"""Sizes are a multiple of it."""


class ReusedMemory:
    """One side's view of it, and what the last message there was like.

    Args:
        copies: whether to read copies, which stay valid.

    Attributes:
        text: the last message that was written, encoded, without the elements of its arrays.
        message: the last one that was read, without its arrays.
        wanted: whether the last message asked for an answer in such memory.
        packet: what the last message was received in, if nothing refers to it.
    """

    def __init__(self, *, copies: bool = False) -> None:
        self._memory: mmap.mmap | None = None
        self._copies = copies
        self._arrays: dict[str, Array] = {}
        self.text = b""
        self.message: dict[str, Any] = {}
        self.wanted = False
        self.packet: Array | None = None

    def grow(self, size: int) -> int | None:
        """Make room for some bytes.

        Returns:
            The descriptor of a new file, for the other side, where there was too little.

        Raises:
            OSError: there is no memory.
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
        self._memory = mmap.mmap(descriptor, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)

    def lay_out(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Find the places of arrays, which are as in `placed`."""
        assert self._memory is not None
        self._arrays = {each["name"]: placed(each, self._memory) for each in entries}

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Write the elements of the arrays that were laid out, in C order."""
        for name, place in self._arrays.items():
            np.copyto(place, arrays[name])

    def read(self) -> dict[str, Array]:
        """The arrays that were laid out, with what the other side has written."""
        return {name: each.copy() if self._copies else each for name, each in self._arrays.items()}


def placed(entry: Mapping[str, Any], memory: mmap.mmap | Array) -> Array:
    """The array at a place in some memory: an entry has its name, the name of its dtype, its shape, and its offset."""
    shape = entry["shape"]
    return np.frombuffer(memory, _dtype(entry["dtype"]), math.prod(shape), entry["offset"]).reshape(shape)


@functools.cache
def _dtype(name: str) -> np.dtype[Any]:
    """The dtype of a name, of numpy or of ml_dtypes."""
    if hasattr(np, name):
        return np.dtype(name)
    import ml_dtypes  # MIGraphX's worker process, which never receives these, starts faster without it

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype
