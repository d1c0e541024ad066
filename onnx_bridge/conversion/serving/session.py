"""Files with which an application opens the sessions of a bundle: ``session.json``, Python, C++, Triton.

They are written beside the bundle, whose manifest does not list them: users change them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from onnx_bridge.bundle.manifest.entries import ProgramInfo, TensorInfo
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.core.files.atomic_write import atomic_file
from onnx_bridge.core.schema import to_json

PROVIDER_OPTIONS = {"device_id": "0"}
_PYTHON = '''\
"""Open the sessions of this folder; the first time on a machine fills cache/. Sizes without a session are refused."""
import json, os, pathlib
import numpy, onnxruntime

if "MIGraphXExecutionProvider" not in onnxruntime.get_available_providers():
    raise SystemExit(f"onnxruntime {onnxruntime.__version__} has no MIGraphX provider; onnxruntime-migraphx has")
here = pathlib.Path(__file__).parent
settings = json.loads((here / "session.json").read_text())
os.environ.pop("ORT_MIGRAPHX_MODEL_CACHE_PATH", None)  # it would win over the option
cache, made = here / "cache", here / "cache/made.json"
cache.mkdir(exist_ok=True)
if not made.exists() or json.loads(made.read_text())["provider"] != settings["provider"]:
    for program in (*cache.glob("*.mxr"), *cache.glob("made.json")):
        program.unlink()  # names of programs do not tell options: those of others would be run
options = onnxruntime.SessionOptions()
options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, settings["graph_optimization"])
provider = ("MIGraphXExecutionProvider", {**settings["provider"], "migraphx_model_cache_dir": str(cache)})
sessions = {
    json.dumps([entry["inputs"], entry["values"]], sort_keys=True): onnxruntime.InferenceSession(
        str(here / entry["model"]), options, [provider, "CPUExecutionProvider"], enable_fallback=0)
    for entry in settings["models"]
}
if not made.exists():
    made.write_text(json.dumps({"provider": settings["provider"], "by": f"onnxruntime {onnxruntime.__version__}"}))


def run(inputs):
    """Return the outputs by name; KeyError for sizes that no session has: they would be compiled in the request."""
    given = {name: array for name, array in inputs.items() if name not in settings["choosing"]}
    values = {name: int(inputs[name].item()) for name in settings["choosing"]}
    sizes = {name: list(array.shape) for name, array in given.items()}
    session = sessions[json.dumps([sizes, values], sort_keys=True)]
    return dict(zip((output.name for output in session.get_outputs()), session.run(None, given)))


if __name__ == "__main__":
    print(f"sessions: {len(sessions)}, programs in cache/: {len(list(cache.glob('*.mxr')))}")
'''
_CPP = """\
// Opens the model for one size, in this folder; compile with -std=c++17, -I and -L of ONNX Runtime, -lonnxruntime.
#include <onnxruntime_cxx_api.h>
#include <cstdlib>
#include <filesystem>
int main() {
  unsetenv("ORT_MIGRAPHX_MODEL_CACHE_PATH");  // it would win over the option
  std::filesystem::create_directories("cache");  // without it, no session is created
  Ort::Env env;
  Ort::SessionOptions options;
  options.SetGraphOptimizationLevel(GraphOptimizationLevel::ORT_DISABLE_ALL);
  options.AppendExecutionProvider("MIGraphX", {{"device_id", "0"}, {"migraphx_model_cache_dir", "cache"}});
  Ort::Session session(env, %s, options);
  return session.GetInputCount() == %d ? 0 : 1;
}
"""
_TRITON = """\
# Start Triton with ORT_MIGRAPHX_MODEL_CACHE_PATH, an existing folder beside the repository, with the files of cache/.
name: {name}
backend: "onnxruntime"
max_batch_size: 0
default_model_filename: {file}
{inputs}
{outputs}
optimization {{
  graph {{ level: 2 }}  # none: -1 is basic, which folds what keeps runs on the provider
  execution_accelerators {{ gpu_execution_accelerator: [ {{ name: "migraphx" }} ] }}
}}
"""
_TRITON_TYPES = {"float32": "FP32", "float16": "FP16", "float64": "FP64", "bfloat16": "BF16", "string": "STRING"}


def write_session(folder: Path, manifest: Manifest) -> None:
    """Write the files for applications into the folder of a bundle."""
    names = {info.name for info in manifest.inputs}
    choosing = [name for name in manifest.exact if name in names]  # inputs whose values choose a session
    entries = [
        {
            "model": program.model[0].file,
            "inputs": {info.name: list(info.shape or ()) for info in program.inputs},
            "values": {name: program.dims[name] for name in choosing},
        }
        for program in manifest.programs
    ]
    settings: dict[str, Any] = {
        "provider": PROVIDER_OPTIONS,
        "graph_optimization": "ORT_DISABLE_ALL",
        "free_dimension_overrides": {},
        "environment": {"ORT_MIGRAPHX_MODEL_CACHE_PATH": None},
        "made_by": f"onnx-bridge for onnxruntime-migraphx {manifest.versions.get('onnxruntime-migraphx', '')}",
        "choosing": choosing,
        "models": entries,
    }
    if manifest.decoder is not None:
        settings["decoder"] = to_json(manifest.decoder)
    first = manifest.programs[0]
    texts = {
        "session.json": json.dumps(settings, indent=1) + "\n",
        "run.py": _PYTHON,
        "session.cpp": _CPP % (_quoted(first.model[0].file), len(first.inputs)),
    }
    for name, text in texts.items():
        with atomic_file(folder / name) as path:
            path.write_text(text)
    if manifest.request.layout == "triton":
        for program in manifest.programs:
            _write_triton(folder, manifest.name, program)


def _write_triton(folder: Path, name: str, program: ProgramInfo) -> None:
    """Write a model repository: ``triton/NAME/config.pbtxt`` and ``triton/NAME/1/``, a model for each size."""
    label = "-".join([name, *(f"{dim}{size}" for dim, size in program.dims.items())])
    version = folder / "triton" / label / "1"
    shutil.rmtree(version, ignore_errors=True)
    version.mkdir(parents=True)
    for file in program.model:
        shutil.copyfile(folder / file.file, version / Path(file.file).name)
    config = _TRITON.format(
        name=_quoted(label),
        file=_quoted(Path(program.model[0].file).name),
        inputs="\n".join(_tensor("input", info) for info in program.inputs),
        outputs="\n".join(_tensor("output", info) for info in program.outputs),
    )
    (version.parent / "config.pbtxt").write_text(config)


def _tensor(kind: str, info: TensorInfo) -> str:
    name = _TRITON_TYPES.get(info.dtype, info.dtype.upper())
    dims = [-1 if not isinstance(size, int) else size for size in info.shape or ()] or [1]
    reshape = "" if info.shape else " reshape { shape: [ ] }"
    return f"{kind} [ {{ name: {_quoted(info.name)} data_type: TYPE_{name} dims: {dims}{reshape} }} ]"


def _quoted(text: str) -> str:
    """Return a literal of C++, and of protobuf's text."""
    return json.dumps(text, ensure_ascii=False)
