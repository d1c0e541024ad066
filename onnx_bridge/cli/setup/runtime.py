"""Find, install and examine MIGraphX itself.

Example: onnx-bridge runtime status
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.migraphx.install_record import InstallTarget
from onnx_bridge.provider import environment as providers

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)

Gpu = Annotated[bool, typer.Option("--gpu", help="Install the libraries that the gpu target needs, too.")]
GpuCompiler = Annotated[
    bool,
    typer.Option("--gpu-compiler", help="Install the compiler of GPU kernels, for --target gpu:ARCHITECTURE."),
]
Suite = Annotated[str, typer.Option(metavar="SUITE", help="Debian suite to take the packages from.")]


def _target(gpu: bool, gpu_compiler: bool) -> InstallTarget:
    if gpu:
        return "gpu"
    return "gpu-compiler" if gpu_compiler else "ref"


@app.command("install")
def runtime_install(
    gpu: Gpu = False,
    gpu_compiler: GpuCompiler = False,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Take the .deb packages from a folder.")
    ] = None,
    suite: Suite = "sid",
    update: Annotated[bool, typer.Option("--update", help="Look for newer packages.")] = False,
    onnxruntime: Annotated[
        bool, typer.Option("--onnxruntime", help="Install ONNX Runtime's MIGraphX provider instead, from PyPI.")
    ] = False,
    version: Annotated[str, typer.Option(metavar="V", help="Version of onnxruntime-migraphx.")] = providers.VERSION,
    as_json: Json = False,
) -> None:
    """Unpack Debian's MIGraphX into a private folder, or make an environment with ONNX Runtime's provider; no root.

    Example: onnx-bridge runtime install
    """
    from onnx_bridge.migraphx.install.install import install
    from onnx_bridge.migraphx.install.results import RuntimeList
    from onnx_bridge.migraphx.runtime import choices

    with progress(as_json, lines=True) as tell:
        if onnxruntime:
            providers.install(version, progress=tell)
        else:
            install(target=_target(gpu, gpu_compiler), source=source, suite=suite, update=update, progress=tell)
    show(RuntimeList(choices(), providers.installed()), as_json)


@app.command("download")
def runtime_download(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the packages.", show_default=False)],
    gpu: Gpu = False,
    gpu_compiler: GpuCompiler = False,
    suite: Suite = "sid",
    as_json: Json = False,
) -> None:
    """Download the packages for `install --from`, for a machine without network.

    Example: onnx-bridge runtime download packages
    """
    from onnx_bridge.migraphx.install.install import download
    from onnx_bridge.migraphx.install.results import Paths

    with progress(as_json, lines=True) as tell:
        paths = download(folder, target=_target(gpu, gpu_compiler), suite=suite, progress=tell)
    show(Paths("downloaded", paths), as_json)


@app.command("list")
def runtime_list(as_json: Json = False) -> None:
    """Show every MIGraphX on this machine, and which one is used. Exit code 1 if there is none.

    Example: onnx-bridge runtime list
    """
    from onnx_bridge.migraphx.install.results import RuntimeList
    from onnx_bridge.migraphx.runtime import choices

    with progress(as_json, "look for MIGraphX"):
        runtimes = RuntimeList(choices(), providers.installed())
    show(runtimes, as_json, code=int(runtimes.used is None))


@app.command("remove")
def runtime_remove(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Its folder's name; default: all.")] = None,
    as_json: Json = False,
) -> None:
    """Remove the private runtimes, or one of them.

    Example: onnx-bridge runtime remove
    """
    from onnx_bridge.migraphx.install.install import remove
    from onnx_bridge.migraphx.install.results import Paths

    with progress(as_json, lines=True) as tell:
        paths = remove(name, progress=tell)
    show(Paths("removed", paths), as_json)


@app.command("status")
def status(as_json: Json = False) -> None:
    """Check runtimes, GPU and installation, with a hint for each problem. Exit code 1 if no runtime works.

    Example: onnx-bridge runtime status
    """
    from onnx_bridge.migraphx.install.status import RuntimeStatus, runtime_status
    from onnx_bridge.provider.status import provider_checks

    with progress(as_json, "check"):
        checked = RuntimeStatus((*runtime_status().checks, *provider_checks()))
    show(checked, as_json, code=int(not checked.passed))
