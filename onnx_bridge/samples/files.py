"""Samples given by the user: files of the usual formats, scripts, Python objects.

- ``.npz``: arrays by input name. If every array has one dimension more than its input, the first axis enumerates
  samples. An array without a name, ``arr_0``, is that of the only input. The arrays of a sequence ``s`` are ``s[0]``,
  ``s[1]``, …; a missing optional is empty.
- ``.npy``: the array of a model with one input. Or a folder of ``.npz`` or ``.npy``.
- an image, or a folder of images (`onnx_bridge.samples.images`).
- a folder with ``input_0.pb``, ``input_1.pb``, … (serialized TensorProto, SequenceProto or OptionalProto): one sample,
  inputs by position. Or a folder with ``test_data_set_0``, … of such folders, as ONNX test suites have them.
- ``.json``, or a folder of such: what Polygraphy writes with ``--save-inputs``, a list of dicts in which each array is
  a base64-encoded ``.npy``. Polygraphy itself is not needed.
- ``script.py`` or ``script.py:function``: a Polygraphy data loader script. Its function, by default ``load_data``,
  takes no arguments and returns or yields dicts of arrays, one a sample. It runs in this process.

numpy loads dtypes that it does not know as raw bytes; they are viewed as the dtype of the input if the size matches.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnx_bridge.core.errors import BridgeError, InputError, nearest
from onnx_bridge.core.files.regular_file import LARGE, open_regular, read_regular
from onnx_bridge.core.values import Array, Kind, Value, flat
from onnx_bridge.samples.fitting import fitting, fitting_command
from onnx_bridge.samples.images import LABEL, ImageRules, image_batches, images_at
from onnx_bridge.samples.inputs import Sample, TensorSpec, specs, validate
from passes.core import scripts
from passes.core.text import counted
from passes.isolation import numpy_files
from passes.shapes.open_sizes import may_be_batch

Samples = Mapping[str, Any] | Iterable[Mapping[str, Any]]
SampleSource = str | os.PathLike[str] | Samples | Callable[[], Samples]
"""A file, folder or script; one sample; several; or a function that returns either."""

_MAX_SAMPLES = 10_000
"""A loader that yields more samples is taken to be endless."""
_FORMATS = (
    "an .npz or .npy, an image or a folder of them, a folder of input_*.pb, Polygraphy's .json, "
    "a folder of any of these, "
    "or a loader script: file.py or file.py:function"
)
Unvalidated = Iterable[tuple[str, Mapping[str, Any]]]
"""Samples, each with its origin for messages."""


def load(
    source: SampleSource,
    model: ir.Model | Sequence[TensorSpec],
    *,
    count: int | None = None,
    split: bool = False,
    most: int | None = None,
) -> list[Sample]:
    """Load and validate samples, without their labels.

    Args:
        source: the samples; or the file, folder or script to read them from, in the formats of this module, as
            ``script.py:function`` for a function of a script.
        model: the model, or its `inputs.specs`.
        count: how many to take; None is all.
        split: take samples that are longer than the model's batch in pieces.
        most: the largest batch, if the model takes smaller ones as well.

    Raises:
        InputError: the format is unknown, a file is damaged, or the samples are too few or do not fit the model.
    """
    wanted = specs(model) if isinstance(model, ir.Model) else list(model)
    if isinstance(source, (str, os.PathLike)):
        samples, where = unvalidated(Path(source), wanted), str(Path(source))
    elif callable(source):
        samples, where = from_function(source, "the function"), "the function"
    else:
        given = [source] if isinstance(source, Mapping) else source
        samples, where = ((f"sample {index}", sample) for index, sample in enumerate(given)), "what was given"
    inputs = ((origin, unlabelled(sample, wanted)[0]) for origin, sample in samples)
    if split:
        pieces = (in_batches(origin, sample, wanted, most) for origin, sample in inputs)
        inputs = ((origin, part) for origin, part, _ in chain.from_iterable(pieces))
    return _validate_all(inputs, where, wanted, count)


def unlabelled(sample: Any, wanted: Sequence[TensorSpec]) -> tuple[Any, Any]:
    """Return a sample without its labels, and these; None if it has none, or an input has their name."""
    if not isinstance(sample, Mapping) or LABEL not in sample or any(spec.name == LABEL for spec in wanted):
        return sample, None
    return {name: sample[name] for name in sample if name != LABEL}, sample[LABEL]


def unvalidated(path: Path, wanted: Sequence[TensorSpec]) -> Unvalidated:
    """Yield samples for the inputs of a model as a source of `load` has them, with their origins; raises InputError."""
    script, colon, function = str(path).rpartition(":")
    if colon and script.endswith(".py") and not path.exists():
        path = Path(script)
    else:
        function = "load_data"
    if not path.exists():
        raise InputError("the file or folder does not exist", where=str(path), hint=f"inputs come as {_FORMATS}")
    if images := images_at(path):
        return image_batches(images, ImageRules.beside(path), wanted)
    if path.is_dir():
        return _from_folder(path, wanted)
    if path.suffix == ".npz":
        return [(str(path), sample) for sample in _from_npz(path, wanted)]
    if path.suffix == ".npy":
        return [(str(path), {wanted[0].name: array}) for array in _from_npy(path, wanted)]
    if path.suffix == ".json":
        return _from_json(path, wanted)
    if path.suffix == ".py":
        return _from_script(path, function)
    raise InputError("this is not a known format of inputs", where=str(path), hint=f"inputs come as {_FORMATS}")


def rows(sample: Any, wanted: Sequence[TensorSpec]) -> int | None:
    """Return the common first size of a sample's arrays that have the ranks of the inputs; None without one."""
    ranks = {spec.name: len(spec.shape or ()) for spec in wanted}
    if not isinstance(sample, Mapping) or sample.keys() != ranks.keys():
        return None
    arrays = {name: array for name, array in sample.items() if isinstance(array, np.ndarray)}
    lengths = {len(array) for name, array in arrays.items() if array.ndim == ranks[name] > 0}
    return lengths.pop() if len(lengths) == 1 and len(arrays) == len(ranks) else None


def count(samples: Sequence[Any], wanted: Sequence[TensorSpec]) -> int:
    """Return the number of samples in batches: their rows, if the inputs have these in common and they may be such."""
    first = {str(spec.shape[0]) for spec in wanted if spec.shape}
    each_is_one = not all(map(may_be_batch, first))
    return sum(1 if each_is_one else rows(sample, wanted) or 1 for sample in samples)


def described(samples: int, batches: int) -> str:
    """Return in words how many samples there are, and in how many batches if these are fewer."""
    in_batches = f" in {batches} batch{'es' * (batches != 1)}" if samples != batches else ""
    return f"{counted(samples, 'sample')}{in_batches}"


def in_batches(
    origin: str, sample: Any, wanted: Sequence[TensorSpec], most: int | None = None
) -> Iterator[tuple[str, Any, slice]]:
    """Yield a sample that is longer than the model's batch in pieces, with their origins and rows.

    Args:
        origin: the origin of the sample, for messages.
        sample: the sample, before it is validated.
        wanted: the inputs of the model.
        most: the largest batch if the model takes smaller ones as well; None if it takes its own alone.

    Raises:
        InputError: the number of rows is not a multiple of the batch.
    """
    first = {spec.shape[0] if spec.shape else None for spec in wanted}
    own = first.pop() if len(first) == 1 else None
    length, batch = rows(sample, wanted), most or (own if isinstance(own, int) and own else None)
    if length is None or batch is None or length <= batch:
        yield origin, sample, slice(None)
        return
    if length % batch and most is None:
        what = f"the sample has {length} rows, which is not a multiple of the model's batch of {batch}"
        raise InputError(what, where=origin, hint=f"give {length - length % batch} of them")
    for start in range(0, length, batch):
        piece = slice(start, start + batch)
        yield f"{origin}, row {start}", {name: array[piece] for name, array in sample.items()}, piece


def find_non_finite(samples: Sequence[Sample]) -> list[str]:
    """Return warnings, in sentences, about NaN and Inf in samples, which hide errors as they propagate."""
    warnings = []
    for index, sample in enumerate(samples):
        for name, array in flat(sample).items():
            floats = array.dtype.kind == "f" or "float" in array.dtype.name
            count = int(np.count_nonzero(~np.isfinite(array.astype(np.float64)))) if floats else 0
            if count:
                warnings.append(f"sample {index}, input {name}: {count} of {array.size} elements are NaN or Inf")
    return warnings


def _validate_all(unchecked: Unvalidated, source: str, wanted: Sequence[TensorSpec], count: int | None) -> list[Sample]:
    # an endless loader is fine if a count is given
    taken = islice(unchecked, _MAX_SAMPLES + 1 if count is None else count)
    samples = [validated(sample, wanted, origin) for origin, sample in taken]
    if count is None and len(samples) > _MAX_SAMPLES:
        what = f"there are more than {_MAX_SAMPLES} samples, and the loader may be endless"
        raise InputError(what, where=source, hint="say how many with `samples`")
    if not samples or len(samples) < (count or 0):
        number = counted(len(samples), "sample") if samples else "no samples"
        have = f"there {'is' if len(samples) == 1 else 'are'} {number}"
        asked = f", and {count} were asked for" if samples else ""
        raise InputError(f"{have}{asked}", where=source, hint="give as many, or ask for fewer" if samples else None)
    return samples


def validated(sample: Any, wanted: Sequence[TensorSpec], origin: str) -> Sample:
    """Return a sample that fits the inputs of a model; InputError names its origin."""
    if not isinstance(sample, Mapping):
        what = f"a sample is a dict of arrays by input name, and this is a {type(sample).__name__}"
        raise InputError(what, where=origin)
    names = [spec.name for spec in wanted]
    if sample and names and not any(name in names for name in sample):
        what = f"none of its arrays ({_listed(sample)}) is an input of the model"
        near = next((hint for name in sample if (hint := nearest(str(name), names))), None)
        hint = near or f"the model takes {_listed(names)}: are these the inputs of another model?"
        raise InputError(what, where=origin, hint=hint)
    try:
        return validate(sample, wanted)
    except InputError as error:
        located = InputError(error.what, where=f"{origin}, {error.where}", hint=error.hint)
        located.details = _details(Path(origin.partition(", row ")[0]), sample, wanted)
        raise located from None


def _details(path: Path, sample: Mapping[str, Any], wanted: Sequence[TensorSpec]) -> dict[str, str]:
    """Return the ``command`` that makes the arrays of a file fit, if there is one."""
    if path.suffix not in (".npz", ".npy") or not path.is_file():
        return {}
    expressions = {}
    for spec in wanted:
        name = "x" if path.suffix == ".npy" else f"x[{json.dumps(spec.name)}]"
        if way := fitting(name, sample.get(spec.name), spec.shape, spec.dtype):
            expressions[spec.name] = way[1]
    return {"command": fitting_command(path, expressions)} if expressions else {}


def _listed(names: Iterable[object]) -> str:
    every = [str(name) for name in names]
    return ", ".join(every[:4]) + (f" and {len(every) - 4} more" if len(every) > 4 else "")


# --- numpy


def _from_npz(path: Path, wanted: Sequence[TensorSpec]) -> list[Sample]:
    dtypes = {spec.name: spec.dtype for spec in wanted}
    others = [spec for spec in wanted if spec.kind is not Kind.TENSOR]
    ranks = {spec.name: len(spec.shape) for spec in wanted if spec.shape is not None}
    sizes = {  # with 1 for each size that is open
        spec.name: math.prod(dim for dim in spec.shape if isinstance(dim, int)) * spec.dtype.itemsize
        for spec in wanted
        if spec.shape is not None
    }
    try:
        with open_regular(path) as opened:
            read = numpy_files.read_npz(opened, str(path), lambda name: sizes.get(name, 0))
    except OSError as error:
        raise InputError(f"the file cannot be read: {error}", where=str(path)) from error
    if len(wanted) == 1 and [name for name in read if name != LABEL] == ["arr_0"]:
        read[wanted[0].name] = read.pop("arr_0")
    arrays = {name: _restored(array, dtypes.get(_ELEMENT.sub("", name))) for name, array in read.items()}
    if others:
        return [_from_arrays(arrays, others)]
    others_than_labels = {name: array for name, array in arrays.items() if name != LABEL or name in ranks}
    if not arrays or any(array.ndim != ranks.get(name, -1) + 1 for name, array in others_than_labels.items()):
        return [dict(arrays)]
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise InputError(f"the numbers of samples differ: {listed}", where=str(path), hint="stack as many of each")
    return [{name: array[sample] for name, array in arrays.items()} for sample in range(next(iter(counts.values())))]


def _from_npy(path: Path, wanted: Sequence[TensorSpec]) -> list[Array]:
    """Return the arrays of an ``.npy`` for one input: one, or several along the first axis; raises InputError."""
    if len(wanted) != 1:
        what = f"an .npy is one array, and the model takes {len(wanted)} inputs"
        raise InputError(what, where=str(path), hint="put them into an .npz, by name")
    try:
        with open_regular(path) as file:
            array = numpy_files.read_npy(file, str(path))
    except OSError as error:
        raise InputError(f"the file cannot be read: {error}", where=str(path)) from None
    return list(array) if array.ndim == len(wanted[0].shape or ()) + 1 else [array]


_ELEMENT = re.compile(r"\[\d{1,9}\]$")
"""The suffix of the name of an array in a sequence."""


def _from_arrays(arrays: Mapping[str, Array], others: Sequence[TensorSpec]) -> Sample:
    """Return values from the arrays of a file: lists for sequences, None for missing optionals."""
    sample: Sample = dict(arrays)
    for spec in others:
        if spec.kind.sequence:
            names = [name for name in arrays if _ELEMENT.sub("", name) == spec.name != name]
            names.sort(key=lambda name: int(name[name.rindex("[") + 1 : -1]))
            items = [arrays[name] for name in names]
            for name in names:
                del sample[name]
            sample[spec.name] = items if items or not spec.kind.optional else None
        else:
            sample.setdefault(spec.name, None)
    return sample


def _restored(array: Array, dtype: np.dtype[Any] | None) -> Array:
    """View raw bytes, as which numpy saves dtypes that it does not know, as their dtype."""
    raw = array.dtype.type is np.void and array.dtype.names is None
    return array.view(dtype) if dtype is not None and raw and array.dtype.itemsize == dtype.itemsize else array


# --- folders


def _from_folder(folder: Path, wanted: Sequence[TensorSpec]) -> Unvalidated:
    folders = sorted(folder.glob("test_data_set_*"), key=_number) or [folder]
    serialized = folders != [folder] or any(folder.glob("input_*.pb"))
    for pattern in () if serialized else ("*.np[yz]", "*.json"):
        if files := sorted(folder.glob(pattern)):
            return (sample for file in files for sample in unvalidated(file, wanted))
    return ((str(folder), _from_protobuf(folder, wanted)) for folder in folders)


def _number(path: Path) -> int:
    digits = re.search(r"(\d+)$", path.stem)
    return int(digits[1]) if digits else 0


def _from_protobuf(folder: Path, wanted: Sequence[TensorSpec]) -> Sample:
    files = sorted(folder.glob("input_*.pb"), key=_number)
    if [_number(file) for file in files] != list(range(len(wanted))):
        raise InputError(
            f"has {len(files)} input files ({', '.join(file.name for file in files) or 'none'})",
            where=str(folder),
            hint=f"the model takes {counted(len(wanted), 'input')}: input_0.pb … in the order of the model",
        )
    return {spec.name: _read_value(file, spec.kind) for spec, file in zip(wanted, files, strict=True)}


def _read_value(file: Path, kind: Kind) -> Value:
    proto: type[onnx.TensorProto] | type[onnx.SequenceProto] | type[onnx.OptionalProto] = onnx.TensorProto
    if kind is not Kind.TENSOR:
        proto = onnx.OptionalProto if kind.optional else onnx.SequenceProto
    try:
        return _value(proto.FromString(read_regular(file, LARGE)))
    except Exception as error:  # protobuf's DecodeError, and whatever reading a broken tensor raises
        what, hint = f"is no serialized {kind.value}", f"write a {proto.__name__}"
        raise InputError(what, where=str(file), hint=hint) from error


def _value(proto: onnx.TensorProto | onnx.SequenceProto | onnx.OptionalProto) -> Value:
    if isinstance(proto, onnx.SequenceProto):
        return [_array(value) for value in proto.tensor_values]
    if isinstance(proto, onnx.OptionalProto):
        if proto.HasField("tensor_value"):
            return _array(proto.tensor_value)
        return _value(proto.sequence_value) if proto.HasField("sequence_value") else None
    return _array(proto)


def _array(proto: onnx.TensorProto) -> Array:
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        raise ValueError("the elements are in another file")
    return np.asarray(ir.serde.deserialize_tensor(proto).numpy())


# --- Polygraphy's JSON

_CLASS = "polygraphy_class"
_LEGACY = "__polygraphy_encoded_"
"""In files of versions before 0.35: the start of a key that names the class, followed by its name."""
_RESULTS = frozenset(("RunResults", "IterationResult"))


def _from_json(path: Path, wanted: Sequence[TensorSpec]) -> Unvalidated:
    hint = "Polygraphy writes such a file with --save-inputs"
    try:
        content = json.loads(read_regular(path, LARGE), object_hook=_decoded)
    except InputError as error:
        raise InputError(error.what, where=str(path), hint=error.hint) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"the file cannot be read: {error}", where=str(path), hint=hint) from error
    samples = content if isinstance(content, list) else [content]  # a file of a folder has one sample
    if not all(isinstance(sample, dict) for sample in samples):
        raise InputError("the content is not a list of dicts of arrays", where=str(path), hint=hint)
    dtypes = {spec.name: spec.dtype for spec in wanted}
    for index, sample in enumerate(samples):
        arrays = {
            name: _restored(value, dtypes.get(name)) if isinstance(value, np.ndarray) else value
            for name, value in sample.items()
        }
        yield f"{path}, sample {index}", arrays


def _decoded(values: dict[str, Any]) -> Any:
    """Return the value that Polygraphy encoded as a JSON object."""
    legacy = next((key.removeprefix(_LEGACY) for key in values if key.startswith(_LEGACY)), None)
    kind = values.get(_CLASS) or legacy
    if kind is None:
        return values
    if not isinstance(kind, str):
        raise InputError("the class of a value in it is no name")
    if kind in _RESULTS or {"lst", "outputs"} & values.keys():
        raise InputError("the file holds results, not inputs", hint="Polygraphy saves inputs with --save-inputs")
    if kind in ("LazyArray", "LazyNumpyArray"):
        return values.get("values")
    if kind != "ndarray" or not isinstance(values.get("array"), str):
        what = f"the file holds a {'torch.Tensor' if kind == 'Tensor' else kind}, which is not a numpy array"
        raise InputError(what, hint="let the data loader return numpy arrays")
    text = values["array"]
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        data = text.encode("latin-1")  # as old versions wrote it
    if not data.startswith(b"PK"):
        return numpy_files.read_npy(io.BytesIO(data), "an array in it")
    arrays = numpy_files.read_npz(io.BytesIO(data), "an array in it", spare=0)  # as old versions wrote it
    if not arrays:
        raise ValueError("an array in it is empty")
    return next(iter(arrays.values()))


# --- scripts


def _from_script(path: Path, name: str) -> Unvalidated:
    with scripts.importable(path.parent):
        try:
            names = vars(scripts.load(path, f"samples_of_{path.stem}"))
        except BridgeError:
            raise
        except Exception as error:
            raise _failed(error, str(path)) from error
        function = names.get(name)
        if not callable(function):
            defined = [key for key, value in names.items() if callable(value) and not key.startswith("_")]
            hint = nearest(name, defined) or f"name one with {path.name}:FUNCTION: {_listed(defined) or 'it has none'}"
            raise InputError(f"the script has no function {name!r}", where=str(path), hint=hint)
        yield from from_function(function, str(path))


def from_function(function: Callable[[], Any], source: str) -> Unvalidated:
    """Return what a function of the user returns or yields, with its origin; what it raises is an InputError."""
    try:
        returned = function()
        samples = [returned] if isinstance(returned, Mapping) else returned
        for index, sample in enumerate(samples):
            yield f"{source}, sample {index}", sample
    except BridgeError:
        raise
    except Exception as error:
        raise _failed(error, source) from error


def _failed(error: Exception, source: str) -> InputError:
    """Return what a loader raised, and the line of it that did."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source]
    where = f"{source}:{frames[-1].lineno}" if frames else source
    return InputError(f"the loader raised {type(error).__name__}: {error}", where=where)
