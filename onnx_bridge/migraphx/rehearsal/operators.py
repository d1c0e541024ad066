"""Operators of a program after the gpu target's rewriting of quantization (``simplify_qdq``)."""

from __future__ import annotations

from dataclasses import dataclass

_PRODUCTS = {"convolution", "convolution_backwards", "dot", "quant_convolution", "quant_dot"}


@dataclass(frozen=True)
class Operator:
    """One operator of the program after ``simplify_qdq``.

    Attributes:
        operator: the name in MIGraphX ("quant_dot").
        dims: the shape of its result.
        dtypes: the types of its first two operands ("int8_type").
        correction: whether it multiplies a zero point, and so only corrects another product.
        int4: whether an operand is unpacked from 4 bits.
        nodes: the names of the ONNX nodes that it comes from, if MIGraphX keeps them.
    """

    operator: str
    dims: tuple[int, ...]
    dtypes: tuple[str, str]
    correction: bool
    int4: bool
    nodes: tuple[str, ...] = ()

    @property
    def is_product(self) -> bool:
        """True if it is a convolution or a matrix product of the model, and not a correction."""
        return self.operator in _PRODUCTS and not self.correction

    @property
    def kernel(self) -> str:
        """Its kind of kernel: ``int8``, ``fp8``, ``int4-weight`` or ``float``."""
        if self.operator.startswith("quant_"):
            return "int8" if "int8_type" in self.dtypes else "fp8"
        return "int4-weight" if self.int4 else "float"
