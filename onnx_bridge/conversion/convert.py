"""The conversion of a model into a bundle, from the first step to the last."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.conversion.source import ModelSource, Source
from onnx_bridge.conversion.steps.clean import clean
from onnx_bridge.conversion.steps.compile import partition_and_compile
from onnx_bridge.conversion.steps.describe import describe
from onnx_bridge.conversion.steps.prove import prove
from onnx_bridge.conversion.steps.publish import publish
from onnx_bridge.conversion.steps.resolve import resolve
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.values import Array
from onnx_bridge.requests.cleaning import as_json, as_shapes
from onnx_bridge.requests.conversion import PROVE_BUDGET, ConvertRequest, Prove
from onnx_bridge.samples.files import SampleSource
from onnx_bridge.samples.inputs import Sample
from passes.isolation.limits import Limits, limited


def run(
    model: ModelSource | Source,
    out: Path,
    request: ConvertRequest,
    progress: Progress | None = None,
    samples: Sequence[Sample] = (),
) -> Bundle:
    """Convert a model as a request says; errors are those of `convert`.

    Args:
        model: as for `convert`.
        out: likewise.
        request: how.
        progress: as for `convert`.
        samples: what the bundle is run on to prove it at real size; default: a generated one.
    """
    with (
        limited(Limits.of(request.timeout, request.memory)),
        resolve(Source.of(model), out, request, progress) as plan,
    ):
        cleaned = clean(plan)
        compiled = partition_and_compile(cleaned)
        manifest = prove(compiled, describe(compiled), samples)
        return publish(manifest, plan)


def convert(  # noqa: PLR0913
    model: str | os.PathLike[str] | ir.Model,
    out: str | os.PathLike[str],
    *,
    target: str = "auto",
    pipeline: str = "default",
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    freeze: Mapping[str, Array | str] | None = None,
    host: bool = True,
    cache: bool = True,
    probe_budget: float | None = None,
    precision: str = "fp32",
    calibration: SampleSource | None = None,
    keep_fp32: Sequence[str] = (),
    options: Mapping[str, bool | str] | None = None,
    timeout: float | None = None,
    memory: float | None = None,
    runtime: str | None = None,
    rehearse: Literal["gpu"] | None = None,
    reuse: bool = True,
    prove: Prove = "auto",
    prove_budget: float = PROVE_BUDGET,
    progress: Progress | None = None,
) -> Bundle:
    """Clean a model, compile it with MIGraphX, and write the bundle.

    What MIGraphX cannot run becomes host partitions of the bundle, which ONNX Runtime runs; a note lists the nodes and
    the reasons. An earlier bundle in ``out`` is replaced as a whole, once the new one is complete.

    Args:
        model: an ONNX file, or a model in memory, which is not modified.
        out: a folder, or a name ending in ``.mxr`` for the program alone (the manifest goes beside it).
        target: ``gpu``, ``ref``, or ``auto``: gpu if there is one.
        pipeline: the passes, as a specification or the name of a pipeline.
        dims: sizes of symbolic dimensions by name; the others become 1.
        shapes: whole shapes by input name.
        freeze: inputs that become constant, by name: an array, or a value as JSON.
        host: whether nodes may run on ONNX Runtime; if not, the need for it is an error.
        cache: whether to use verdicts of earlier runs.
        probe_budget: estimated seconds, in all, for comparing large nodes with the reference at real size, before
            anything is compiled; default: 2. Nodes beyond it are compared by small witnesses.
        precision: what to compute in: fp32, fp16, bf16, int8 or fp8 (see `onnx_bridge.conversion.precision.precision`).
        calibration: samples for int8 and fp8 (see `onnx_bridge.samples.calibration`); default: generated samples, with
            a note.
        keep_fp32: operators, and for fp16 and bf16 nodes, that stay in float32.
        options: compile options by name (see `onnx_bridge.migraphx.compile_options`).
        timeout: limit in seconds for each of parsing, compiling and saving, and for each run of ONNX Runtime.
        memory: limit in GiB for MIGraphX's process.
        runtime: which MIGraphX (see `onnx_bridge.migraphx.runtime.find`).
        rehearse: ``gpu`` also runs the gpu target's passes on the probes of nodes, if they need no GPU, and
            rewrites what is wrong after them; kernels, their precision and their memory are not rehearsed.
        reuse: whether to take the cleaned model of an earlier bundle in ``out`` if nothing that cleaning depends on has
            changed; it is not taken without ``cache`` either.
        prove: whether the bundle is run against the reference (ONNX Runtime on the original model, on a seeded sample):
            ``auto`` at real size where that is estimated to take at most ``prove_budget``, else by a witness, the same
            model with smaller inputs; ``always`` at real size, however long it takes; or ``never``. What the numbers
            rest on is the bundle's ``proof``.
        prove_budget: seconds.
        progress: called with each `onnx_bridge.core.progress.Stage` as it begins, and with details.

    Raises:
        InputError: the model or an argument is wrong, or ``out`` cannot be written.
        ParityError: the bundle's output differs from the reference's; an earlier bundle in ``out`` stays.
        RuntimeFailure: there is no MIGraphX, or it exceeded a limit; or a node can be run neither by it nor, if
            allowed, by ONNX Runtime.
        NativeFailure: ONNX Runtime exceeded a limit.
    """
    request = ConvertRequest(
        target=target,
        pipeline=pipeline,
        dims=dict(dims or {}),
        shapes=as_shapes(shapes),
        freeze=as_json(freeze),
        host=host,
        cache=cache,
        probe_budget=probe_budget,
        precision=precision,
        calibration=calibration,
        keep_fp32=tuple(keep_fp32),
        options=dict(options or {}),
        timeout=timeout,
        memory=memory,
        runtime=runtime,
        rehearse=rehearse,
        reuse=reuse,
        prove=prove,
        prove_budget=prove_budget,
    )
    return run(model, Path(out), request, progress)
