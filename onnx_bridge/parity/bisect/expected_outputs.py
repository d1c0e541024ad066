"""Expected outputs, from a PyTorch module for example: given in memory, or read from a file.

They are taken as they are: a shape or dtype that differs from the model's is a difference to be found.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.files.regular_file import open_regular
from onnx_bridge.core.values import Array, Value, flat
from passes.core.text import counted
from passes.isolation.numpy_files import read_npz


def read_expected_outputs(
    source: str | os.PathLike[str] | Sequence[Mapping[str, Value]], model: Sequence[Mapping[str, Value]]
) -> list[Mapping[str, Value]]:
    """Return the expected outputs of each sample.

    Args:
        source: one mapping of arrays a sample, or an ``.npz`` of arrays by the model's names: the arrays of several
            samples are stacked along a first axis, those of a sequence ``s`` are ``s[0]``, ``s[1]``, …
        model: the model's outputs for each sample.

    Raises:
        InputError: they cannot be read, are for another number of samples, or an output is missing or unknown.
    """
    where = str(source) if isinstance(source, (str, os.PathLike)) else "outputs"
    sizes = Counter[str]()
    for reference in model:
        sizes.update({name: array.nbytes for name, array in flat(reference).items()})
    if not isinstance(source, (str, os.PathLike)):
        outputs = list(source)
    elif len(model) == 1:
        outputs = [_load(Path(source), sizes)]
    else:
        outputs = _unstacked(_load(Path(source), sizes), len(model), where)
    if len(outputs) != len(model):
        what = f"outputs are given for {counted(len(outputs), 'sample')}, and {counted(len(model), 'sample')}"
        raise InputError(what, where=where, hint="give outputs for each sample")
    return [_named(given, flat(right), where) for given, right in zip(outputs, model, strict=True)]


def _named(outputs: Mapping[str, Value], model: Mapping[str, Array], where: str) -> Mapping[str, Value]:
    arrays = flat(outputs)
    for name in arrays:
        if name not in model:
            hint = nearest(name, model) or f"its outputs are {', '.join(model)}"
            raise InputError("the model has no such output", where=f"{where}, output {name!r}", hint=hint)
    for name in model:
        if name not in arrays:
            raise InputError(
                "the output is missing", where=f"{where}, output {name!r}", hint="give all outputs of the model"
            )
    return {name: arrays[name] for name in model}


def _load(path: Path, sizes: Counter[str]) -> dict[str, Array]:
    try:
        with open_regular(path) as opened:
            return read_npz(opened, str(path), lambda name: sizes[name])
    except OSError as error:
        what = "the file does not exist" if not path.exists() else f"the file cannot be read: {error}"
        raise InputError(what, where=str(path), hint="outputs come as .npz; write it with numpy.savez") from error


def _unstacked(arrays: Mapping[str, Array], count: int, where: str) -> list[Mapping[str, Value]]:
    for name, array in arrays.items():
        if array.shape[:1] != (count,):
            what = f"the shape is {list(array.shape)}, for {counted(count, 'sample')}"
            raise InputError(what, where=f"{where}, output {name!r}", hint="stack the samples along a first axis")
    return [{name: array[number] for name, array in arrays.items()} for number in range(count)]
