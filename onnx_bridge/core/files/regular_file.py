"""Opening files that come from others: a named pipe would block, a device would never end.

Symbolic links are followed; what they lead to must be a regular file.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader

LARGE = 1 << 32
"""The most bytes of inputs and journals that are read as a whole; `read_regular` reads less unless it is asked to."""


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file for reading, in binary mode; raises OSError if it cannot be opened, or is not a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "the path is not a regular file", os.fspath(path))


def read_regular(path: str | os.PathLike[str], most: int = 1 << 28) -> bytes:
    """Return the content of a file of at most ``most`` bytes.

    Raises OSError if it cannot be read, is not a regular file, or is too large.
    """
    with open_regular(path) as file:
        size = min(os.fstat(file.fileno()).st_size, most)
        content = file.read(size + 1)
        while size < len(content) <= most:  # it grew
            size = len(content)
            content += file.read(min(size, most - size) + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"the file has more than {most >> 20} MiB", os.fspath(path))
    return content
