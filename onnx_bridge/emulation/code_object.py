"""An AMDGPU code object: an ELF file with the kernels of one architecture.

Written from LLVM's "User Guide for AMDGPU Backend": the ELF header, kernel descriptors and metadata. Files are
untrusted: every offset is checked.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from onnx_bridge.core.errors import InputError

MACHINES = {0x3F: "gfx90a", 0x4C: "gfx942", 0x41: "gfx1100", 0x4E: "gfx1201"}
"""The architectures by EF_AMDGPU_MACH."""
_AMDGPU, _SECTION, _SYMBOL, _RELOCATION = 224, 64, 24, 24
_LOAD, _DYNAMIC_SYMBOLS, _RELOCATIONS, _NOTE = 1, 11, 4, 7
_RELATIVE_64, _ABSOLUTE_64 = 13, 3
_LARGEST = 1 << 28


@dataclass(frozen=True)
class Argument:
    """A kernel's argument: where it is in the kernel's argument memory; hidden ones are filled in by the runtime."""

    offset: int
    size: int
    kind: str


@dataclass(frozen=True)
class Kernel:
    """One kernel, as its descriptor and metadata describe it.

    Attributes:
        entry: the address of its first instruction.
        resources: the descriptor's three words of program resources: rsrc3, rsrc1, rsrc2.
        properties: the descriptor's word that says which user SGPRs are set up.
        preload: the descriptor's word of arguments that are loaded into SGPRs.
        lds: bytes of LDS that it has in any case.
        scratch: bytes of private memory of a lane.
        arguments_size: bytes of its arguments.
        arguments: its arguments.
    """

    name: str
    entry: int
    resources: tuple[int, int, int]
    properties: int
    preload: int
    lds: int
    scratch: int
    arguments_size: int
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class CodeObject:
    """The parts of a code object that a machine needs.

    Attributes:
        isa: the architecture.
        image: memory from address 0 with all segments.
        relocations: places in the image to which the image's own address is added.
        code: the addresses of the machine code's begin and end.
        kernels: its kernels by name.
        digest: the file's SHA-256.
    """

    isa: str
    image: bytes
    relocations: tuple[int, ...]
    code: tuple[int, int]
    kernels: dict[str, Kernel]
    digest: str


def read(data: bytes) -> CodeObject:
    """Read a code object.

    Raises:
        InputError: it is not one, it is damaged, or its architecture is unknown.
    """
    try:
        return _read(data)
    except (struct.error, LookupError, ValueError, OverflowError, TypeError) as error:
        raise InputError(f"the code object is damaged: {error}") from error


def _read(data: bytes) -> CodeObject:
    if data[:4] != b"\x7fELF" or struct.unpack_from("<H", data, 18)[0] != _AMDGPU:
        raise InputError("this is no code object of an AMD GPU")
    flags = struct.unpack_from("<I", data, 48)[0]
    isa = MACHINES.get(flags & 0xFF)
    if isa is None:
        raise InputError(
            f"code for machine {flags & 0xFF:#x} is not emulated", hint=f"for instance: {', '.join(MACHINES.values())}"
        )
    image, relocated = _image(data), []
    kernels: dict[str, tuple[int, int]] = {}
    text = metadata = None
    for name, kind, address, offset, size, linked in _sections(data):
        content = _part(data, offset, size) if kind != 8 else b""
        if name == ".text":
            text = (address, address + size)
        elif kind == _NOTE:
            metadata = _metadata(content) or metadata
        elif kind == _RELOCATIONS:
            for place, information, addend in struct.iter_unpack("<QQq", content[: size // _RELOCATION * _RELOCATION]):
                kind_of = information & 0xFFFFFFFF
                if kind_of != _RELATIVE_64:
                    raise InputError(f"the code object has a relocation of kind {kind_of}, which is not emulated")
                struct.pack_into("<q", image, place, addend)
                relocated.append(place)
        elif kind == _DYNAMIC_SYMBOLS:
            strings = _part(data, *list(_sections(data))[linked][3:5])
            for symbol in range(size // _SYMBOL):
                start, _, _, _, value, length = struct.unpack_from("<IBBHQQ", content, symbol * _SYMBOL)
                symbol_name = _string(strings, start)
                if symbol_name.endswith(".kd") and length == 64:
                    kernels[symbol_name.removesuffix(".kd")] = (value, length)
    if text is None or not 0 <= text[0] <= text[1] <= len(image):
        raise InputError("the code object has no machine code")
    described = {entry.get(".name"): entry for entry in (metadata or {}).get("amdhsa.kernels", [])}
    found = {name: _kernel(name, image, value, described.get(name, {})) for name, (value, _) in kernels.items()}
    return CodeObject(isa, bytes(image), tuple(relocated), text, found, hashlib.sha256(data).hexdigest())


def _part(data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise IndexError("a part lies outside the file")
    return data[offset : offset + size]


def _string(strings: bytes, start: int) -> str:
    return strings[start : strings.index(b"\0", start)].decode() if b"\0" in strings[start:] else ""


def _image(data: bytes) -> bytearray:
    """Return the memory of the segments, from address 0."""
    start, size, count = (*struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54))
    image = bytearray()
    for index in range(count):
        kind, _, offset, address, _, filled, whole, _ = struct.unpack_from("<IIQQQQQQ", data, start + index * size)
        if kind != _LOAD:
            continue
        if address + whole > _LARGEST:
            raise IndexError("a segment is too large")
        if len(image) < address + whole:
            image.extend(bytes(address + whole - len(image)))
        image[address : address + filled] = _part(data, offset, filled)
    return image


def _sections(data: bytes) -> Iterator[tuple[str, int, int, int, int, int]]:
    """Yield name, kind, address, offset, size and link of each section."""
    (start,) = struct.unpack_from("<Q", data, 40)
    count, names = struct.unpack_from("<HH", data, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + index * _SECTION) for index in range(count)]
    strings = _part(data, headers[names][4], headers[names][5])
    for name, kind, _, address, offset, size, linked, *_ in headers:
        yield _string(strings, name), kind, address, offset, size, linked


def _metadata(note: bytes) -> dict[str, Any] | None:
    """Return the metadata in a note, if it is theirs."""
    name_size, size, kind = struct.unpack_from("<III", note)
    start = 12 + (name_size + 3) // 4 * 4
    if kind != 32 or note[12:18] != b"AMDGPU":
        return None
    return msgspec.msgpack.decode(_part(note, start, size), type=dict[str, Any])


def _kernel(name: str, image: bytearray, descriptor: int, described: dict[str, Any]) -> Kernel:
    lds, scratch, arguments_size = struct.unpack_from("<III", image, descriptor)
    (entry,) = struct.unpack_from("<q", image, descriptor + 16)
    third, first, second = struct.unpack_from("<III", image, descriptor + 44)
    properties, preload = struct.unpack_from("<HH", image, descriptor + 56)
    arguments = tuple(
        Argument(int(each[".offset"]), int(each[".size"]), str(each[".value_kind"]))
        for each in described.get(".args", [])
    )
    if max(lds, scratch, arguments_size) > _LARGEST:
        raise IndexError("a kernel needs too much memory")
    resources = (third, first, second)
    return Kernel(name, descriptor + entry, resources, properties, preload, lds, scratch, arguments_size, arguments)
