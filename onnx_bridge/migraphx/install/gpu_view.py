"""How MIGraphX's gpu target rewrites quantization, on a machine without a GPU.

The gpu target first rewrites quantization (``simplify_qdq``), a pass that ``ref`` does not have. A small C++ program
(``gpu_view.cpp``, beside this file) runs MIGraphX's passes on a model up to that one, lists the resulting products, and
writes a program that ``ref`` can compile: its numbers are those of the kernels that a GPU would run.

The C++ program is built once for a runtime, with g++ and the headers of Debian's package migraphx-dev in the version of
the runtime. Headers and program are kept in the cache folder.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from onnx_bridge.core.errors import MigraphxError, RuntimeFailure, RuntimeNotFound, WorkerCrashed, WorkerTimeout
from onnx_bridge.core.user_cache import cache_dir
from onnx_bridge.migraphx.install.apt import Archive
from onnx_bridge.migraphx.install.debian_packages import read, unpack
from onnx_bridge.migraphx.install.install import check_machine
from onnx_bridge.migraphx.install.system_tools import environment, last_error
from onnx_bridge.migraphx.install_record import InstallRecord
from onnx_bridge.migraphx.runtime import Runtime

_SOURCE = Path(__file__).with_suffix(".cpp")
_HEADERS = "migraphx-dev"
_PRODUCTS = {"convolution", "convolution_backwards", "dot", "quant_convolution", "quant_dot"}
_COMPILER = (
    "g++",
    "-std=c++17",
    "-O1",
    "-Wl,--allow-shlib-undefined",  # the libraries' own dependencies are found by the runtime's loader
)


@dataclass(frozen=True)
class Operator:
    """One operator of the program after ``simplify_qdq``.

    Attributes:
        name: in MIGraphX ("quant_dot").
        dims: the shape of its result.
        dtypes: those of its first two operands ("int8_type").
        correction: whether it multiplies a zero point, and so only corrects another product.
        int4: whether an operand is unpacked from 4 bits.
    """

    name: str
    dims: tuple[int, ...]
    dtypes: tuple[str, str]
    correction: bool
    int4: bool

    @property
    def is_product(self) -> bool:
        """Whether it is a convolution or a matrix product of the model, and not a correction."""
        return self.name in _PRODUCTS and not self.correction

    @property
    def kernel(self) -> str:
        """Its kind of kernel: ``int8``, ``fp8``, ``int4-weight`` or ``float``."""
        if self.name.startswith("quant_"):
            return "int8" if "int8_type" in self.dtypes else "fp8"
        return "int4-weight" if self.int4 else "float"


@dataclass(frozen=True)
class GpuView:
    """A model after ``simplify_qdq``.

    Attributes:
        operators: products, and the remaining quantizelinear and dequantizelinear, in the program's order.
        program: the file of the program, which a worker can `load`, compile for ``ref`` and run.
    """

    operators: tuple[Operator, ...]
    program: Path

    @property
    def products(self) -> tuple[Operator, ...]:
        """The convolutions and matrix products."""
        return tuple(each for each in self.operators if each.is_product)


def gpu_view(model: Path, program: Path, runtime: Runtime, *, timeout: float = 300) -> GpuView:
    """Run the passes of the gpu target on a model, up to and including ``simplify_qdq``.

    Args:
        model: an ONNX file.
        program: where to write the resulting program, as MessagePack.
        runtime: the runtime whose passes are run.
        timeout: seconds.

    Raises:
        MigraphxError: MIGraphX rejects the model.
        WorkerCrashed, WorkerTimeout: its process ended, or timed out.
        RuntimeNotFound: there is no compiler, or there are no headers of the runtime's version.
        RuntimeFailure: the C++ program cannot be built.
    """
    command = [*_loader(runtime), str(build(runtime)), str(model.absolute()), str(program.absolute())]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise WorkerTimeout(f"the passes of the gpu target exceeded their time limit of {timeout:g} s") from None
    if done.returncode == 1:
        raise MigraphxError(done.stderr.strip(), output=done.stderr)
    if done.returncode:
        raise WorkerCrashed("the passes of the gpu target", returncode=done.returncode, output=done.stderr)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"operator"')]
    operators = [
        Operator(each["operator"], tuple(each["dims"]), tuple(each["dtypes"]), each["correction"], each["int4"])
        for each in found
    ]
    return GpuView(tuple(operators), program)


def build(runtime: Runtime) -> Path:
    """The path of the C++ program, which is built if needed.

    Raises:
        RuntimeNotFound: there is no compiler, or there are no headers of the runtime's version.
        RuntimeFailure: it cannot be built.
    """
    content = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:10]
    folder = cache_dir() / "gpu-view"
    program = folder / f"{runtime.identity}-{content}"
    if program.is_file():
        return program
    compiler = shutil.which(_COMPILER[0])
    if compiler is None:
        raise RuntimeNotFound(f"this machine has no {_COMPILER[0]}", hint="install it")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"), tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as new:
        if program.is_file():
            return program
        made = Path(new) / "program"
        includes = [f"-I{path}" for path in _headers(runtime, folder)]
        command = [compiler, *_COMPILER[1:], *includes, str(_SOURCE), "-o", str(made), *_libraries(runtime)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment(), check=False)
        if done.returncode:
            raise RuntimeFailure(
                f"{_SOURCE.name} cannot be built: {last_error(done.stderr)}",
                where=str(runtime.path),
                output=done.stderr,
            )
        return made.rename(program)


def _loader(runtime: Runtime) -> list[str]:
    """The command prefix for a program that is linked to the runtime's libraries."""
    folders = ":".join(map(str, runtime.library_path))
    if runtime.loader is None:
        return [shutil.which("env") or "env", f"LD_LIBRARY_PATH={folders}"]
    return [str(runtime.loader), "--library-path", folders]


def _libraries(runtime: Runtime) -> list[str]:
    """The libraries to link the program to.

    Raises:
        RuntimeNotFound: one is missing.
    """
    found = []
    for name in ("libmigraphx.so", "libmigraphx_onnx.so"):
        paths = [path for folder in runtime.library_path for path in sorted(folder.glob(f"{name}*"))]
        if not paths:
            raise RuntimeNotFound(f"this runtime has no {name}", where=str(runtime.path))
        found.append(str(paths[0]))
    return found


def _headers(runtime: Runtime, folder: Path) -> list[Path]:
    """The folders of MIGraphX's headers: beside the libraries, or Debian's, unpacked into the cache.

    Raises:
        RuntimeNotFound: there are none.
    """
    for libraries in runtime.library_path:
        if (beside := libraries.parent / "include" / "migraphx" / "simplify_qdq.hpp").is_file():
            return [beside.parent.parent]
    record = InstallRecord.read(runtime.path) if runtime.kind == "private" else None
    if record is None:
        raise RuntimeNotFound(
            "there are no headers of this runtime", where=str(runtime.path), hint="use a private runtime"
        )
    version = next(each.version for each in record.packages if each.name == "migraphx-tools")
    headers = folder / f"headers-{version}"
    if not headers.is_dir():
        check_machine()
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as new:
            archive = Archive(Path(new) / "apt", Path(new) / "debs", _suite(record), gpu=False)
            deb = read(archive.fetch(_HEADERS, version))
            (made := Path(new) / "unpacked").mkdir()
            unpack([deb], made, gpu=False)
            made.rename(headers)
    return [headers / "usr/include", headers / "usr/lib/x86_64-linux-gnu/migraphx/include"]


def _suite(record: InstallRecord) -> str:
    """The suite of a runtime's headers; for a runtime that was installed from a folder, the newest suite."""
    return "sid" if record.suite == "from" else record.suite
