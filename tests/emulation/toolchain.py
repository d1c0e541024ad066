"""AMD's assembler, compiler and disassembler in a process whose loader can load them."""

from __future__ import annotations

import ctypes
import dataclasses
import socket
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np

from onnx_bridge.emulation.comgr import LIBRARY, Comgr, Line
from onnx_bridge.migraphx.runtime import installed
from passes.isolation.child import serve
from passes.isolation.messages import Array, Message
from passes.isolation.process import Child

_SOURCE, _RELOCATABLE, _EXECUTABLE, _LOG = 1, 7, 8, 5
_ASSEMBLE, _LINK = 8, 7


class Toolchain:
    """The process; see the functions of the same names below."""

    def __init__(self) -> None:
        runtime = next(each for each in installed() if each.compiles_kernels)
        self._child = Child("tests.emulation.toolchain", command=runtime.command)

    def _ask(self, **request: Any) -> Message:
        arrays = {name: request.pop(name) for name in ("code",) if name in request}
        answer, results = self._child.exchange(request, arrays)
        assert "error" not in answer, answer["error"]
        return answer, results

    def assemble(self, source: str, isa: str) -> bytes:
        return self._ask(do="assemble", source=source, isa=isa)[1]["code"].tobytes()

    def compile(self, source: str, isa: str) -> bytes:
        return self._ask(do="compile", source=source, isa=isa)[1]["code"].tobytes()

    def disassemble(self, code: bytes, address: int, isa: str) -> list[Line]:
        answer, _ = self._ask(do="disassemble", code=np.frombuffer(code, np.uint8), address=address, isa=isa)
        return [Line(**line) for line in answer["lines"]]


def main(connection: socket.socket) -> None:
    comgr = Comgr()
    dll = ctypes.CDLL(LIBRARY)

    def answer(request: dict[str, Any], arrays: dict[str, Array]) -> Message:
        isa = request["isa"]
        try:
            if request["do"] == "disassemble":
                lines = comgr.disassemble(arrays["code"].tobytes(), request["address"], isa)
                return {"lines": [dataclasses.asdict(line) for line in lines]}, {}
            make = _assemble if request["do"] == "assemble" else _compile
            return {}, {"code": np.frombuffer(make(dll, request["source"], isa), np.uint8)}
        except RuntimeError as error:
            return {"error": str(error)}, {}

    serve(connection, answer)


def _assemble(dll: Any, source: str, isa: str) -> bytes:
    """Assemble and link."""

    def check(status: int, result: c_uint64 | None = None) -> None:
        if status:
            raise RuntimeError(_content(dll, result, _LOG).decode() if result else f"status {status}")

    data, given, relocatable, executable, action = (c_uint64() for _ in range(5))
    check(dll.amd_comgr_create_data(_SOURCE, byref(data)))
    text = source.encode()
    check(dll.amd_comgr_set_data(data, c_size_t(len(text)), text))
    check(dll.amd_comgr_set_data_name(data, b"source.s"))
    for data_set in (given, relocatable, executable):
        check(dll.amd_comgr_create_data_set(byref(data_set)))
    check(dll.amd_comgr_data_set_add(given, data))
    check(dll.amd_comgr_create_action_info(byref(action)))
    check(dll.amd_comgr_action_info_set_isa_name(action, f"amdgcn-amd-amdhsa--{isa}".encode()))
    check(dll.amd_comgr_action_info_set_logging(action, True))
    check(dll.amd_comgr_do_action(_ASSEMBLE, action, given, relocatable), relocatable)
    check(dll.amd_comgr_do_action(_LINK, action, relocatable, executable), executable)
    code = _content(dll, executable, _EXECUTABLE)
    for data_set in (given, relocatable, executable):
        dll.amd_comgr_destroy_data_set(data_set)
    dll.amd_comgr_destroy_action_info(action)
    dll.amd_comgr_release_data(data)
    return code


def _content(dll: Any, data_set: c_uint64, kind: int) -> bytes:
    data, size = c_uint64(), c_size_t()
    if dll.amd_comgr_action_data_get_data(data_set, kind, c_size_t(0), byref(data)):
        return b""
    dll.amd_comgr_get_data(data, byref(size), None)
    buffer = ctypes.create_string_buffer(size.value)
    dll.amd_comgr_get_data(data, byref(size), buffer)
    dll.amd_comgr_release_data(data)
    return buffer.raw


def _compile(_: Any, source: str, isa: str) -> bytes:
    """Compile HIP."""
    hiprtc = ctypes.CDLL("libhiprtc.so.6")
    program, size = c_void_p(), c_size_t()
    options = [f"--offload-arch={isa}".encode(), b"-O3"]
    hiprtc.hiprtcCreateProgram(byref(program), source.encode(), b"source.hip", 0, None, None)
    status = hiprtc.hiprtcCompileProgram(program, c_int(len(options)), (c_char_p * len(options))(*options))
    read = ("Log", "hiprtcGetProgramLog") if status else ("Code", "hiprtcGetCode")
    getattr(hiprtc, "hiprtcGetProgramLogSize" if status else "hiprtcGetCodeSize")(program, byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(hiprtc, read[1])(program, buffer)
    hiprtc.hiprtcDestroyProgram(byref(program))
    if status:
        raise RuntimeError(buffer.value.decode())
    return buffer.raw
