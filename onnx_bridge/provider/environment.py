"""Python environments with ONNX Runtime's MIGraphX provider: finding them, and installing a private one.

Their module ``onnxruntime`` is of another version than the one that computes the reference, so they stay apart. A
private one lies beside the private runtimes, as ``runtimes/onnxruntime-migraphx-1.27.1``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_bridge.core.errors import InputError, RuntimeFailure, RuntimeNotFound
from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.system_tools import environment as tool_environment
from onnx_bridge.core.system_tools import last_error, space_needed
from onnx_bridge.migraphx.install.install import changing, check_machine, new_folder

PACKAGE, VERSION = "onnxruntime-migraphx", "1.27.1"
VARIABLE = "ONNX_BRIDGE_PROVIDER"
"""The environment variable with the folder of a virtual environment that has the package."""
_BYTES = 400_000_000
_SECONDS = 1800.0
_INSTALL = "install one with: onnx-bridge runtime install --onnxruntime"


@dataclass(frozen=True)
class Environment(JsonRecord):
    """A virtual environment with the package onnxruntime-migraphx.

    Attributes:
        path: its folder.
        version: the version of the package.
        origin: how it was found.
    """

    path: Path
    version: str
    origin: str

    def __str__(self) -> str:
        return f"  {PACKAGE} {self.version} ({self.origin}): {self.path}"

    @property
    def python(self) -> Path:
        return self.path / "bin/python"

    @property
    def library(self) -> Path:
        """The provider's library."""
        return next(self.path.glob("lib/python*/site-packages/onnxruntime/capi/libonnxruntime_providers_migraphx.so"))

    @property
    def identity(self) -> str:
        """A text that changes with the provider's library."""
        state = self.library.stat()
        return f"{self.version}-{state.st_size}-{state.st_mtime_ns}"


def installed(variables: Mapping[str, str] = os.environ) -> list[Environment]:
    """Return the environments on this machine: the one that `VARIABLE` names, then the private ones, newest first."""
    private = sorted((cache_dir(variables) / "runtimes").glob(f"{PACKAGE}-*"), reverse=True)
    named = variables.get(VARIABLE)
    places = [(Path(named).expanduser().absolute(), VARIABLE)] if named else []
    places += [(path, "onnx-bridge runtime install --onnxruntime") for path in private]
    environments = (_of_folder(path, origin) for path, origin in places)
    return [environment for environment in environments if environment is not None]


def find(variables: Mapping[str, str] = os.environ) -> Environment:
    """Return the environment to use; raises RuntimeNotFound if there is none, or not the one that is named."""
    environments = installed(variables)
    if (named := variables.get(VARIABLE)) and (not environments or environments[0].origin != VARIABLE):
        what = f"the folder is no virtual environment with {PACKAGE}"
        raise RuntimeNotFound(what, where=f"{VARIABLE}={named}", hint=_INSTALL)
    if not environments:
        raise RuntimeNotFound("there is no ONNX Runtime with its MIGraphX provider on this machine", hint=_INSTALL)
    return environments[0]


def _of_folder(path: Path, origin: str) -> Environment | None:
    records = sorted(path.glob(f"lib/python*/site-packages/{PACKAGE.replace('-', '_')}-*.dist-info"))
    if not records or not (path / "bin/python").exists():
        return None
    return Environment(path, records[-1].name.removesuffix(".dist-info").rpartition("-")[2], origin)


def install(version: str = VERSION, *, progress: Callable[[str], None] | None = None) -> Environment:
    """Make a virtual environment with the provider, from PyPI, unless it is there.

    Args:
        version: the version of onnxruntime-migraphx.
        progress: called with each step.

    Raises:
        InputError: the version is not a version.
        RuntimeNotFound: this machine or its package index cannot provide it.
        RuntimeFailure: the disk is full.
    """
    report = progress or (lambda _step: None)
    check_machine()
    if not version or not version.replace(".", "").isalnum():
        raise InputError("a version is numbers and letters with dots", where=version, hint=f"for instance {VERSION}")
    name = f"{PACKAGE}-{version}"
    with changing(report) as runtimes:
        if (there := _of_folder(runtimes / name, "")) is not None:
            report(f"already installed: {name}")
            return there
        space_needed(runtimes, _BYTES)
        with new_folder(runtimes) as new:
            made = new / "environment"
            report("making a virtual environment")
            _run([sys.executable, "-m", "venv", made], "a virtual environment", "on Debian: apt install python3-venv")
            report(f"downloading {PACKAGE} {version}")
            pip: list[str | Path] = [
                made / "bin/python",
                "-m",
                "pip",
                "--quiet",
                "--disable-pip-version-check",
                "--no-input",
                "install",
            ]
            elsewhere = f"check the network and pip's index, or name an environment that has it by {VARIABLE}"
            _run([*pip, "--retries", "1", f"{PACKAGE}=={version}"], f"{PACKAGE} {version}", elsewhere)
            made.rename(runtimes / name)
    environment = _of_folder(runtimes / name, "onnx-bridge runtime install --onnxruntime")
    if environment is None:
        raise RuntimeFailure(f"pip has installed no {PACKAGE}", where=str(runtimes / name))
    return environment


def _run(command: Sequence[str | Path], what: str, hint: str) -> None:
    """Run a tool of Python's; raises RuntimeNotFound if it fails."""
    variables = {name: value for name, value in tool_environment().items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            env=variables,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeNotFound(f"{what} was not made within {_SECONDS:g} s", hint=hint) from None
    if done.returncode:
        output = done.stderr or done.stdout
        errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR:")]
        raise RuntimeNotFound(f"{what} cannot be had: {last_error((errors or [output])[-1])}", hint=hint)
