"""What `clean` is asked to do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from onnx_bridge.core.values import Array

Dims = Mapping[str, int]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class CleanRequest:
    """How to rewrite a model with passes.

    Attributes:
        pipeline: the passes, as a specification or the name of a pipeline.
        dims: sizes of symbolic dimensions by name.
        shapes: whole shapes by input name.
        freeze: values, as JSON text, of inputs that become constant.
        default_dim: the size of every input dimension that is still open; None leaves it open.
        verify: ``each`` compares the model on ONNX Runtime before and after each pass that changes it.
        max_rewrites: how many rewrites all passes together may commit; None is no limit.
        timeout: limit in seconds for each run of ONNX Runtime; None is what is around it.
        memory: limit in GiB for its process; likewise.
    """

    pipeline: str = "default"
    dims: Dims = field(default_factory=dict)
    shapes: Shapes = field(default_factory=dict)
    freeze: Mapping[str, str] = field(default_factory=dict)
    default_dim: int | None = None
    verify: Literal["none", "each"] = "none"
    max_rewrites: int | None = None
    timeout: float | None = None
    memory: float | None = None


def as_shapes(shapes: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    """Shapes, or sizes of buckets, as a request holds them."""
    return {name: tuple(sizes) for name, sizes in (shapes or {}).items()}


def as_json(values: Mapping[str, Array | str] | None) -> dict[str, str]:
    """Values of frozen inputs as JSON text; a string is JSON already."""
    return {name: each if isinstance(each, str) else json.dumps(each.tolist()) for name, each in (values or {}).items()}
