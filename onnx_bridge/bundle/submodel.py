"""Parts of a model for MIGraphX: extracted, written to a file, parsed."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.migraphx.program import OnnxOptions
from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.model import io as models
from passes.probing.partition import extract


def parse(
    worker: Worker, path: Path, shapes: Mapping[str, Sequence[int | None] | None], *, use_debug_symbols: bool = False
) -> RemoteProgram:
    """Parse a model, whose inputs have these shapes, with MIGraphX; operators keep the names of nodes where it can."""
    # MIGraphX reads a size of 0 in the file as unknown
    empty = {name: [dim or 0 for dim in shape] for name, shape in shapes.items() if shape and 0 in shape}
    named = use_debug_symbols and "debug_symbols" in worker.features
    return worker.parse_onnx(path, OnnxOptions(map_input_dims=empty, use_debug_symbols=named))


@contextlib.contextmanager
def part_file(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> Iterator[Path]:
    """The part of a model between some of its values, given by name, as a temporary file."""
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        path = Path(folder) / "partition.onnx"
        models.save(extract(model, inputs, outputs), path)
        yield path
