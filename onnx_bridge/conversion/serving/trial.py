"""Trying a model in sessions of the provider: what is wrong with one, and the first node with which it is so."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.device import InsideDevice
from onnx_bridge.core.delta_debug import bisect_first
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.digest import file_digest
from onnx_bridge.core.values import Value
from onnx_bridge.model import io as models
from onnx_bridge.provider.provider import CACHE_OPTION, Calls, Provider, ProviderError, Session, SessionOptions
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.comparison.judge import Judge
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples.inputs import Sample
from passes.graphs.quantization import is_quantized
from passes.isolation.failure import NativeFailure
from passes.probing.partition import extract

_DIGITS = 12


@dataclass(frozen=True)
class Served:
    """A model that is ready to be served.

    Attributes:
        path: its file, named after its content: the provider's names of programs hold neither weights nor operators.
        session: the second session with it, after a first one has filled a cache.
        calls: the calls of MIGraphX by which that session found its programs.
        programs: the number of programs in the cache.
    """

    path: Path
    session: Session
    calls: Calls
    programs: int


@dataclass(frozen=True)
class Trial:
    """Sessions with models in a folder.

    Attributes:
        provider: the provider.
        samples: inputs on which sessions must be right.
        folder: a folder for temporary files.
        tolerances: how far outputs may be from the reference's.
        name: the first part of the names of files that are kept.
    """

    provider: Provider
    samples: Sequence[Sample]
    folder: Path
    tolerances: Tolerances
    name: str = "model"

    @classmethod
    def of(
        cls, model: ir.Model, provider: Provider, samples: Sequence[Sample], folder: Path, name: str = "model"
    ) -> Trial:
        """Return the trial of a model; a quantized one may round otherwise next to a tie."""
        return cls(provider, samples, folder, Tolerances("int8") if is_quantized(model) else Tolerances(), name)

    def serve(self, model: ir.Model) -> tuple[Served | None, str | None]:
        """Write a model, let a first session fill a cache, and run a second one; return it and what is wrong, if so."""
        served = None
        path = self._written(model)
        cache = path.with_suffix(".cache")
        cache.mkdir(exist_ok=True)
        options = SessionOptions(provider={CACHE_OPTION: str(cache)})
        try:
            self.provider.session(path, options)
            session = self.provider.session(path, options)
            served = Served(path, session, session.calls, len(list(cache.iterdir())))
            return served, self.difference(session)
        except (ProviderError, NativeFailure) as error:
            return served, error.what

    def session(self, model: ir.Model) -> Session:
        """Open a session with a model; raises ProviderError, NativeFailure."""
        path = self.folder / "model.onnx"
        models.save(model, path)
        return self.provider.session(path)

    def open(self, model: ir.Model, *, scalars: bool = True) -> tuple[Session | None, str | None]:
        """Return the session with a model, if there is one, and why there is none or how its outputs differ, if so.

        Args:
            model: the model.
            scalars: whether scalars must be scalars, and not of the shape (1,).
        """
        session = None
        try:
            session = self.session(model)
            return session, self.difference(session, scalars=scalars)
        except (ProviderError, NativeFailure) as error:
            return session, error.what

    def problem(self, model: ir.Model, *, scalars: bool = True) -> str | None:
        """Return the second part of `open`."""
        return self.open(model, scalars=scalars)[1]

    def difference(self, session: Session, *, scalars: bool = True) -> str | None:
        """Return how outputs of a session differ from the reference's on the samples that this takes.

        A difference is judged as `check` judges it: it counts only if the reference determines the output.
        """
        assert isinstance(session.model, Path)
        reference = Reference(session.model)
        for sample in self.samples:
            given = {name: value for name, value in sample.items() if name in reference.input_names}
            try:
                expected = reference.run(given)
            except InputError:
                continue
            outputs = session.run(given)
            session.runs.append((given, outputs))
            if not scalars:
                outputs = {name: shaped_as(output, expected[name]) for name, output in outputs.items()}
            compared = compare(outputs, expected, self.tolerances)
            if not compared.passed:
                model = models.load(session.model)
                judge = Judge(model, self.tolerances, session=reference)
                compared = judge.judge(outputs, expected, given, InsideDevice(model, self))
            for output in compared.outputs:
                if output.differs:
                    return f"output {output.name}: {output.reason}"
        return None

    def run(self, model: ir.Model, inputs: Mapping[str, Value], expected: Mapping[str, Value]) -> dict[str, Value]:
        """Run a model in a session, its scalars shaped as expected ones; raises ProviderError, NativeFailure."""
        path = self.folder / "inside.onnx"
        models.save(model, path)
        outputs = self.provider.session(path).run(inputs)
        return {name: shaped_as(output, expected[name]) for name, output in outputs.items()}

    def _written(self, model: ir.Model) -> Path:
        """Write a model, and return its file, which is named after its content; external data are beside it."""
        first = self.folder / f"{self.name}.onnx"
        models.save(model, first)
        files = sorted(self.folder.glob(f"{glob.escape(first.name)}*"))  # the model sorts before its data
        digests = [file_digest(file)[: _DIGITS // len(files)] for file in files]
        path = first.with_name(f"{self.name}-{''.join(digests)}.onnx")
        if len(files) == 1:
            return first.rename(path)
        models.save(model, path)
        for file in files:
            file.unlink()
        return path

    def first_failing(self, model: ir.Model, nodes: Sequence[ir.Node]) -> ir.Node:
        """Return the first of some nodes of a model that fails: up to it the model fails, and not before it."""

        def fails(count: int) -> bool:
            wanted = [str(value.name) for value in nodes[count - 1].outputs if value.name]
            inputs = [str(value.name) for value in model.graph.inputs]
            return count == len(nodes) or self.problem(extract(model, inputs, wanted), scalars=False) is not None

        return nodes[bisect_first(range(1, len(nodes) + 1), fails) - 1]


def shaped_as(value: Value, expected: Value) -> Value:
    """Return (1,) as a scalar if a scalar is expected."""
    if (
        isinstance(value, np.ndarray)
        and isinstance(expected, np.ndarray)
        and (value.shape, expected.shape) == ((1,), ())
    ):
        return value.reshape(())
    return value
