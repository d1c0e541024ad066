"""Shared memory that one side of a connection writes the arrays of its messages to, again and again.

The pages of a new memory file are made and mapped one by one, which takes several times as long as copying what is in
them. These stay. So what the other side reads there is only valid until it sends or receives the next message, unless
it is an answer: its arrays keep the memory that they lie in, and the next answer is written to another.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MOST = 1 << 28
"""The most bytes of one: they are held as long as the connection."""
MOST_MEMORIES = 3
"""For answers: two that arrays lie in, since one is often kept until the next has come, and one that is copied from."""
_LEAST_LENT = 1 << 16
"""Fewer bytes are copied: whoever keeps them would keep whole pages."""
_STEP = 1 << 20
"""Sizes are a multiple of it."""


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
        self._entries: Sequence[Mapping[str, Any]] = []
        self._arrays: dict[str, Array] = {}
        self.text = b""
        self.message: dict[str, Any] = {}
        self.wanted = 0
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
        self._memory = mmap.mmap(descriptor, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, self._access)

    def lay_out(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Find the places of arrays, which are as in `placed`."""
        self._entries, self._arrays = entries, self._placed(entries)

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Write the elements of the arrays that were laid out, in C order."""
        for name, place in self._arrays.items():
            np.copyto(place, arrays[name])

    def read(self) -> dict[str, Array]:
        """The arrays that were laid out, with what the other side has written."""
        return self._arrays

    def _placed(self, entries: Iterable[Mapping[str, Any]]) -> dict[str, Array]:
        assert self._memory is not None
        return {each["name"]: placed(each, self._memory) for each in entries}


class AnswerMemory(ReusedMemory):
    """Memory for answers, as the side sees it that asked; arrays that are read stay valid, and are writable.

    Args:
        number: of this memory.
        lends: whether arrays may lie in it, rather than be copied.
    """

    _access = mmap.PROT_READ | mmap.PROT_WRITE

    def __init__(self, number: int, lends: bool) -> None:
        super().__init__()
        self.number, self.lends = number, lends
        self._lent: list[weakref.ref[Array]] = []

    @property
    def is_lent(self) -> bool:
        """Whether an array that lies here is in use; views of it keep it in use."""
        return any(each() is not None for each in self._lent)

    def read(self) -> dict[str, Array]:
        if not self.lends or sum(each.nbytes for each in self._arrays.values()) < _LEAST_LENT:
            return {name: each.copy() for name, each in self._arrays.items()}
        arrays = self._placed(self._entries)
        self._lent = list(map(weakref.ref, arrays.values()))
        return arrays


class AnswerMemories:
    """The memories for the answers on a connection, as the side sees them that asks."""

    def __init__(self) -> None:
        self._memories: list[AnswerMemory] = []
        self._numbers = itertools.count(1)

    def free(self) -> AnswerMemory:
        """One that is not lent."""
        for each in self._memories:
            if not each.is_lent:
                return each
        made = AnswerMemory(next(self._numbers), lends=len(self._memories) < MOST_MEMORIES - 1)
        self._memories.append(made)
        return made

    def give_away_lent(self) -> None:
        """Leave what is lent to its users for ever: a fork cannot say that it still needs it."""
        self._memories = [each for each in self._memories if each.lends and not each.is_lent]


def placed(entry: Mapping[str, Any], memory: mmap.mmap | Array) -> Array:
    """The array at a place in some memory: an entry has its name, the name of its dtype, its shape, and its offset."""
    return np.ndarray(tuple(entry["shape"]), _dtype(entry["dtype"]), memory, entry["offset"])


@functools.cache
def _dtype(name: str) -> np.dtype[Any]:
    """The dtype of a name, of numpy or of ml_dtypes."""
    if hasattr(np, name):
        return np.dtype(name)
    import ml_dtypes  # MIGraphX's worker process, which never receives these, starts faster without it

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype
