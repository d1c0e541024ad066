"""Compile options by name: MIGraphX's arguments of ``compile``, and the settings that it reads from its environment.

    offload_copy     copy inputs and outputs between host and device within a call (default: true)
    fast_math        faster approximations of functions such as exp and GELU (default: true)
    exhaustive_tune  measure every known kernel instead of guessing; compiling takes far longer (default: false)
    tuning           keep the results of tuning with the bundle: ``keep``, or an earlier bundle to continue from

The settings are environment variables that MIGraphX (docs/reference/MIGraphX-dev-env-vars.rst) and MIOpen document, see
`SETTINGS`. Most of them affect the gpu target only. MIGraphX reads them once, so programs with other settings are in
another worker process. They are recorded in the manifest, and a bundle is loaded with the settings it was made with.
"""

from __future__ import annotations

import functools
import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.migraphx.runtime import Runtime

Value = bool | str

COMPILE: Mapping[str, bool] = {"offload_copy": True, "fast_math": True, "exhaustive_tune": False}
"""The arguments of ``compile``, with their defaults."""


@dataclass(frozen=True)
class Setting:
    """An environment variable of MIGraphX or MIOpen.

    Attributes:
        what: the effect of the variable.
        since: the first MIGraphX that reads it; empty for MIOpen's.
        until: the last one; empty if the newest still does.
        values: a regular expression for all of its values; None for the path of a file, which no manifest has.
    """

    variable: str
    what: str
    since: str = ""
    until: str = ""
    values: str | None = "[01]"

    @property
    def span(self) -> str:
        """The versions that read it, as text."""
        if not self.since:
            return "MIOpen reads it, which comes with MIGraphX's gpu target"
        return f"MIGraphX reads it since {self.since}{f', and up to {self.until}' if self.until else ''}"


_NUMBER = r"\d{1,4}"
_NAMES = r"~?\w+([,;: ]~?\w+)*"

SETTINGS: Mapping[str, Setting] = {
    "problem_cache": Setting(
        "MIGRAPHX_PROBLEM_CACHE", "the file that keeps the results of tuning between conversions", "2.11", values=None
    ),
    "gpu_compile_parallel": Setting(
        "MIGRAPHX_GPU_COMPILE_PARALLEL", "how many kernels are compiled at a time", "2.1", values=_NUMBER
    ),
    "disable_mlir": Setting("MIGRAPHX_DISABLE_MLIR", "1: no kernels by rocMLIR", "2.8"),
    "mlir_ops": Setting(
        "MIGRAPHX_MLIR_USE_SPECIFIC_OPS",
        "operators that rocMLIR compiles, or with ~ does not compile",
        "2.8",
        values=_NAMES,
    ),
    "mlir_tune_limit": Setting(
        "MIGRAPHX_MLIR_TUNE_LIMIT", "how many solutions of rocMLIR are measured", "2.9", values=_NUMBER
    ),
    "disable_pointwise_fusion": Setting(
        "MIGRAPHX_DISABLE_POINTWISE_FUSION", "1: no fusion of pointwise operators", "2.1"
    ),
    "disable_reduce_fusion": Setting("MIGRAPHX_DISABLE_REDUCE_FUSION", "1: no fusion of reductions", "2.6"),
    "disable_miopen_fusion": Setting("MIGRAPHX_DISABLE_MIOPEN_FUSION", "1: no fused convolutions of MIOpen", "1.3"),
    "disable_layernorm_fusion": Setting(
        "MIGRAPHX_DISABLE_LAYERNORM_FUSION", "1: no fused layer normalization", "2.10", "2.12"
    ),
    "disable_schedule": Setting("MIGRAPHX_DISABLE_SCHEDULE_PASS", "1: one stream", "1.3"),
    "disable_passes": Setting(
        "MIGRAPHX_DISABLE_PASSES", "MIGraphX's own passes that are left out, with commas", "2.12", values=_NAMES
    ),
    "gemm_provider": Setting("MIGRAPHX_SET_GEMM_PROVIDER", "hipblaslt or rocblas", "2.12", values=r"\w+"),
    "nhwc": Setting("MIGRAPHX_ENABLE_NHWC", "1: convolutions in channels-last layout", "2.5"),
    "miopen_find_mode": Setting(
        "MIOPEN_FIND_MODE", "how MIOpen finds its kernels: 1 normal, 2 fast, 3 hybrid, 5 dynamic", values=r"\w+"
    ),
    "miopen_find_enforce": Setting(
        "MIOPEN_FIND_ENFORCE", "how MIOpen uses its database: 1 none, 3 search, 4 search and update", values=r"\w+"
    ),
}
"""The settings by name, with the versions whose sources name the variable."""

_RECORDED = {setting.variable: setting.values for setting in SETTINGS.values() if setting.values is not None} | {
    "MIGRAPHX_DISABLE_MIOPEN_POOLING": "[01]",
    "MIGRAPHX_DISABLE_MULTI_OUTPUT_FUSION": "[01]",
}
"""The variables that a manifest may hold, with their values: those of the settings, and of further attempts."""

TUNING = "tuning"
"""The option that keeps tuning results with a bundle: ``keep``, or the path of an earlier bundle to continue from."""


@dataclass(frozen=True)
class CompileOptions:
    """Compile options, validated for a runtime and a target.

    Attributes:
        compile: the arguments of ``compile`` that differ from their defaults.
        environment: the variables for the worker process.
        given: all options as they were given, by name.
        tuning: whether tuning results are kept with the bundle: ``keep``, an earlier bundle, or empty for not.
    """

    compile: Mapping[str, bool] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Value] = field(default_factory=dict)
    tuning: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Value] | None, runtime: Runtime, target: str) -> CompileOptions:
        """Validate options.

        Args:
            given: the options by name; the texts ``true`` and ``false`` are booleans.
            runtime: must support them.
            target: must support them.

        Raises:
            InputError: there is no such option, this runtime does not support it, its value is invalid, or it is
                incompatible with the target.
        """
        compiled: dict[str, bool] = {}
        environment: dict[str, str] = {}
        tuning = ""
        for name, value in (given or {}).items():
            where = f"option {name!r}"
            if name in COMPILE:
                if (read := _BOOLS.get(str(value).lower())) is None:
                    raise InputError(f"the option cannot be {value!r}", where=where, hint="true or false")
                compiled[name] = read
            elif name in SETTINGS:
                setting = SETTINGS[name]
                variable = setting.variable
                if not _reads(runtime, variable):
                    here = runtime.version if "gpu" in runtime.targets else f"{runtime.version} without its gpu library"
                    what = f"this runtime does not support the option: no library of MIGraphX {here} reads {variable}"
                    raise InputError(what, where=where, hint=f"{setting.span}; leave it out, or choose another runtime")
                text = {"true": "1", "false": "0"}.get(str(value).lower(), str(value))
                if not text:
                    raise InputError("the option has no value", where=where, hint=setting.what)
                if not re.fullmatch(setting.values or r"[^\0]+", text):
                    raise InputError(f"the option cannot be {text!r}", where=where, hint=setting.what)
                environment[variable] = text
            elif name == TUNING:
                if not (tuning := str(value)):
                    hint = "keep, or an earlier bundle to continue from"
                    raise InputError("the option has no value", where=where, hint=hint)
            else:
                known = [*COMPILE, *SETTINGS, TUNING]
                hint = nearest(name, known) or f"there are {', '.join(known)}"
                raise InputError("there is no such option", where=where, hint=hint)
        if target == "gpu" and compiled.get("offload_copy") is False:
            what = "a bundle takes arrays in host memory, and a program without offload_copy does not"
            raise InputError(what, where="option 'offload_copy'", hint="leave it true")
        if tuning and SETTINGS["problem_cache"].variable in environment:
            what = "the option 'tuning' already keeps the problem cache"
            raise InputError(what, where="option 'problem_cache'", hint="leave one of the two out")
        return cls(compiled, environment, dict(given or {}), tuning)


_BOOLS = {"true": True, "1": True, "false": False, "0": False}


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a conversion that its programs need to run; files serve the conversion alone."""
    return {name: value for name, value in environment.items() if name in _RECORDED}


def unknown_variable(environment: Mapping[str, str]) -> str | None:
    """Return the first variable, with its value, that no conversion records; None if all are known settings."""
    for name, value in environment.items():
        if name not in _RECORDED or not re.fullmatch(_RECORDED[name], value):
            return f"{name}={value}"
    return None


@functools.cache
def _reads(runtime: Runtime, variable: str) -> bool:
    """Return whether a library of the runtime contains the name of a variable."""
    stems = ("libMIOpen",) if variable.startswith("MIOPEN_") else ("libmigraphx", "migraphx")
    folders = {Path(runtime.path).parent, *runtime.library_path}
    if runtime.library is not None:
        folders.add(Path(runtime.library).resolve().parent)
    files = {
        file.resolve()
        for folder in folders
        for stem in stems
        for file in Path(folder).glob(f"{stem}*.so*")
        if file.is_file()
    }
    return any(_contains(file, variable.encode()) for file in sorted(files))


def _contains(file: Path, name: bytes) -> bool:
    with file.open("rb") as opened:
        if not file.stat().st_size:
            return False
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(name + b"\0") >= 0
