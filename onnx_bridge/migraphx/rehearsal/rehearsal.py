"""The gpu target's passes for one runtime, and the C++ library with them: the rehearsal without kernels.

The library is built once for a runtime, with g++ and the headers of the runtime's version: those beside its libraries,
as ROCm installs them, or Debian's package migraphx-dev for a private runtime. Headers and library are kept in the cache
folder.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from onnx_bridge.core.errors import RuntimeNotFound
from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.core.native_code import build, digest, kept_folder
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.install.apt import Archive
from onnx_bridge.migraphx.install.debian_packages import read, unpack
from onnx_bridge.migraphx.install.install import check_machine
from onnx_bridge.migraphx.install_record import InstallRecord
from onnx_bridge.migraphx.rehearsal.depth import Rehearsal
from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.migraphx.runtime import Runtime

FUSION = "fuse_pointwise_reduce"
"""The group of passes that fuses pointwise operators and reductions."""
AS_GPU = "rehearsed as gpu, on MIGraphX ref"
"""The name of a leg of a comparison for which passes alone are rehearsed."""
SOURCES = Path(__file__).parent
"""The folder of the C++ sources."""
_SOURCE = "gpu_passes.cpp"
_PACKAGE = "migraphx-dev"
_KIND: Final = "rehearsal"
_BUILT, _GROUPS = "gpu_passes.so", "groups.txt"


@dataclass(frozen=True)
class PassRehearsal(Rehearsal):
    """The passes of the gpu target that a runtime runs without a GPU; ``ref`` then computes the program.

    ``library`` has the passes, which get a program by its address.
    """

    library: Path

    @property
    def before_fusion(self) -> PassRehearsal:
        """The groups before the one that fuses pointwise operators and reductions."""
        return self.first(self.groups.index(FUSION))

    option = "--rehearse gpu"
    leg = AS_GPU

    def first(self, count: int) -> PassRehearsal:
        return replace(self, groups=self.groups[:count])

    def worker(self, environment: Mapping[str, str] | None = None, *, checks_heap: bool = False) -> workers.Worker:
        return (
            workers.shared_with_heap_checks(self.runtime) if checks_heap else workers.shared(self.runtime, environment)
        )

    def prepare(self, program: RemoteProgram) -> list[dict[str, Any]]:
        return program.run_gpu_passes(self.library, len(self.groups))

    def to_json(self, count: int) -> dict[str, Any]:
        return {"passes": {"library": str(self.library), "count": count}}

    @property
    def note(self) -> str:
        """A sentence for the user that says what was rehearsed, and what was not."""
        return (
            f"rehearsed as gpu: {len(self.groups)} groups of passes of the gpu target of MIGraphX "
            f"{self.runtime.version}; not its kernels, their precision and their memory"
        )

    @property
    def key(self) -> str:
        """A text that changes with the passes, their order and their arguments."""
        return f"{_digest()} {' '.join(self.groups)}"


def pass_rehearsal(runtime: Runtime) -> PassRehearsal:
    """Return the passes of the gpu target for a runtime; their library is built if needed.

    Raises:
        RuntimeNotFound: there is no compiler, there are no headers of the runtime's version, or it has no C library.
        RuntimeFailure: the library cannot be built.
    """
    by_library = runtime.by_c_library()

    def fill(folder: Path) -> None:
        includes = [f"-I{path}" for path in _headers(by_library, cache_dir() / _KIND)]
        purpose = "rehearsing the gpu target"
        build(SOURCES / _SOURCE, folder / _BUILT, [*includes, _core(by_library)], purpose=purpose)
        worker = workers.shared(by_library)
        answer, _ = worker.request("loading", {"do": "pass_groups", "library": str(folder / _BUILT)})
        (folder / _GROUPS).write_text("\n".join(answer["groups"]))

    kept = kept_folder(_KIND, f"{runtime.identity}-{_digest()[:10]}", fill)
    return PassRehearsal(by_library, tuple((kept / _GROUPS).read_text().splitlines()), kept / _BUILT)


def _digest() -> str:
    return digest([SOURCES / _SOURCE, *sorted(SOURCES.glob("*.hpp"))])


def _core(runtime: Runtime) -> Path:
    if runtime.core is None:
        raise RuntimeNotFound("this runtime has no libmigraphx.so", where=str(runtime.path))
    return runtime.core


def _headers(runtime: Runtime, folder: Path) -> list[Path]:
    """Return the folders of MIGraphX's headers: beside the libraries, or Debian's, unpacked into the cache."""
    for libraries in runtime.library_path:
        beside = libraries.parent / "include"
        if _version(beside) == runtime.release:
            return [beside]
    record = InstallRecord.read(runtime.path) if runtime.kind == "private" else None
    if record is None:
        what = f"there are no headers of MIGraphX {runtime.version}, which rehearsing the gpu target needs"
        hint = "install those of this runtime (migraphx-dev) beside its libraries, or use a private runtime"
        raise RuntimeNotFound(what, where=str(runtime.path), hint=hint)
    version = next(package.version for package in record.packages if package.name == "migraphx-tools")
    headers = folder / f"headers-{version}"
    if not headers.is_dir():
        check_machine()
        suite = "sid" if record.suite == "from" else record.suite  # a folder of package files has none
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as new:
            archive = Archive(Path(new) / "apt", Path(new) / "debs", suite, "ref")
            deb = read(archive.fetch(_PACKAGE, version))
            (unpacked := Path(new) / "unpacked").mkdir()
            unpack([deb], unpacked, "ref")
            unpacked.rename(headers)
    return [headers / "usr/include", headers / "usr/lib/x86_64-linux-gnu/migraphx/include"]


def _version(include: Path) -> tuple[int, ...] | None:
    """Return the major and minor version of the headers in a folder; None without headers."""
    try:
        text = (include / "migraphx" / "version.h").read_text()
    except OSError:
        return None
    defined = dict(re.findall(r"define MIGRAPHX_VERSION_(MAJOR|MINOR) (\d+)", text))
    whole = (include / "migraphx" / "simplify_qdq.hpp").is_file() and len(defined) == 2
    return (int(defined["MAJOR"]), int(defined["MINOR"])) if whole else None
