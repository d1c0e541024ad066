"""Calibration data: the samples on which the ranges of an int8 or fp8 program are measured.

The formats are those of `onnx_bridge.samples.files` (``.npz``, folders of ``.pb``, Polygraphy's ``.json``, loader
scripts, arrays in memory), whose samples may be several of the model's batches long, and have labels; and

- an ``.npy``, for a model with one input: one sample, or several along the first axis, or one longer batch;
- a folder of images, for a model with one input of images, ``[N, C, H, W]`` or ``[N, H, W, C]`` of 1 or 3 channels.
  Pillow reads them. A file ``images.toml`` in the folder declares how they are preprocessed (`ImageRules`).

Without any, seeded random samples are generated, with a note that the ranges are those of noise.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.files.regular_file import open_regular, read_regular
from onnx_bridge.core.third_party import describe, shorten, suppressed_output
from onnx_bridge.core.values import Array, flat
from onnx_bridge.samples import files
from onnx_bridge.samples.inputs import Sample, TensorSpec, generate

RULES = "images.toml"
"""The file in a folder of images that declares their preprocessing."""
_FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The formats that are read, whatever a file is named: Pillow gives some others to programs."""
_IMAGES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
_GENERATED = 8
"""The number of samples that are generated if none are given."""
_LARGEST = 1e9
"""The largest number of a rule, and the inverse of the least divisor."""
_MOST_PIXELS = 2**27
"""The most pixels of an image before the crop."""


@dataclass(frozen=True)
class ImageRules:
    """The preprocessing of images: resize, center crop, scale, normalize.

    Pixels are (value · scale − mean) / std, by channel; the defaults are those of the ImageNet models of torchvision.

    Attributes:
        resize: the size of the shorter side, as a multiple of the input's, before the center crop. 0 stretches the
            image to the input's size instead.
        channels: ``rgb`` or ``bgr``; an input of one channel takes the luminance.
        scale: the factor of pixel values, 0 to 255.
        mean: one number, or one for each channel.
        std: the divisor of each channel, or of all.
    """

    resize: float = 256 / 224
    channels: str = "rgb"
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    @classmethod
    def read(cls, path: Path) -> ImageRules:
        """Return the rules that a file declares, with defaults for the others; raises InputError for a wrong one."""
        try:
            content = tomllib.loads(read_regular(path).decode())
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"the file cannot be read: {error}", where=str(path)) from None
        known = [field.name for field in fields(cls)]
        rules: dict[str, Any] = {}
        for name, value in content.items():
            if name not in known:
                hint = nearest(name, known) or f"there are {', '.join(known)}"
                raise InputError(f"the rule {name!r} does not exist", where=str(path), hint=hint)
            several = name in ("mean", "std")
            values = value if isinstance(value, list) and several else [value]
            numbers = all(type(number) in (int, float) and abs(number) <= _LARGEST for number in values)
            right = value in ("rgb", "bgr") if name == "channels" else numbers and len(values) in (1, 3)
            too_small = right and name == "std" and min(map(abs, values)) < 1 / _LARGEST
            if not right or too_small or (name == "resize" and 0 != value < 1):
                raise InputError(f"{name} cannot be {shorten(repr(value))}", where=str(path))
            rules[name] = tuple(values) if several else value
        return cls(**rules)


@dataclass(frozen=True)
class Calibration:
    """At least one sample, and the origin of them in words."""

    samples: tuple[Sample, ...]
    source: str
    notes: tuple[str, ...] = ()


def load_calibration(given: files.SampleSource | None, specs: Sequence[TensorSpec]) -> Calibration:
    """Load the calibration data of a model.

    Args:
        given: the samples, or where to read them from; None generates some.
        specs: the inputs of the model, with fixed shapes.

    Raises:
        InputError: the samples are missing, do not fit the model, or have no range: they contain NaN or Inf, or an
            input is 0 in all of them.
    """
    if given is None:
        generated = tuple(generate(specs, seed=0, samples=_GENERATED))
        note = (
            f"calibrated on {_GENERATED} generated samples (seed 0), whose ranges are not those of real data; "
            "give real data with --calibration"
        )
        return Calibration(generated, "seeded samples", (note,))
    notes: tuple[str, ...] = ()
    where = str(given) if isinstance(given, (str, os.PathLike)) else "what was given"
    path = Path(given) if isinstance(given, (str, os.PathLike)) else None
    if path is not None and path.suffix == ".npy":
        samples = _from_npy(path, specs)
    elif path is not None and path.is_dir() and (images := _images(path)):
        rules = ImageRules.read(path / RULES) if (path / RULES).exists() else ImageRules()
        samples = _from_images(images, rules, specs)
        listed = ", ".join(f"{name} {_shown(value)}" for name, value in asdict(rules).items())
        notes = (f"calibrated on {len(images)} images: {listed}",)
    else:
        samples = files.load(given, specs, split=True)
    _check(samples, where)
    return Calibration(tuple(samples), where, notes)


def _check(samples: Sequence[Sample], where: str) -> None:
    if not samples:
        raise InputError("there are no samples to calibrate on", where=where)
    if warnings := files.find_non_finite(samples):
        raise InputError(f"the samples have no range: {warnings[0]}", where=where)
    arrays: dict[str, list[Array]] = {}
    for sample in samples:
        for name, array in flat(sample).items():
            arrays.setdefault(name, []).append(array)
    for name, pieces in arrays.items():
        if "float" in pieces[0].dtype.name and not any(array.any() for array in pieces):
            raise InputError(f"the input {name} is 0 in all of {len(samples)} samples: it has no range", where=where)


def _from_npy(path: Path, specs: Sequence[TensorSpec]) -> list[Sample]:
    if len(specs) != 1:
        what = f"an .npy is one array, and the model takes {len(specs)} inputs"
        raise InputError(what, where=str(path), hint="put them into an .npz, by name")
    (spec,) = specs
    return files.load([{spec.name: piece} for piece in files.read_npy(path, spec)], specs)


def image_batches(folder: Path, specs: Sequence[TensorSpec]) -> Iterator[Sample] | None:
    """Return an iterator of a folder's images, read one batch at a time; None for a folder without images.

    Args:
        folder: the folder, which may have rules of preprocessing (`ImageRules`).
        specs: the inputs of the model, with a fixed batch.

    Raises:
        InputError: the model does not take images, or one cannot be read.
    """
    images = _images(folder)
    if not images:
        return None
    rules = ImageRules.read(folder / RULES) if (folder / RULES).exists() else ImageRules()
    batch = next((spec.shape[0] for spec in specs if spec.shape and isinstance(spec.shape[0], int)), 1)
    starts = range(0, len(images), max(1, batch))
    return (_from_images(images[start : start + batch], rules, specs)[0] for start in starts)


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _IMAGES)


def _from_images(images: Sequence[Path], rules: ImageRules, specs: Sequence[TensorSpec]) -> list[Sample]:
    """Return the images in batches of the model's size; the last batch is filled up with the first images."""
    folder = str(images[0].parent)
    shape = specs[0].shape or () if len(specs) == 1 else ()
    open_batch = bool(shape) and not isinstance(shape[0], int)  # then one image a batch
    sizes = [size for size in ((1, *shape[1:]) if open_batch else shape) if isinstance(size, int)]
    first = len(sizes) == 4 and sizes[1] in (1, 3)
    if len(sizes) != 4 or not (first or sizes[3] in (1, 3)) or "float" not in specs[0].dtype.name:
        what = "the model does not take images: it needs one float input, [N, C, H, W] or [N, H, W, C], C = 1 or 3"
        raise InputError(what, where=folder, hint="give arrays as an .npz")
    batch, channels = sizes[0], sizes[1] if first else sizes[3]
    height, width = sizes[2:] if first else sizes[1:3]
    arrays = [_read(path, rules, height, width, channels) for path in images]
    count = -(-len(arrays) // batch)
    arrays += [arrays[index % len(images)] for index in range(count * batch - len(arrays))]
    stacked = np.stack(arrays).reshape(count, batch, height, width, channels)
    if first:
        stacked = stacked.transpose(0, 1, 4, 2, 3)
    with np.errstate(over="ignore"):  # what is not finite is an error of `_check`
        return [{specs[0].name: np.ascontiguousarray(images).astype(specs[0].dtype)} for images in stacked]


def _read(path: Path, rules: ImageRules, height: int, width: int, channels: int) -> Array:
    """Return an image as floats [height, width, channels]."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InputError("images need Pillow", where=str(path), hint="pip install pillow, or give an .npz") from None
    try:
        with suppressed_output(), open_regular(path) as file, Image.open(file, formats=_FORMATS) as opened:
            image = opened.convert("L" if channels == 1 else "RGB")
    except UnidentifiedImageError:
        what = f"the file is not an image: it has none of the formats {', '.join(_FORMATS)}"
        raise InputError(what, where=str(path)) from None
    except Exception as error:  # what Pillow raises for a broken or huge image
        raise InputError(f"the file is not an image: {describe(error)}", where=str(path)) from None
    size = width, height
    if rules.resize:
        factor = max(rules.resize * width / image.width, rules.resize * height / image.height)
        size = max(width, round(image.width * factor)), max(height, round(image.height * factor))
        if math.prod(size) > _MOST_PIXELS:
            what = f"the image has {image.width} × {image.height} pixels, and {size[0]} × {size[1]} before the crop"
            raise InputError(what, where=str(path), hint=f"crop it, or write resize = 0 into {RULES}")
    image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    pixels = np.asarray(image.crop((left, top, left + width, top + height)), np.float32).reshape(
        height, width, channels
    )
    if rules.channels == "bgr" and channels == 3:
        pixels = pixels[:, :, ::-1]
    mean, std = (
        np.asarray(factors if len(factors) == channels else (sum(factors) / len(factors),), np.float32)
        for factors in (rules.mean, rules.std)
    )
    return np.asarray((pixels * np.float32(rules.scale) - mean) / std, np.float32)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
