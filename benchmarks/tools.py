"""The tools that the benchmarks compare: each a Python program of its own, so that every run is one process."""

from __future__ import annotations

OURS = "onnx-bridge"

TOOLS: dict[str, str] = {
    "cp": """
import pathlib, shutil
for each in pathlib.Path(source).parent.iterdir():
    shutil.copyfile(each, pathlib.Path(out).parent / each.name)
""",
    OURS: """
import sys
from onnx_bridge.cli.main import main
sys.argv[1:] = ["clean", source, "-o", out]
main()
""",
    "ort-basic": """
import onnxruntime as ort
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
options.optimized_model_filepath = out
options.log_severity_level = 4
if large:
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
""",
    "onnxslim": """
import onnxslim
onnxslim.slim(source, out, **({"save_as_external_data": True} if large else {}))
""",
    "onnxsim": """
import onnx, onnxsim
model, _ = onnxsim.simplify(onnx.load(source))
onnx.save(model, out, save_as_external_data=large)
""",
    "onnxoptimizer": """
import onnx, onnxoptimizer
onnx.save(onnxoptimizer.optimize(onnx.load(source)), out, save_as_external_data=large)
""",
    "onnxscript": """
import onnx_ir, onnxscript.optimizer
model = onnx_ir.load(source)
onnxscript.optimizer.optimize(model)
onnx_ir.save(model, out, **({"external_data": "weights.bin"} if large else {}))
""",
    "polygraphy": """
import subprocess, sys
extra = ["--save-external-data", "weights.bin"] if large else []
code = "from polygraphy.tools import main; import sys; sys.exit(main())"
command = [sys.executable, "-c", code, "surgeon", "sanitize", source, "--fold-constants", "-o", out, *extra]
sys.exit(subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode)
""",
}
"""Source by name; ``source``, ``out`` (paths) and ``large`` (needs external data) are set before it."""


def program(tool: str, source: str, out: str, large: bool) -> str:
    """The Python code of one run."""
    return f"source, out, large = {source!r}, {out!r}, {large!r}\n{TOOLS[tool]}"
