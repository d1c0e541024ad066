"""Which leg of a model's way to MIGraphX broke, and what it was that broke it: the verb ``bisect``.

    outputs given ─► (reference model ─►) model ─► applications of passes ─► cleaned model ─► MIGraphX ─► its precision

Each leg is compared with what comes before it, so that none answers for another, and the first that differs is halved:

- passes by their single applications, each prefix of which is a model that ONNX Runtime runs;
- MIGraphX by pieces of the cleaned model, fed with the reference's own values (`onnx_bridge.parity.pieces`).

Halving finds a place where what was right gets wrong, whatever else is wrong. Crashes, rejections and what does not end
are searched like wrong numbers, and only the same kind of failure counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Unpack

import onnx_ir as ir

from onnx_bridge.bundle.bundle import is_bundle
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Value
from onnx_bridge.parity.bisect.bisection import Bisection, Finding, Leg
from onnx_bridge.parity.bisect.expected import read_outputs
from onnx_bridge.parity.bisect.exported import export_factory, is_factory
from onnx_bridge.parity.bisect.recorded import Recorded
from onnx_bridge.parity.bisect.search import How, Model, Search
from onnx_bridge.parity.trial import Kind, Precision

Outputs = str | os.PathLike[str] | Sequence[Mapping[str, Value]]


def bisect(
    model: Model,
    *,
    reference: Model | None = None,
    outputs: Outputs | None = None,
    precision: Precision | None = None,
    host: bool = True,
    **how: Unpack[How],
) -> Bisection:
    """Find the leg of a model's way to MIGraphX that breaks it, and in that the pass application or the nodes.

    Args:
        model: an ONNX file, or a model in memory, which is left as it is; or a bundle, for the model that it was
            converted from, with the pipeline and all else that it was converted with; or ``file.py:factory``, which
            gives a PyTorch module and its arguments: it is exported, and right is what PyTorch gives.
        reference: another model that is right, where ``model`` was made of it by other means; what both call by the
            same name is taken to mean the same.
        outputs: what the model should give for each sample (those of the PyTorch module, say): arrays by name, or an
            ``.npz`` of them; several samples are stacked along a first axis.
        precision: also compare what MIGraphX computes in ``fp16``, ``bf16``, ``int8`` or ``fp8``, calibrated on the
            samples.
        host: whether nodes that MIGraphX cannot run are left to ONNX Runtime, as `convert` does; if not, MIGraphX is
            given all of the cleaned model.
        how: inputs, tolerances, passes and limits, by name: see `onnx_bridge.parity.bisect.search.How`.

    Returns:
        What was found.

    Raises:
        InputError: the model, the inputs or the outputs are wrong, or ONNX Runtime cannot run the model, so that there
            is no reference; or the model that a bundle was converted from is gone or was changed.
        RuntimeFailure: there is no MIGraphX.
    """
    preset, name = None, None
    notes: tuple[str, ...] = ()
    if not isinstance(model, ir.Model) and is_factory(model):
        if reference is not None or outputs is not None or how.get("inputs") is not None:
            what = "a module brings its inputs, and its outputs are right"
            raise InputError(what, where=str(model), hint="leave --inputs, --outputs and --reference out")
        name = str(model)
        exported = export_factory(name)
        if exported.model is None:
            return Bisection(
                name, Finding(Leg.EXPORT, Kind.REJECTED, exported.problem), samples=0, notes=exported.notes
            )
        model, outputs, notes = exported.model, exported.outputs, exported.notes
        how = {**how, "inputs": list(exported.inputs)}
    elif not isinstance(model, ir.Model) and is_bundle(model):
        if reference is not None or precision is not None:
            what = "a bundle says itself what it was made of, and in which precision it computes"
            raise InputError(what, where=str(model), hint="leave --reference and --precision out")
        recorded = Recorded.of(model)
        model, how = recorded.source(), recorded.how(how)
        preset, precision = recorded.preset, recorded.calibrated
    search = Search(model, reference=reference, preset=preset, **how)
    given = None if outputs is None else read_outputs(outputs, search.truth)
    finding = (
        (search.export(given) if given is not None else None)
        or (search.whole_model() if reference is not None else None)
        or search.passes()
        or search.migraphx(host=host)
        or (search.migraphx(host=host, precision=precision) if precision is not None else None)
    )
    return Bisection(
        model=name or search.name,
        finding=finding,
        runs=search.runs,
        samples=len(search.samples),
        seed=how.get("seed", 0) if how.get("inputs") is None else None,
        versions={"ONNX Runtime": metadata.version("onnxruntime"), "MIGraphX": search.runtime.version},
        notes=(*notes, *search.notes),
    )
