"""A reproduction as a folder for a bug report of MIGraphX, which does not need this project."""

from __future__ import annotations

import platform
import shlex
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.atomic_write import atomic_file
from onnx_bridge.core.values import Array, dtype_name
from onnx_bridge.migraphx.rehearsal.rehearsal import SOURCES
from onnx_bridge.model import io as models
from onnx_bridge.parity.reduce.minimizer import Reproduction
from onnx_bridge.parity.symptoms.symptom import SymptomKind
from onnx_bridge.requests.parity import LowPrecision
from passes.isolation.numpy_files import write_npz

PASS_SOURCES = ("reproduce.cpp", "groups.hpp", "unfuse.hpp")
"""The C++ program of a rehearsal."""
FILES = ("model.onnx", "inputs.npz", "expected.npz", "README.md")
PROVIDER = "ONNX Runtime's MIGraphX provider"
_SHOWN_NODES = 40
_SHOWN_ELEMENTS = 64
_PRINTED = ("float32", "float64", "int32", "int64", "bool")


@dataclass(frozen=True)
class Environment:
    """The circumstances in which a reproduction shows its symptom.

    Attributes:
        precision: what MIGraphX is asked to compute in; None is the model's own dtypes.
        checks_heap: whether the symptom shows only if glibc checks the heap.
        groups: the groups of passes of the gpu target that run before compiling for ``ref``; the last is at fault.
        provider: the version of onnxruntime-migraphx if it shows with ONNX Runtime's provider.
    """

    target: str
    precision: LowPrecision | None
    version: str
    checks_heap: bool = False
    groups: tuple[str, ...] = ()
    provider: str | None = None

    @property
    def runtime(self) -> str:
        """The runtime that shows it."""
        return "MIGraphX" if self.provider is None else PROVIDER

    @property
    def group(self) -> str:
        """The group of passes at fault; empty without a rehearsal."""
        return self.groups[-1] if self.groups else ""


def title(reproduction: Reproduction, runtime: str) -> str:
    """Return a title for the bug report of a runtime."""
    operators = dict.fromkeys(node.op_type for node in reproduction.model.graph)
    what = " with ".join(operators) if len(operators) <= 4 else "a model"
    return f"{runtime} {reproduction.symptom.kind.phrase.format(what)}"


def write(reproduction: Reproduction, folder: Path, environment: Environment) -> None:
    """Write model, inputs, expected outputs and a README; raises InputError if they cannot be written.

    The folder is created if needed, and removed again if nothing can be written; files of the same names are replaced.
    """
    existed = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder cannot be created: {error.strerror}", where=str(folder)) from error
    try:
        _write_files(reproduction, folder, environment)
    except BaseException:
        if not existed:
            with suppress(OSError):
                folder.rmdir()
        raise


def _write_files(reproduction: Reproduction, folder: Path, environment: Environment) -> None:
    with ExitStack() as stack:
        model, inputs, expected, readme = (stack.enter_context(atomic_file(folder / name)) for name in FILES)
        models.save(reproduction.model, model, external_data=False)
        for path, arrays in ((inputs, reproduction.sample), (expected, reproduction.expected)):
            with path.open("wb") as file:
                write_npz(file, arrays)
        readme.write_text(_readme(reproduction, environment), encoding="utf-8")
        if environment.groups:
            for name in PASS_SOURCES:
                stack.enter_context(atomic_file(folder / name)).write_bytes((SOURCES / name).read_bytes())
            for name, array in zip(_input_files(reproduction), reproduction.sample.values(), strict=True):
                stack.enter_context(atomic_file(folder / name)).write_bytes(np.ascontiguousarray(array).tobytes())


def _input_files(reproduction: Reproduction) -> list[str]:
    """Return the files with the bytes of each input, which a C++ program can read."""
    return [f"input{index}.bin" for index in range(len(reproduction.sample))]


def _readme(reproduction: Reproduction, environment: Environment) -> str:
    symptom, target, precision = reproduction.symptom, environment.target, environment.precision
    how = f" after `quantize_{precision}`" if precision else ""
    if environment.groups:
        how = f" after the gpu target's pass `{environment.group}`, run without a GPU"
    lines = [
        f"# {title(reproduction, environment.runtime)}{f' after {environment.group}' if environment.groups else ''}",
        "",
        f"In the step *{symptom.step}*{how}, target `{target}`:",
        "",
        *(f"    {line}" for line in symptom.message.splitlines()),
        "",
        "To see it, in this folder:",
        "",
        *_how_to_see(reproduction, environment),
        "",
    ]
    if symptom.kind is SymptomKind.WRONG:
        lines += [
            "ONNX Runtime, on the CPU with all graph optimizations off, computes the outputs in `expected.npz`:",
            "",
            *(f"    {line}" for name, array in reproduction.expected.items() for line in _shown(name, array)),
            "",
        ]
    else:
        lines += ["ONNX Runtime runs it; its outputs are in `expected.npz`.", ""]
    if environment.checks_heap:
        lines += [
            "It shows where glibc checks the heap: `LD_PRELOAD=libc_malloc_debug.so.0 "
            "GLIBC_TUNABLES=glibc.malloc.check=3 python …`; without that, the corruption may go unnoticed.",
            "",
        ]
    nodes = sum(1 for _ in reproduction.model.graph)
    counted = f"{nodes} node{'s' if nodes != 1 else ''}"
    lines += [f"The model has {counted}:", "", "```", *_text(reproduction.model), "```", ""]
    lines += [
        "| | version |",
        "| --- | --- |",
        *(f"| {name} | {version} |" for name, version in _versions(environment).items()),
    ]
    return "\n".join(lines) + "\n"


def _how_to_see(reproduction: Reproduction, environment: Environment) -> list[str]:
    if environment.provider is not None:
        return _session(reproduction)
    return (_commands if environment.groups else _script)(reproduction, environment)


def _session(reproduction: Reproduction) -> list[str]:
    """Return five lines of Python for the wheel onnxruntime-migraphx."""
    compared = reproduction.symptom.kind is SymptomKind.WRONG
    expected = ', "expected", np.load("expected.npz")[output.name]' if compared else ""
    return [
        "```python",
        "import numpy as np, onnxruntime as ort; options = ort.SessionOptions()",
        "options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL",
        'session = ort.InferenceSession("model.onnx", options, ["MIGraphXExecutionProvider"], enable_fallback=0)',
        'outputs = session.run(None, dict(np.load("inputs.npz")))',
        "for output, array in zip(session.get_outputs(), outputs):",
        f"    print(output.name, array{expected})",
        "```",
    ]


def _commands(reproduction: Reproduction, environment: Environment) -> list[str]:
    """Return how to build and run the C++ program: from Python the passes cannot be run."""
    inputs = [f"{name}={file}" for name, file in zip(reproduction.sample, _input_files(reproduction), strict=True)]
    libraries = ["-L/opt/rocm/lib", "-lmigraphx", "-lmigraphx_onnx", "-Wl,-rpath,/opt/rocm/lib"]
    return [
        "```sh",
        shlex.join(["g++", "-std=c++17", "-I/opt/rocm/include", "reproduce.cpp", "-o", "reproduce", *libraries]),
        shlex.join(["./reproduce", "model.onnx", str(len(environment.groups) - 1), *inputs]) + "  # right",
        shlex.join(["./reproduce", "model.onnx", str(len(environment.groups)), *inputs]) + "  # wrong",
        "```",
        "",
        f"The passes before it, in order: {', '.join(environment.groups[:-1]) or 'none'}.",
    ]


def _script(reproduction: Reproduction, environment: Environment) -> list[str]:
    """Return three lines of Python for MIGraphX's own module, which has no strings."""
    target, precision = environment.target, environment.precision
    quantize = f"migraphx.quantize_{precision}(program); " if precision in ("fp16", "bf16") else ""
    if precision in ("int8", "fp8"):
        quantize = f'migraphx.quantize_{precision}(program, migraphx.get_target("{target}"), [inputs]); '
    has_text = any(array.dtype.hasobject for array in reproduction.sample.values())
    numeric = ' if array.dtype.kind != "U"' if has_text else ""
    arrays = f'for name, array in np.load("inputs.npz").items(){numeric}'
    return [
        "```python",
        f"import migraphx, numpy as np; inputs = {{name: migraphx.argument(array) {arrays}}}",
        f'program = migraphx.parse_onnx("model.onnx"); {quantize}program.compile(migraphx.get_target("{target}"))',
        "print([np.array(output) for output in program.run(inputs)])",
        "```",
    ]


def _shown(name: str, array: Array) -> list[str]:
    if array.size > _SHOWN_ELEMENTS:
        return [f"{name}: {dtype_name(array.dtype)}{list(array.shape)}"]
    return f"{name} = {np.array2string(array, separator=', ')}".splitlines()


def _text(model: ir.Model) -> list[str]:
    """Return the model as ONNX text, without the elements of large constants."""
    nodes = [f"{node.op_type} {node.name}" for node in model.graph]
    if len(nodes) > _SHOWN_NODES:
        return [*nodes[:_SHOWN_NODES], "…"]
    proto = ir.to_proto(model)
    del proto.graph.value_info[:]
    for tensor in proto.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.size <= _SHOWN_ELEMENTS and array.dtype.name in _PRINTED:
            # the printer shows typed elements, not raw_data
            tensor.CopyFrom(onnx.helper.make_tensor(tensor.name, tensor.data_type, array.shape, array.ravel()))
    return onnx.printer.to_text(proto).splitlines()


def _versions(environment: Environment) -> dict[str, str]:
    wheel = {} if environment.provider is None else {"onnxruntime-migraphx": environment.provider}
    libraries = {name: metadata.version(name) for name in ("onnx", "onnxruntime", "numpy")}
    here = f"{platform.system()} {platform.machine()}"
    return {**wheel, "MIGraphX": environment.version, **libraries, "Python": platform.python_version(), "machine": here}
