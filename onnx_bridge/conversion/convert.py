"""The main job: one model in, one bundle out."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import onnx_ir as ir

import onnx_bridge
from onnx_bridge import model as models
from onnx_bridge.cleaning import Cleaned, clean
from onnx_bridge.conversion.bundle import Bundle, manifest_path, parse
from onnx_bridge.conversion.manifest import FileInfo, Manifest, TensorInfo, is_manifest
from onnx_bridge.errors import BridgeError, InputError, MigraphxError, RuntimeFailure
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.limits import Limits
from onnx_bridge.migraphx.worker import RemoteProgram, Worker


def convert(
    model: str | os.PathLike[str] | ir.Model,
    out: str | os.PathLike[str],
    *,
    target: str = "auto",
    pipeline: str = "default",
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    timeout: float | None = None,
    memory: float | None = None,
    runtime: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Bundle:
    """Clean a model, compile it with MIGraphX, and write the bundle.

    What is in ``out`` changes only once everything is there; an earlier bundle there is replaced as a whole.

    Args:
        model: an ONNX file, or a model in memory, which is left as it is.
        out: a folder, or a name ending in ``.mxr`` for the program alone (the manifest goes beside it).
        target: ``gpu``, ``ref``, or ``auto``: gpu where there is one.
        pipeline: the passes, as a specification or the name of a pipeline.
        dims: sizes of symbolic dimensions by name; those left open become 1, as MIGraphX reads them.
        inputs: whole shapes by input name.
        timeout: most seconds that MIGraphX may take for each of parsing, compiling and saving.
        memory: most GiB that MIGraphX's process may take.
        runtime: which MIGraphX (see `onnx_bridge.migraphx.runtime.find`).
        progress: told each stage as it begins.

    Raises:
        InputError: the model or an argument is wrong, or ``out`` cannot be written.
        RuntimeFailure: there is no MIGraphX, or it refused, crashed, or ran into a limit.
    """
    tell = progress or (lambda _stage: None)
    out = Path(out)
    found = runtimes.find(runtime)
    target = runtimes.resolve_target(target, found)
    worker = workers.shared(found)
    worker.launch()  # it gets ready while the model is cleaned
    limits = Limits.of(timeout, memory)
    timings: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(name: str) -> Iterator[None]:
        tell(name)
        started = time.perf_counter()
        yield
        timings[name] = round(time.perf_counter() - started, 4)

    name = _name(model)
    alone = out.suffix == ".mxr"
    wanted = [out] if alone else [out / f"{name}{ending}" for ending in (".mxr", ".onnx", ".onnx.data")]
    # hashing goes on beside MIGraphX's work
    with _staging(out) as folder, worker.limited(limits), ThreadPoolExecutor(1) as beside:
        _keep_off([*wanted, manifest_path(out)], model, out)
        with stage("clean"):
            cleaned = clean(model, pipeline=pipeline, dims=dims, inputs=inputs, default_dim=1, progress=progress)
            source = beside.submit(_source, model)
            _check_ranks(cleaned.model)
        with stage("write"):
            onnx_path = folder / f"{name}.onnx"
            try:
                models.save(cleaned.model, onnx_path)
            except InputError as error:  # names the file that was not to be
                raise InputError(error.what, where=str(out), hint=error.hint) from error
            onnx_files = sorted(folder.iterdir())  # the model sorts before its data
            infos = [beside.submit(FileInfo.of, each) for each in onnx_files if not alone]
        with stage("start"):
            worker.start()
        with stage("parse"), _naming_the_node(cleaned.model):
            program = _parse(worker, onnx_path, cleaned)
        with stage("compile"):
            program.compile(target)
        with stage("save"):
            mxr_path = folder / wanted[0].name
            program.save(mxr_path)
        tell("finish")
        manifest = Manifest(
            name=name,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            source=source.result(),
            program=FileInfo.of(mxr_path),
            model=tuple(info.result() for info in infos),
            target=target,
            architecture=runtimes.gpu() if target == "gpu" else None,
            options={
                "pipeline": str(cleaned.pipeline),
                "dims": dict(dims or {}),
                "inputs": {key: list(value) for key, value in (inputs or {}).items()},
                "timeout": timeout,
                "memory": memory,
            },
            versions=_versions(worker),
            passes=[step.to_json() for step in cleaned.steps],
            inputs=tuple(_inputs(cleaned.model)),
            outputs=tuple(_outputs(cleaned.model, program)),
            timings=timings,
            notes=cleaned.notes,
        )
        _publish(out, folder, manifest)
    return Bundle(out, runtime=runtime, timeout=timeout, memory=memory)


def _name(model: str | os.PathLike[str] | ir.Model) -> str:
    if isinstance(model, ir.Model):
        return re.sub(r"[^\w.-]+", "_", model.graph.name or "") or "model"
    return Path(model).stem


def _keep_off(wanted: Sequence[Path], model: str | os.PathLike[str] | ir.Model, out: Path) -> None:
    """Refuse to put a file in the place of the model itself, or of one that no earlier conversion made."""
    a_bundle = is_manifest(manifest_path(out))
    for path in filter(Path.exists, wanted):
        if not isinstance(model, ir.Model) and Path(model).exists() and path.samefile(model):
            what = "the bundle would overwrite the model that it is made from"
        elif path != out and not a_bundle:
            what = "there is a file already that no conversion made, and that the bundle would overwrite"
        else:
            continue
        raise InputError(what, where=str(path), hint="give another folder, or a name ending in .mxr")


def _check_ranks(model: ir.Model) -> None:
    """MIGraphX needs to know every size."""
    for value in model.graph.inputs:
        if value.shape is None and value.name not in model.graph.initializers:
            hint = f"give its shape with --input {value.name}:[…]"
            raise InputError("its number of dimensions is unknown", where=f"input {value.name!r}", hint=hint)


def _source(model: str | os.PathLike[str] | ir.Model) -> dict[str, str | None]:
    if isinstance(model, ir.Model):
        return {"path": None, "sha256": None}
    return {"path": str(Path(model).absolute()), "sha256": models.digest(model)}


def _parse(worker: Worker, path: Path, cleaned: Cleaned) -> RemoteProgram:
    program = parse(worker, path, _inputs(cleaned.model))
    wanted, given = len(cleaned.model.graph.outputs), len(program.get_output_shapes())
    if given != wanted:
        names = ", ".join(str(value.name) for value in cleaned.model.graph.outputs)
        raise RuntimeFailure(f"MIGraphX gives {given} outputs where the model has {wanted} ({names})", where=str(path))
    return program


def _inputs(model: ir.Model) -> Iterator[TensorInfo]:
    for value in model.graph.inputs:
        if value.name not in model.graph.initializers:
            assert value.shape is not None and value.dtype is not None  # clean froze them
            yield TensorInfo(str(value.name), value.dtype.numpy().name, tuple(int(dim) for dim in value.shape))  # type: ignore[arg-type]


def _outputs(model: ir.Model, program: RemoteProgram) -> Iterator[TensorInfo]:
    """Dtypes and shapes as the model declares them; what it leaves open, as MIGraphX will give it."""
    for value, shape in zip(model.graph.outputs, program.get_output_shapes(), strict=True):
        dtype = value.dtype.numpy() if value.dtype is not None else shape.dtype
        dims = value.shape
        known = dims is not None and all(isinstance(dim, int) for dim in dims)
        lens = tuple(int(dim) for dim in dims) if known and dims is not None else shape.lens  # type: ignore[arg-type]
        yield TensorInfo(str(value.name), dtype.name, lens)


def _versions(worker: Worker) -> dict[str, str]:
    libraries = {name: metadata.version(name) for name in ("onnx", "onnx-ir", "onnxruntime", "numpy")}
    return {
        "onnx_bridge": onnx_bridge.__version__,
        "migraphx": worker.version,
        "runtime": worker.runtime.identity,
        "python": platform.python_version(),
        **libraries,
    }


@contextlib.contextmanager
def _naming_the_node(model: ir.Model) -> Iterator[None]:
    """MIGraphX names the unknown operator and not the node: name the nodes."""
    try:
        yield
    except MigraphxError as error:
        found = re.search(r"Unknown operator: (\w+)", error.what)
        names = [str(node.name) for node in model.graph.all_nodes() if found and node.op_type == found.group(1)]
        if not names:
            raise
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        where = f"node {', '.join(names[:3])}{more}"
        raise MigraphxError(error.what, where=where, hint=error.hint, output=error.output) from None


@contextlib.contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """A folder beside the files to come, on the same disk; gone afterwards. One conversion at a time into a folder."""
    home = out.parent if out.suffix == ".mxr" else out
    made: list[Path] = []
    try:
        if out.exists() and out.is_dir() == (out.suffix == ".mxr"):
            kind = "a folder" if out.is_dir() else "a file"
            raise InputError(f"this is {kind} already", where=str(out), hint="give a folder, or a name ending in .mxr")
        made += [each for each in (home, *home.parents) if not each.exists()]
        home.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            if home == out:
                stack.enter_context(_lock(home))
                for stale in home.glob(".converting-*"):  # left by a conversion that was killed
                    with contextlib.suppress(InputError), _lock(stale):  # or in use, for a program alone
                        shutil.rmtree(stale, ignore_errors=True)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".converting-", dir=home)))
            stack.enter_context(_lock(folder))
            yield folder
    except BaseException as error:
        for each in made:  # leave nothing where there was nothing
            with contextlib.suppress(OSError):
                each.rmdir()
        if isinstance(error, OSError) and not isinstance(error, BridgeError):
            reason = error.strerror or str(error)
            raise InputError(f"the bundle cannot be written: {reason}", where=str(out)) from error
        raise


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another conversion into this folder is under way", where=str(folder), hint="wait for it to end"
            ) from None
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP):
                raise  # those say that the file system (NFS) has no such locks: better none than no conversion
        yield
    finally:
        os.close(descriptor)


def _publish(out: Path, folder: Path, manifest: Manifest) -> None:
    """Move the files to their place: the manifest first and the program last.

    In between, or after a kill in between, the manifest describes a program that is not there, which `load` refuses.
    """
    place = manifest_path(out)
    before: set[str] = set()
    with contextlib.suppress(BridgeError):
        if place.exists():
            old = Manifest.read(place)
            before = {old.program.file, *(each.file for each in old.model)}
    manifest.write(folder / place.name)
    files = [place.name, *(each.file for each in manifest.model), manifest.program.file]
    for name in files:
        (folder / name).replace(place.parent / name)
    for name in before.difference(files):
        (place.parent / name).unlink(missing_ok=True)
