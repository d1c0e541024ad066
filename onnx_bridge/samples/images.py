"""Images as samples: a file, or a folder of them, preprocessed as a file ``images.toml`` beside them declares.

They are for a model with one input ``[N, C, H, W]`` or ``[N, H, W, C]`` of 1 or 3 channels, of floats, or of bytes,
which are the pixels as they are. Pillow reads them. An image is resized to the size of the input unless that is open.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.files.regular_file import open_regular, read_regular
from onnx_bridge.core.third_party import describe, shorten, suppressed_output
from onnx_bridge.core.values import Array
from onnx_bridge.samples.inputs import Sample, TensorSpec

RULES = "images.toml"
"""The file in a folder of images that declares their preprocessing."""
LABEL = "label"
"""The name of a sample's labels, unless an input has it."""
_FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The formats that are read, whatever a file is named: Pillow gives some others to programs."""
_ENDINGS = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
_SAMPLES = ("input_*.pb", "test_data_set_*", "*.npz", "*.npy")
"""The files of a folder that are samples; images beside them are not."""
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
        classes: the folders of images of one class, in the order of the model's classes, or ``sorted`` by name. Images
            have labels then.
    """

    resize: float = 256 / 224
    channels: str = "rgb"
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    classes: tuple[str, ...] = ()

    def __str__(self) -> str:
        rules = [f"{name} {_shown(value)}" for name, value in asdict(self).items() if name != "classes"]
        return ", ".join(rules)

    @classmethod
    def beside(cls, images: Path) -> ImageRules:
        """Return the rules in the folder of images or above it; raises InputError for a wrong one."""
        folder = images if images.is_dir() else images.parent
        return next((cls.read(place / RULES) for place in (folder, folder.parent) if (place / RULES).exists()), cls())

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
            if name == "classes" and isinstance(value, str | list):
                folders = sorted({file.parent.name for file in images_at(path.parent)})
                rules[name] = tuple(folders if value == "sorted" else map(str, value))
                continue
            several = name in ("mean", "std")
            values = value if isinstance(value, list) and several else [value]
            numbers = all(type(number) in (int, float) and abs(number) <= _LARGEST for number in values)
            right = value in ("rgb", "bgr") if name == "channels" else numbers and len(values) in (1, 3)
            too_small = right and name == "std" and min(map(abs, values)) < 1 / _LARGEST
            if not right or too_small or (name == "resize" and 0 != value < 1):
                raise InputError(f"{name} cannot be {shorten(repr(value))}", where=str(path))
            rules[name] = tuple(values) if several else value
        return cls(**rules)


def images_at(path: Path) -> list[Path]:
    """Return the image that a path is, or those in a folder and below, sorted; none if it has other samples."""
    if path.is_dir() and not any(any(path.glob(pattern)) for pattern in _SAMPLES):
        return sorted(file for file in path.rglob("*") if file.suffix.lower() in _ENDINGS)
    return [path] if path.is_file() and path.suffix.lower() in _ENDINGS else []


def image_batches(
    images: Sequence[Path], rules: ImageRules, specs: Sequence[TensorSpec], *, fill: bool = False
) -> Iterator[tuple[str, Sample]]:
    """Yield images in batches of the model's size, which is 1 if it is open, with their labels and the first file.

    Args:
        images: the files, at least one.
        rules: their preprocessing.
        specs: the inputs of the model.
        fill: fill the last batch up with the first of its images, instead of raising an error.

    Raises:
        InputError: the model does not take images, one cannot be read, or the last batch is not full.
    """
    (spec, shape) = (specs[0], specs[0].shape or ()) if len(specs) == 1 else (None, ())
    first = len(shape) == 4 and shape[1] in (1, 3)
    takes = spec is not None and ("float" in spec.dtype.name or spec.dtype == np.uint8)
    if spec is None or not takes or len(shape) != 4 or not (first or shape[3] in (1, 3)):
        what = "the model does not take images: it needs one input, [N, C, H, W] or [N, H, W, C], C = 1 or 3, of floats"
        raise InputError(f"{what} or bytes", where=str(images[0].parent), hint="give arrays as an .npz")
    batch = shape[0] if isinstance(shape[0], int) and shape[0] else 1
    channels = 3 if shape[1 if first else 3] == 3 else 1
    height, width = (dim if isinstance(dim, int) else None for dim in (shape[2:] if first else shape[1:3]))
    for start in range(0, len(images), batch):
        files = images[start : start + batch]
        if len(files) < batch and not fill:
            what = f"there are {len(images)} images, which is not a multiple of the model's batch of {batch}"
            raise InputError(what, where=str(images[0].parent), hint=f"give {start} of them" if start else None)
        arrays = [_read(path, rules, height, width, channels, spec.dtype == np.uint8) for path in files]
        if len({array.shape for array in arrays}) > 1:
            what = "the images of a batch have several sizes, and those of the model are open"
            raise InputError(what, where=str(files[0]), hint="convert with a batch of 1")
        stacked = np.stack([arrays[index % len(arrays)] for index in range(batch)])
        stacked = np.moveaxis(stacked, -1, 1) if first else stacked
        with np.errstate(over="ignore"):  # what is not finite is an error of calibration
            sample: Sample = {spec.name: np.ascontiguousarray(stacked).astype(spec.dtype)}
        if rules.classes and spec.name != LABEL:
            sample[LABEL] = np.array([_label(path, rules) for path in files])
        yield str(files[0]), sample


def _label(path: Path, rules: ImageRules) -> int:
    name = path.parent.name
    if name not in rules.classes:
        hint = (
            nearest(name, rules.classes) or f'name the folders in the model\'s order, or classes = "sorted" in {RULES}'
        )
        raise InputError(f"the folder {name!r} is no class", where=str(path), hint=hint)
    return rules.classes.index(name)


def _read(path: Path, rules: ImageRules, height: int | None, width: int | None, channels: int, as_bytes: bool) -> Array:
    """Return an image as floats [height, width, channels], or its bytes; None takes the image's own size."""
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
    is_open = width is None or height is None
    size = width, height = image.size if width is None or height is None else (width, height)
    if rules.resize and not is_open:
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
    if as_bytes:
        return pixels
    mean, std = (
        np.asarray(factors if len(factors) == channels else (sum(factors) / len(factors),), np.float32)
        for factors in (rules.mean, rules.std)
    )
    return np.asarray((pixels * np.float32(rules.scale) - mean) / std, np.float32)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
