"""A bundle: what `convert` writes for one model, and the callable that runs it.

    NAME.mxr  NAME.onnx  manifest.json                          one program
    NAME.onnx  manifest.json  batch=1,seq=128/  batch=4,seq=128/  …    several, each a bundle of its own

A bundle is a folder, or a single program (``NAME.mxr``) with its manifest beside it (``NAME.manifest.json``). A model
that does not run wholly on MIGraphX is in partitions: each device partition has a ``.mxr``, and host partitions are
extracted from the cleaned ONNX, which keeps their weights.

If there are programs for several sizes, a call picks the smallest that holds its arrays, pads them to its sizes, and
cuts the outputs to the sizes that the unpadded inputs imply (`onnx_bridge.bundle.padding`). Whether a model computes
the same on padded inputs depends on the model (masks are for that): `convert` tries it with the reference, and `check`
compares each program with samples smaller than it as well. If an input selects between branches, there are programs
for both of its values, and a call picks those of the value that it has.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from onnx_bridge.bundle.decoding.decoder import Decoder
from onnx_bridge.bundle.files.archive import is_packed
from onnx_bridge.bundle.files.pack import unpacked
from onnx_bridge.bundle.manifest.axes import label
from onnx_bridge.bundle.manifest.layout import WIDTH
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.proof import BundleProof
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.bundle.padding import Padding, bucket_samples
from onnx_bridge.bundle.program import Program, Runnable
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.code_digest import code_digest
from onnx_bridge.core.files.kept_runs import KeptRuns
from onnx_bridge.core.files.known_digests import known_digest
from onnx_bridge.core.values import Value
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.machine import Machine
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.model import io as models
from onnx_bridge.model.foreign import hint_of_missing
from onnx_bridge.requests.conversion import RuntimeRequest
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.inputs import Sample
from passes.isolation.limits import Limits

_NOT_RUN = {"proof", "timings", "notes", "share"}
"""The parts of a manifest that are written when the bundle has been run."""


def load(
    path: str | os.PathLike[str],
    *,
    runtime: str | None = None,
    timeout: float | None = None,
    memory: float | None = None,
) -> Bundle:
    """Load a bundle, ready to run.

    Args:
        path: its folder, its program (``.mxr``), or the file that it was packed into.
        runtime: which MIGraphX (see `onnx_bridge.migraphx.runtime.find`).
        timeout: limit in seconds for each of MIGraphX's steps, and for each run of a host partition.
        memory: limit in GiB for MIGraphX's process, and for ONNX Runtime's.

    Raises:
        InputError: there is no bundle, or it is damaged or of another format.
        RuntimeNotFound: no MIGraphX here can run it: another version, no GPU, or another kind of GPU.
        RuntimeFailure: MIGraphX cannot read the program.
    """
    bundle = Bundle(path, runtime=runtime, timeout=timeout, memory=memory)
    bundle.open()
    return bundle


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` names a bundle rather than a model."""
    path = Path(path)
    return path.suffix == ".mxr" or is_packed(path) or (path.is_dir() and manifest_path(path).exists())


class Bundle(Runnable):
    """A converted model: call it with named arrays to run it.

    Args:
        path: its folder, its program, or a packed bundle.
        runtime, timeout, memory: as for `load`.

    Attributes:
        path: its folder, or its program; of a packed bundle, the folder that it was unpacked to.
        manifest: what is known of it.
        programs: its programs, the smallest first.
        is_kept: whether a conversion found it up to date, and made nothing.

    Raises:
        InputError: there is no bundle, or its manifest is damaged, or of another format.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        runtime: str | None = None,
        timeout: float | None = None,
        memory: float | None = None,
    ) -> None:
        self.path = unpacked(path)
        where = manifest_path(self.path)
        if not where.exists():
            what, hint = "this is not a bundle: it has no manifest", "`onnx-bridge convert` makes one"
            if not self.path.exists():
                what, hint = "the bundle does not exist", hint_of_missing(self.path) or hint
            raise InputError(what, where=str(self.path), hint=hint)
        self.manifest = Manifest.read(where)
        super().__init__(self.manifest, where.parent)
        self._runtime, limits = runtime, Limits.of(timeout, memory)
        self.programs = [Program(self.path, self.manifest, info, runtime, limits) for info in self.manifest.programs]
        self._choice: list[str] = []
        self.is_kept = False
        for info in self.manifest.programs:
            if info.manifest is not None and (problem := info.manifest.problem(self.path)):
                what = f"the program {info.folder} is not the one that the manifest describes: {problem}"
                raise InputError(what, where=str(self.path / info.folder), hint="convert again")
        if self.manifest.decoder is not None:
            self.decoder.check()

    @classmethod
    def of(cls, path: str | os.PathLike[str], request: RuntimeRequest) -> Bundle:
        """Open a bundle with the runtime and the limits of a request."""
        return cls(path, runtime=request.runtime, timeout=request.timeout, memory=request.memory)

    @property
    def proof(self) -> BundleProof:
        """The extent to which the numbers of all programs are known."""
        return self.manifest.proof

    @property
    def program(self) -> Program:
        """The program of a bundle that does not choose one; raises InputError if it chooses by sizes."""
        _ = self.manifest.program
        return self.programs[0]

    @functools.cached_property
    def decoder(self) -> Decoder:
        """The part that generates text with the programs; raises InputError if the bundle is not a decoder."""
        if self.manifest.decoder is None:
            raise InputError(
                "this is not a decoder", where=str(self.path), hint="convert the model with `decoder=True`"
            )
        return Decoder(self.path, self.manifest.decoder, self.programs)

    @property
    def wholly_on_migraphx(self) -> bool:
        """True if nothing runs on ONNX Runtime."""
        return self.manifest.wholly_on_migraphx

    @property
    def most_rows(self) -> int | None:
        """The largest size of the first axis of all inputs; None if they have none in common, or it is not open."""
        first = {tensor.shape[0] if tensor.shape else None for tensor in self.inputs}
        sizes = [info.dims.get(str(axis)) for axis in first for info in self.manifest.programs]
        return max(filter(None, sizes)) if len(first) == 1 and all(sizes) else None

    @property
    def notes(self) -> list[str]:
        """Sentences on how programs were loaded, and on the last call: the program, and what was padded."""
        return [*(note for program in self.programs for note in program.notes), *self._choice]

    def runs(self, *, fresh: bool = False) -> KeptRuns:
        """Return its runs, which are kept if MIGraphX's target is ``ref`` and all files are as the manifest says.

        Args:
            fresh: run again what is kept: files are then compared as they are loaded.
        """
        entries = self.manifest.to_json()
        if self.manifest.target != "ref" or self.manifest.request.application is not None:
            return KeptRuns(None)
        if not fresh and any(file.problem(self._folder, known_digest) for file in self.manifest.files):
            return KeptRuns(None)
        machine = Machine.here(runtimes.find(self._runtime))
        parts = {name: entries[name] for name in entries.keys() - _NOT_RUN}
        on = {"runtime": machine.identity, "environment": dict(machine.environment), "code": code_digest(__name__)}
        return KeptRuns({"bundle": parts, **on}, fresh=fresh)

    def open(self, worker: Worker | None = None) -> None:
        """Load all programs, by default into a process that bundles share; raises like `load`."""
        for program in self.programs:
            program.open(worker)

    def choose(self, sizes: Mapping[str, int]) -> Program:
        """Return the smallest program that holds some sizes, with the values of selecting inputs; raises InputError."""
        exact = self.manifest.exact if self.manifest.pads else self.manifest.dims
        for program in self.programs:
            dims = program.info.dims
            fits = (sizes[name] == size if name in exact else sizes[name] <= size for name, size in dims.items())
            if dims.keys() == {*self.manifest.dims} and all(fits):
                return program
        buckets = "; ".join(program.info.label for program in self.programs if program.info.dims)
        hint, chosen = f"there are {buckets}", [program.info.dims for program in self.programs if program.info.dims]
        known = {name: {dims[name] for dims in chosen} for name in self.manifest.dims}
        more = {name: (max(ends), sizes[name]) for name, ends in known.items() if sizes[name] > max(ends)}
        hint += f"; convert with `buckets={more}`" if more else ""
        has = "holds" if self.manifest.pads else "has the sizes"
        raise InputError(f"no bucket {has} {label(sizes)}", where=str(self.path), hint=hint)

    def chosen(self, sample: Mapping[str, Value]) -> tuple[Program, dict[str, int]]:
        """Return the program that takes a valid sample, and the sizes that the sample has; raises InputError."""
        given = {name: array for name, array in sample.items() if isinstance(array, np.ndarray)}
        values = {name: int(given[name].item()) for name in self.manifest.exact if name in given}
        small = {**self.sizes({name: array.shape for name, array in given.items()}), **values}
        return self.choose({name: small[name] for name in self.manifest.dims}), small

    def __call__(self, arrays: Mapping[str, Value]) -> dict[str, Value]:
        """Run the model.

        Args:
            arrays: an array for each input, by name, in the model's dtypes, and in its shapes, or, if there are
                programs for several sizes, in any up to the largest. Strings are an array of objects or of numpy's
                string dtype, a sequence is a list of arrays, an empty optional is None.

        Returns:
            The outputs by name, in the same form.

        Raises:
            InputError: an array is missing, unknown, or of another shape or dtype, or ONNX Runtime refuses it.
            RuntimeFailure: MIGraphX failed, or its process ended.
            NativeFailure: ONNX Runtime exceeded a limit, or has crashed.
        """
        if not self.manifest.dims:
            return self.programs[0](arrays)
        sample = samplers.validate(arrays, self.specs)
        given = {name: array for name, array in sample.items() if isinstance(array, np.ndarray)}
        program, small = self.chosen(sample)
        large = program.info.dims
        padding = Padding(self.manifest.request.pad, self.manifest.request.pad_before)
        inputs, padded = {}, []
        for info in self.inputs:
            if info.name in self.manifest.exact:
                continue
            array = given[info.name]
            if small != large:
                info.check(array, small, large)
            inputs[info.name] = larger = padding.pad(array, info, small, large)
            if larger is not array:
                padded.append(f"{info.name} {list(array.shape)} to {list(larger.shape)}")
        listed = f", padded: {', '.join(padded)}" if padded else ""
        self._choice = [f"run in the bucket {label(large)}{listed}"]
        outputs = program(inputs)
        for info in self.outputs if padded else ():
            output = outputs[info.name]
            if isinstance(output, np.ndarray):
                outputs[info.name] = padding.cut(output, info.shape or (), small, large)
        return outputs

    def sample(self, sizes: Mapping[str, int] | None = None, *, seed: int = 0) -> Sample:
        """Generate a sample that suits the roles of the inputs, which are known if the model is there.

        Args:
            sizes: sizes of symbols, and values of selecting inputs; default: those of the smallest program.
            seed: a number of zero or more.
        """
        model = [] if self.model_path is None else samplers.specs(models.load(self.model_path))
        roles = {spec.name: spec.role for spec in model}
        specs = [replace(spec, role=roles.get(spec.name, spec.role)) for spec in self.specs]
        return bucket_samples(specs, self.programs[0].info.dims if sizes is None else sizes, seed=seed)[0]

    def close(self) -> None:
        """Release all that was loaded; the next call loads it again."""
        for program in self.programs:
            program.close()

    def __repr__(self) -> str:
        return f"Bundle({str(self.path)!r}, target={self.manifest.target!r})"

    def sizes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Return the sizes that programs are chosen by, from the shapes of all inputs; selecting inputs have none.

        Raises InputError if a shape does not fit; the error names the input.
        """
        sizes: dict[str, int] = {}
        layout = self.manifest.decoder
        for info in self.inputs:
            for axis, size in zip(info.shape or (), shapes[info.name], strict=False):
                if isinstance(axis, str):
                    sizes.setdefault(axis, size)
            if layout is not None and info.name == layout.ids:
                sizes[WIDTH] = shapes[info.name][1]
        for info in self.inputs:
            expected = info.sizes_for(sizes)
            if expected is not None and None not in expected and tuple(shapes[info.name]) != expected:
                what = f"the shape is {list(shapes[info.name])}, and the programs take {list(info.shape or ())}"
                raise InputError(what, where=f"input {info.name!r}")
        return {name: sizes[name] for name in self.manifest.dims if name in sizes}
