"""Programs in ``cache/`` for a GPU that is not there: the provider itself lets MIGraphX compile, and names them.

They were not run on a GPU, and may not load under another MIGraphX than the one that compiled them; the record beside
them says both. A model whose convolutions need MIOpen gets none: MIOpen chooses its kernels on the GPU.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.files.sessions import CACHE, FILL_COMMAND, CacheRecord, write_record
from onnx_bridge.conversion.serving.session import PROVIDER_OPTIONS
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.gpu.compiler import GpuCompiler
from onnx_bridge.migraphx.gpu.rehearse import rehearsal
from onnx_bridge.migraphx.gpu.stub import has_all_kernels
from onnx_bridge.migraphx.targets import gpu_architecture
from onnx_bridge.provider.provider import CACHE_OPTION, Provider, ProviderError, SessionOptions
from onnx_bridge.requests.conversion import ConvertRequest
from passes.core.text import counted
from passes.isolation.failure import NativeFailure


def add_gpu_programs(bundle: Bundle, request: ConvertRequest) -> Bundle:
    """Compile the programs of all sessions of a bundle if the request names an architecture, and note what was done."""
    compiler = rehearsal(request.rehearsed, runtimes.find(request.runtime))
    if isinstance(compiler, GpuCompiler):
        note = _filled(bundle, compiler)
    elif count := len([*(bundle.path / CACHE).glob("*.mxr")]):
        note = f"cache: kept {counted(count, 'program')}, as the model is the one of before"
    elif gpu_architecture() is None:
        note = f"without a GPU there are no programs for it here: {FILL_COMMAND}"
    else:
        return bundle
    manifest = replace(bundle.manifest, notes=[*bundle.manifest.notes, note])
    manifest.write(bundle.path / "manifest.json")
    return Bundle.of(bundle.path, request)


def _filled(bundle: Bundle, compiler: GpuCompiler) -> str:
    """Fill the cache, and return the note."""
    name, cache = compiler.architecture.name, bundle.path / CACHE
    provider = Provider(compiler=compiler)
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as temporary:
        try:
            for program in bundle.manifest.programs:
                options = SessionOptions(provider={CACHE_OPTION: temporary})
                provider.session(bundle.path / program.model[0].file, options)
        except (ProviderError, NativeFailure) as error:
            return f"no programs for {name}, which it is not compiled for here: {error.what}; {FILL_COMMAND}"
        finally:
            provider.close()
        programs = sorted(Path(temporary).iterdir())
        if not all(map(has_all_kernels, programs)):
            return f"no programs for {name}: convolutions lack MIOpen's kernels; {FILL_COMMAND}"
        cache.mkdir(exist_ok=True)
        for program_file in programs:
            shutil.move(program_file, cache / program_file.name)
    record = CacheRecord(PROVIDER_OPTIONS, f"compiled for {name} by {compiler.made_by}, not run on a GPU", name)
    write_record(bundle.path, record)
    return f"cache: {counted(len(programs), 'program')}, {record.by}"
