"""Messages between a worker process and its parent: JSON over a socket, tensors in anonymous memory files.

A message is a dict of JSON values; with it travel tensors by name. Their bytes lie one after the other in a memfd whose
descriptor is sent along, so nothing is pickled, nothing touches /dev/shm, and the receiver maps instead of copying.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnx_bridge.migraphx.program import STORAGE, Tensor

_HEADER = struct.Struct("<Q")
_ALIGNMENT = 64


def send(connection: socket.socket, message: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Send one message.

    Raises:
        OSError: the other side is gone, or there is no memory for the tensors.
    """
    entries: list[dict[str, Any]] = []
    descriptor = None
    if tensors:
        descriptor, entries = _pack(tensors)
    try:
        body = json.dumps({"message": message, "tensors": entries}).encode()
        head = _HEADER.pack(len(body))
        if descriptor is None:
            connection.sendall(head + body)
        else:
            socket.send_fds(connection, [head], [descriptor])
            connection.sendall(body)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def receive(connection: socket.socket) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Receive one message; its tensors are read-only views of memory that lives as long as they do.

    Raises:
        EOFError: the other side is gone.
    """
    head, descriptors, _flags, _address = socket.recv_fds(connection, _HEADER.size, 1)
    try:
        if not head:
            raise EOFError
        head += _exactly(connection, _HEADER.size - len(head))
        body = json.loads(_exactly(connection, _HEADER.unpack(head)[0]))
        tensors = _unpack(descriptors[0], body["tensors"]) if descriptors else {}
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return body["message"], tensors


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _pack(tensors: Mapping[str, Tensor]) -> tuple[int, list[dict[str, Any]]]:
    entries, offset = [], 0
    for name, tensor in tensors.items():
        entries.append({"name": name, "type": tensor.type, "shape": tensor.data.shape, "offset": offset})
        offset += -(-tensor.data.nbytes // _ALIGNMENT) * _ALIGNMENT
    descriptor = os.memfd_create("onnx-bridge-tensors", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, max(offset, 1))
        for entry, tensor in zip(entries, tensors.values(), strict=True):
            _write(descriptor, tensor.data, entry["offset"])
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, entries


def _write(descriptor: int, data: np.ndarray[Any, np.dtype[Any]], offset: int) -> None:
    view = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    while view:
        written = os.pwrite(descriptor, view, offset)  # at most 2 GiB a call
        view, offset = view[written:], offset + written


def _unpack(descriptor: int, entries: list[dict[str, Any]]) -> dict[str, Tensor]:
    memory = mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    tensors = {}
    for entry in entries:
        dtype, shape = np.dtype(STORAGE[entry["type"]]), tuple(entry["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        data = np.frombuffer(memory, dtype, count, entry["offset"]).reshape(shape)
        tensors[entry["name"]] = Tensor(entry["type"], data)
    return tensors
