"""Making the programs of a module, or finding them on disk.

An entry of the cache is a folder named by what it was made from: the module's fingerprint, the call's structure
with dtypes, shapes and constants, options, the versions and sources of everything in between. It appears whole or not
at all, is made once however many processes want it, and one that is damaged is made again. What is found is tried: the
module must still return, for the samples in the entry, what it returned when the entry was made.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import filelock
import onnx_ir as ir
import torch
from torch import nn

from onnx_bridge.conversion.convert import convert
from onnx_bridge.conversion.keys import cleaning_key, conversion_key, key_of
from onnx_bridge.core.atomic_write import atomic_folder
from onnx_bridge.core.errors import BridgeError, InputError, nearest
from onnx_bridge.core.user_cache import cache_dir
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.targets import resolve_target
from onnx_bridge.reference.compare import compare
from onnx_bridge.torch.export.calls import Call, Flat, eager, quiet, settled
from onnx_bridge.torch.export.export import Exported, export
from onnx_bridge.torch.export.fingerprint import fingerprint, own_code
from onnx_bridge.torch.export.samples import check_dynamic, resized, sizes_of
from onnx_bridge.torch.export.structure import Structure, renamed
from onnx_bridge.torch.export.tensors import to_array, to_tensor
from onnx_bridge.torch.lowering import padding, programs
from onnx_bridge.torch.lowering.folder_tensor import Folder
from onnx_bridge.torch.lowering.in_process import require
from onnx_bridge.torch.lowering.programs import Entry, Port, Programs

_LIBRARIES = ("torch", "onnx", "onnx-ir", "onnxruntime", "onnxscript", "numpy")
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How programs are made; the fields are arguments of `onnx_bridge.torch.lower`."""

    target: str = "auto"
    precision: str | None = None
    exporter: Literal["auto", "dynamo", "torchscript"] = "auto"
    opset: int | None = None
    host: bool = True
    cache: bool | str | os.PathLike[str] = True
    timeout: float | None = None
    memory: float | None = None
    runtime: str | None = None
    before: tuple[str, ...] = ()
    in_process: bool = False

    @property
    def limits(self) -> dict[str, Any]:
        """What `Programs` takes."""
        names = ("runtime", "timeout", "memory", "in_process")
        return {name: getattr(self, name) for name in names}

    @property
    def folder(self) -> Path | None:
        """Where entries are kept; None where they are not."""
        if self.cache is True:
            return cache_dir() / "torch"
        return None if self.cache is False else Path(self.cache)


@dataclass(frozen=True)
class Made:
    """Programs, and how a module's call becomes theirs.

    Attributes:
        programs: loaded.
        call: the sample's.
        result: how what the module returns is put together from the outputs.
        found: whether they were there already.
    """

    programs: Programs
    call: Call
    result: Structure
    found: bool


def make(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic: Mapping[str, Mapping[int, str]],
    buckets: Mapping[str, Sequence[int]],
    options: Options,
    tell: Tell,
) -> Made:
    """The programs of a module for such a call; raises as `onnx_bridge.torch.lower`."""
    if options.in_process:
        require(options.runtime, options.target)
    # under inference mode tensors cannot be traced, and the user's random numbers are not ours
    with torch.inference_mode(False), torch.random.fork_rng(devices=()):
        return _make(_Request(module, tuple(args), dict(kwargs), dynamic, buckets, options, tell))


def _make(request: _Request) -> Made:
    options, tell = request.options, request.tell
    home, key = options.folder, None
    if home is not None:
        key = request.key()
        if key is None:
            tell("not cached: of the module's attributes nothing can be said")
    if home is None or key is None:
        return _opened(request.build(Folder()))
    place = home / key
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(home / f"{key}.lock")
        lock.acquire()
    except OSError:  # a cache that cannot be written is done without
        return _opened(request.build(Folder()))
    try:
        if place.is_dir():
            if (made := request.find(Folder(place))) is not None:
                return made
            shutil.rmtree(place, ignore_errors=True)
        with atomic_folder(place) as temporary:
            made = request.build(Folder(temporary))
        return _opened(replace(made, programs=Programs(Folder(place), **options.limits)))
    finally:
        lock.release()


def _opened(made: Made) -> Made:
    made.programs.open()
    return made


class _Request:
    def __init__(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dynamic: Mapping[str, Mapping[int, str]],
        buckets: Mapping[str, Sequence[int]],
        options: Options,
        tell: Tell,
    ) -> None:
        self.module, self.args, self.kwargs = module, args, kwargs
        self.dynamic, self.buckets, self.options, self.tell = dynamic, buckets, options, tell
        self.call, self.tensors = Call.of(module, args, kwargs)
        self.dims = check_dynamic(self.tensors, dynamic)
        _check_buckets(self.dims, buckets, options.before)

    def key(self) -> str | None:
        """The entry's name; None where the module cannot be told from others."""
        made_of = fingerprint(self.module, self.call.positional, dict(self.call.keywords))
        if made_of is None:
            return None
        options, runtime = self.options, runtimes.find(self.options.runtime)
        cleaned = cleaning_key(
            made_of,
            pipeline="default",
            dims={},
            shapes={name: list(each.shape) for name, each in self.tensors.items() if name not in self.dims},
            freeze={},
            runtime=runtime,
        )
        target = resolve_target(options.target, runtime)
        conversion = conversion_key(cleaned, host=options.host, target=target, runtime=runtime)
        return key_of(
            {
                "conversion": conversion,
                "inputs": {name: _described(each, self.dims.get(name, {})) for name, each in self.tensors.items()},
                "buckets": {symbol: sorted(sizes) for symbol, sizes in self.buckets.items()},
                "before": sorted(options.before),
                "exporter": options.exporter,
                "opset": options.opset,
                "code": own_code(),
                "libraries": {name: metadata.version(name) for name in _LIBRARIES},
            }
        )

    def find(self, folder: Folder) -> Made | None:
        """The entry of a folder; None where it is damaged, or the module computes something else by now."""
        try:
            made = Programs(folder, **self.options.limits)
            samples = programs.read_samples(folder.path)
            with settled(self.module) as stand_in, quiet():
                flat = Flat(stand_in, self.call).eval()
                self.tell("check")
                results = [_result(flat, given, expected) for given, expected in samples]
            if not results or results[0] is None or None in results:
                return None
            self.tell("load")
            made.open()
        except (BridgeError, OSError, ValueError, KeyError, RuntimeError, EOFError, TypeError, pickle.UnpicklingError):
            return None
        return Made(made, self.call, results[0], True)

    def build(self, folder: Folder) -> Made:
        """Export, try the buckets, and convert."""
        options = self.options
        exported = export(
            self.module,
            self.args,
            self.kwargs,
            dynamic=self.dynamic,
            exporter=options.exporter,
            opset=options.opset,
            progress=self.tell,
        )
        if exported.changing:
            raise InputError(exported.changing[0], where=type(self.module).__name__)
        combined = padding.combinations(self.buckets)
        self._try(exported, combined)
        notes = list(exported.notes)
        for index, sizes in enumerate(combined):
            said = ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())
            bundle = convert(
                exported.model,
                folder.path / str(index),
                target=options.target,
                dims=sizes,
                host=options.host,
                timeout=options.timeout,
                memory=options.memory,
                runtime=options.runtime,
                progress=self._telling(said),
            )
            notes += [note for note in bundle.manifest.notes if note not in notes]
        graph = exported.model.graph
        dtypes = {name: str(each.dtype) for name, each in self.tensors.items()}
        given = {name: str(to_tensor(array).dtype) for name, array in exported.expected[0].items()}
        Entry(
            tuple(Port(str(value.name), dtypes[str(value.name)], _dims(value)) for value in graph.inputs),
            tuple(Port(str(value.name), given[str(value.name)], _dims(value)) for value in graph.outputs),
            tuple(combined),
            exported.exporter,
            tuple(notes),
            options.before,
        ).write(folder.path)
        programs.write_samples(folder.path, _samples(exported))
        return Made(Programs(folder, **options.limits), self.call, exported.result, False)

    def _telling(self, said: str) -> Tell:
        """What tells a stage of one bucket."""
        return lambda stage: self.tell(f"{stage} ({said})" if said else stage)

    def _try(self, exported: Exported, combined: Sequence[Mapping[str, int]]) -> None:
        """Make sure that padding changes nothing.

        Raises:
            InputError: it does; names the output.
        """
        if not self.buckets:
            return
        inputs = {str(value.name): _dims(value) for value in exported.model.graph.inputs}
        outputs = {str(value.name): _dims(value) for value in exported.model.graph.outputs}
        before = {
            name: padding.axes_of(dims, self.options.before) for name, dims in (*inputs.items(), *outputs.items())
        }
        names = list(exported.expected[0])
        given = sizes_of(self.tensors, self.dims)
        with settled(self.module) as stand_in, quiet():
            flat = Flat(stand_in, self.call).eval()

            def run(tensors: padding.Tensors, _sizes: padding.Sizes) -> dict[str, torch.Tensor]:
                _, leaves = eager(flat, tensors)
                return dict(zip(names, leaves.values(), strict=True))

            for large in combined:
                small = {symbol: min(given[symbol], max(1, size - 1)) for symbol, size in large.items()}
                if small == large:
                    continue
                shapes = {name: padding.shape_of(dims, small) for name, dims in outputs.items()}
                tensors = resized(self.tensors, self.dims, small)
                found = padding.disturbed(run, tensors, inputs, shapes.__getitem__, small, large, before)
                if found is not None:
                    sizes = ", ".join(f"{symbol} from {small[symbol]} to {size}" for symbol, size in large.items())
                    what = f"the module returns something else when it is padded ({sizes}): {found}"
                    hint = "give it a mask that heeds padding, or lower it once for each size"
                    raise InputError(what, where=type(self.module).__name__, hint=hint)


def _check_buckets(
    dims: Mapping[str, Mapping[int, str]], buckets: Mapping[str, Sequence[int]], before: Sequence[str]
) -> None:
    """Make sure that each open dimension has sizes, and each size a dimension."""
    for symbol in before:
        if symbol not in buckets:
            what = "it is to be padded at its start, and there are no buckets for it"
            raise InputError(what, where=f"dimension {symbol!r}", hint=nearest(symbol, buckets))
    symbols = {symbol for each in dims.values() for symbol in each.values() if symbol.isidentifier()}
    for symbol in symbols ^ buckets.keys():
        if symbol in symbols:
            hint = f"give sizes: buckets={{{symbol!r}: […]}}"
            raise InputError("it is open, and MIGraphX needs its sizes", where=f"dimension {symbol!r}", hint=hint)
        known = f"the open dimensions are {', '.join(sorted(symbols))}" if symbols else "name dimensions by `dynamic`"
        raise InputError("there are buckets for it, and no input has it", where=f"dimension {symbol!r}", hint=known)
    for symbol, sizes in buckets.items():
        if not isinstance(sizes, Iterable):
            raise InputError(f"its sizes are {sizes!r}", where=f"dimension {symbol!r}", hint="give a list of them")
        if not sizes or any(type(size) is not int or size < 1 for size in sizes):
            raise InputError(f"its sizes are {list(sizes)}", where=f"dimension {symbol!r}", hint="give some above zero")


def _described(tensor: torch.Tensor, dims: Mapping[int, str]) -> list[Any]:
    return [str(tensor.dtype), [dims.get(axis, size) for axis, size in enumerate(tensor.shape)]]


def _result(flat: Flat, given: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> Structure | None:
    """How the module returns what it is expected to for a sample; None where it returns something else."""
    result, leaves = eager(flat, given)
    names = dict(zip(leaves, expected, strict=True))
    found = {names[name]: to_array(each) for name, each in leaves.items()}
    right = {name: to_array(each) for name, each in expected.items()}
    return renamed(result, names) if compare(found, right).passed else None


def _samples(exported: Exported) -> programs.Samples:
    return [
        (
            {name: to_tensor(array).clone() for name, array in given.items()},
            {name: to_tensor(array).clone() for name, array in expected.items()},
        )
        for given, expected in zip(exported.samples, exported.expected, strict=True)
    ]


def _dims(value: ir.Value) -> padding.Dims:
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape or ())
