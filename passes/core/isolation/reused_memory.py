"""Shared memory that one side of a connection writes the arrays of its messages to, again and again.

The pages of a new memory file are made and mapped one by one, which takes several times as long as copying what is in
them. These stay. So what the other side reads there is only valid until it sends or receives the next message.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MOST = 1 << 28
"""The most bytes: they are held as long as the connection."""
_STEP = 1 << 20
"""Sizes are a multiple of it."""


class ReusedMemory:
    """One side's view of it.

    Args:
        copies: whether to read copies, which stay valid.

    Attributes:
        wanted: whether the last message asked for an answer in such memory.
    """

    def __init__(self, *, copies: bool = False) -> None:
        self._memory: mmap.mmap | None = None
        self._copies = copies
        self.wanted = False

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
            os.posix_fallocate(descriptor, 0, -(-size // _STEP) * _STEP)  # written by pages, the lack of one would kill
            self._memory = mmap.mmap(descriptor, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def map(self, descriptor: int) -> None:
        """Read from a file of the other side from now on."""
        self._memory = mmap.mmap(descriptor, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)

    def write(self, array: Array, offset: int) -> None:
        """Write an array, in C order."""
        assert self._memory is not None
        memory = np.frombuffer(self._memory, array.dtype, array.size, offset)
        np.copyto(memory.reshape(array.shape), array)

    def read(self, dtype: np.dtype[Any], shape: Sequence[int], offset: int) -> Array:
        """An array that the other side has written."""
        assert self._memory is not None
        array = np.frombuffer(self._memory, dtype, math.prod(shape), offset).reshape(shape)
        return array.copy() if self._copies else array
