"""The verb ``convert``: a model of any kind into a bundle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.conversion.buckets import run_buckets
from onnx_bridge.conversion.decoders.decoder import run_decoder, with_defaults
from onnx_bridge.conversion.reuse import up_to_date
from onnx_bridge.conversion.selecting_inputs import selecting_inputs
from onnx_bridge.conversion.serving.gpu_programs import add_gpu_programs
from onnx_bridge.conversion.serving.session import write_session
from onnx_bridge.conversion.source import Source
from onnx_bridge.conversion.steps.run import run as run_steps
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.model.folder import decoder_file, is_model_folder
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.request import ModelSource
from passes.isolation.limits import limited

if TYPE_CHECKING:
    from onnx_bridge.requests.keywords import ConvertOptions


def convert(
    model: str | os.PathLike[str] | ir.Model,
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[ConvertOptions],
) -> Bundle:
    """Clean a model, compile it with MIGraphX, and write the bundle.

    What MIGraphX cannot run becomes host partitions of the bundle, which ONNX Runtime runs; a note lists the nodes and
    the reasons. An earlier bundle in ``out`` is replaced as a whole, once the new one is complete. It is kept, with
    ``reuse``, if nothing has changed since: the model, the request, MIGraphX, and the code.

    With ``buckets``, there is a program for each combination of sizes that is possible; large weights of the cleaned
    models are written once. An input that selects between branches with results of different shapes has a bucket for
    each of its values, unless it is frozen, or ``out`` is a single program. With ``decoder``, the model is a language
    model with a cache, as optimum and onnxruntime-genai export it; if it takes what an encoder returns, its other files
    are beside it, as optimum names them.

    Args:
        model: an ONNX file; the folder of a language model, with its configuration; or a model in memory, which is not
            modified.
        out: a folder, or a name ending in ``.mxr`` for the program alone (the manifest goes beside it).
        progress: called with each `onnx_bridge.core.progress.Stage` as it begins, and with details.
        options: the fields of `onnx_bridge.requests.conversion.ConvertRequest`. An array in ``freeze`` is a constant;
            ``dims`` without a size become 1.

    Raises:
        InputError: the model or an option is wrong, or ``out`` cannot be written.
        ParityError: the bundle's output differs from the reference's; an earlier bundle in ``out`` stays.
        RuntimeFailure: there is no MIGraphX, or it exceeded a limit; or a node can be run neither by it nor, if
            allowed, by ONNX Runtime.
        NativeFailure: ONNX Runtime exceeded a limit.
    """
    return run(model, Path(out), ConvertRequest.of(options), progress)


def run(model: ModelSource, out: Path, request: ConvertRequest, progress: Progress | None = None) -> Bundle:
    """Convert a model as a request says; errors are those of `convert`."""
    is_folder = not isinstance(model, ir.Model) and is_model_folder(Path(model))
    source, tell = Source.of(decoder_file(Path(model)) if is_folder else model), progress or silent  # type: ignore[arg-type]
    with limited(request.limits):
        needs_sizes = is_folder or (request.decoder and request.max_length is None)
        if needs_sizes and not isinstance(source.given, ir.Model):
            request = with_defaults(source, request)
        if (kept := up_to_date(source, out, request)) is not None:
            return kept
        if request.decoder:
            bundle = run_decoder(source, out, request, tell)
        elif request.ties and not request.buckets:
            what = "a dimension is tied to one with buckets, and there is none"
            raise InputError(what, where=", ".join(request.ties), hint="give the sizes of the other one, too")
        else:
            selecting = out.suffix != ".mxr" and selecting_inputs(source.view(), request)
            bundle = (run_buckets if request.buckets or selecting else run_steps)(source, out, request, tell)
        if request.application is not None:
            write_session(bundle.path, bundle.manifest)
            bundle = add_gpu_programs(bundle, request)
        return bundle
