"""What the gpu target makes of convolutions, matrix products and quantization (``simplify_qdq``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_PRODUCTS = {"convolution", "convolution_backwards", "dot", "quant_convolution", "quant_dot"}


@dataclass(frozen=True)
class Operator:
    """One operator of the program after ``simplify_qdq``.

    Attributes:
        name: in MIGraphX ("quant_dot").
        dims: the shape of its result.
        dtypes: those of its first two operands ("int8_type").
        correction: whether it multiplies a zero point, and so only corrects another product.
        int4: whether an operand is unpacked from 4 bits.
        nodes: the names of the ONNX nodes that it comes from, where MIGraphX keeps them.
    """

    name: str
    dims: tuple[int, ...]
    dtypes: tuple[str, str]
    correction: bool
    int4: bool
    nodes: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Operator:
        """One that the library with the passes describes."""
        dims, dtypes, nodes = (tuple(values[name]) for name in ("dims", "dtypes", "nodes"))
        return cls(values["operator"], dims, dtypes, values["correction"], values["int4"], nodes)

    @property
    def is_product(self) -> bool:
        """Whether it is a convolution or a matrix product of the model, and not a correction."""
        return self.name in _PRODUCTS and not self.correction

    @property
    def kernel(self) -> str:
        """Its kind of kernel: ``int8``, ``fp8``, ``int4-weight`` or ``float``."""
        if self.name.startswith("quant_"):
            return "int8" if "int8_type" in self.dtypes else "fp8"
        return "int4-weight" if self.int4 else "float"
