"""Facts about operators, in one table for all who ask.

Facts hold for every node of an operator, whatever its inputs. An operator of com.microsoft that has the name of one of
ONNX's has its facts, too; a caller that must tell them apart looks at the domain.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, get_args

import onnx_ir as ir

Fact = Literal[
    "exact",  # there is one right result: it moves, compares, rounds or casts numbers
    "few",  # computes each number from a few, and rounds it
    "many",  # adds many numbers, and rounds the sum
    "unit",  # computes by way of numbers of magnitude 1, and rounds these
    "sums",  # rounds its results as coarsely as the numbers that it adds
    "given",  # results are numbers of the inputs, or smaller ones
    "moves",  # results are numbers of the first input
    "within",  # results lie within the bounds of the first input
    "free",  # only moves, copies or describes data, which costs nothing
    "bounded",  # a result has at most the elements of all inputs together, or a number for each axis
    "broadcasts",  # the result has the shape to which the inputs broadcast
    "reduces",  # has one result for all numbers along some axes
    "by data",  # the size of the results depends on the elements of the inputs; it is at most that of the inputs
    "larger",  # chooses the larger of two numbers
    "steps",  # rounds to whole numbers
    "sides",  # asks on which side of another its numbers are
    "quantizes",  # rounds its results to a grid
    "quantizes inside",  # rounds to a grid on the way to its results
    "integers",  # computes with quantized numbers
    "dequantizes",  # makes numbers of quantized ones, which may be its weights, before it computes
]

_TABLE = """
exact                               BitCast CenterCropPad MaxUnpool OneHot ReverseSequence
exact, bounded                      Trilu
exact, bounded, free                EyeLike Shape Size
exact, bounded, free, moves         Cast
exact, free                         CastLike Constant ConstantOfShape
exact, given, free                  Pad
exact, given, free, within          DepthToSpace SpaceToDepth
exact, given, free, moves           GatherND
exact, given, free, moves, within   Expand Gather Tile
exact, given, free, moves, bounded  Concat GatherElements
exact, given, free, moves, bounded, within    Flatten Identity Reshape Slice Split Squeeze Transpose Unsqueeze
exact, given, broadcasts            Max Min
exact, given, broadcasts, moves     Where
exact, given, bounded               Abs Neg Relu
exact, given, bounded, moves        Clip
exact, given, within                GlobalMaxPool MaxPool
exact, given, within, reduces       ReduceMax ReduceMin
exact, given, by data               Compress
exact, given, larger                TopK
exact, larger                       Hardmax
exact, bounded, steps               Ceil Floor Round
exact, bounded, sides               Sign
exact, sides, by data               Unique
free                                ConcatFromSequence Dropout Optional OptionalGetElement OptionalHasElement SequenceAt
free                                SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength
free                                SplitToSequence
bounded                             BitwiseNot IsInf IsNaN Not
broadcasts                          And BiasGelu BitShift BitwiseAnd BitwiseOr BitwiseXor FastGelu Or QuickGelu Xor
broadcasts, sides                   Equal Greater GreaterOrEqual Less LessOrEqual
reduces                             ReduceProd
reduces, larger                     ArgMax ArgMin
larger, by data                     NonMaxSuppression
sides, by data                      NonZero
few                                 Shrink ThresholdedRelu
few, free                           Range
few, bounded                        Acos Acosh Asin Asinh Atan Atanh Cosh Exp HardSwish Reciprocal Sinh Softplus
few, bounded                        Sqrt Tan
few, bounded, given                 LeakyRelu
few, bounded, unit                  Cos Elu Erf Gelu HardSigmoid Log Selu Sigmoid Sin Softsign Tanh
few, unit                           Celu Mish Swish
few, broadcasts                     Div Mul PRelu Pow
few, broadcasts, sides              Mod
few, broadcasts, sums               Add Sub
many                                BatchNormalization Conv ConvTranspose DFT Einsum Gemm InstanceNormalization
many                                LayerNormalization LpNormalization MatMul RMSNormalization Resize STFT Upsample
many, bounded                       LogSoftmax
many, bounded, unit                 Softmax
many, bounded, sums                 CumSum
many, broadcasts, sums              Mean Sum
many, reduces                       ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare
many, reduces, sums                 ReduceSum
many, reduces, sums, within         ReduceMean
many, sums                          AveragePool
many, sums, within                  GlobalAveragePool
bounded, quantizes                  QuantizeLinear
quantizes                           DynamicQuantizeLinear ExtendedQuantizeLinear QuantizeBFP QuantizeWithOrder
quantizes                           VitisQuantizeLinear
quantizes, integers                 QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv QLinearConvTranspose
quantizes, integers                 QLinearGlobalAveragePool QLinearLeakyRelu QLinearMatMul QLinearMul QLinearReduceMean
quantizes, integers                 QLinearSigmoid QLinearSoftmax QLinearWhere QOrderedAttention QOrderedGelu
quantizes, integers                 QOrderedLayerNormalization QOrderedLongformerAttention QOrderedMatMul
quantizes inside, integers          DynamicQuantizeLSTM DynamicQuantizeMatMul QAttention
quantizes inside, dequantizes       QMoE
integers                            ConvInteger MatMulInteger MatMulInteger16 MatMulIntegerToFloat MulInteger
integers                            ReduceSumInteger
few, bounded, dequantizes           DequantizeLinear
dequantizes                         DequantizeWithOrder ExtendedDequantizeLinear GatherBlockQuantized
dequantizes                         MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight MatMulBnb4 MatMulNBits
dequantizes                         MatMulNBitsMlp MatMulNBitsQkv QEmbedLayerNormalization VitisDequantizeLinear
"""

WEIGHTS = {"QGemm": 3, "QLinearConv": 3, "QLinearMatMul": 3}
"""The index of the right operand of a product, or of the weight of a convolution, unless it is 1."""

STANDARD_DOMAINS = ("", "com.microsoft")
"""The domains whose QuantizeLinear and DequantizeLinear mean the same."""
QUANTIZE = frozenset((domain, "QuantizeLinear") for domain in STANDARD_DOMAINS)
DEQUANTIZE = frozenset((domain, "DequantizeLinear") for domain in STANDARD_DOMAINS)
QUARK_DOMAINS = ("com.amd.quark", "com.vai.quantize")
"""The domains of AMD Quark's operators, the current and the former one."""


@cache
def operators(*facts: Fact) -> frozenset[str]:
    """Return the names of the operators that have any of some facts."""
    return frozenset(name for name, own in _facts().items() if not own.isdisjoint(facts))


@cache
def _facts() -> dict[str, frozenset[str]]:
    table: dict[str, frozenset[str]] = {}
    for line in _TABLE.strip().splitlines():
        facts, _, names = line.partition("  ")
        own = frozenset(facts.split(", "))
        assert own <= {*get_args(Fact)}, f"no such facts: {own}"
        assert table.keys().isdisjoint(names.split()), f"an operator has two rows: {names}"
        table |= dict.fromkeys(names.split(), own)
    return table


REDUCTIONS = operators("reduces") - operators("larger")
"""The operators whose second input, or attribute, is the axes that they reduce."""
QUANTIZED = operators("quantizes", "quantizes inside", "integers", "dequantizes")
"""The operators that make a model a quantized one."""


def is_quantize(node: ir.Node | None) -> bool:
    """Return whether a node is a QuantizeLinear."""
    return node is not None and (node.domain, node.op_type) in QUANTIZE


def is_dequantize(node: ir.Node | None) -> bool:
    """Return whether a node is a DequantizeLinear."""
    return node is not None and (node.domain, node.op_type) in DEQUANTIZE


def is_quantizer(node: ir.Node) -> bool:
    """Return whether a node rounds floats, or integers of more bits, to the steps of a grid.

    Quark's operators also round to floats of 16 bits, by a zero point of that dtype: these have no steps.
    """
    if node.op_type not in operators("quantizes"):
        return False
    zero = node.inputs[2] if node.domain in QUARK_DOMAINS and len(node.inputs) > 2 else None
    return zero is None or zero.dtype is None or zero.dtype.is_integer()


def is_quantized_operator(node: ir.Node) -> bool:
    """Return whether a node quantizes, dequantizes or computes with quantized numbers."""
    return node.op_type in QUANTIZED or node.domain in QUARK_DOMAINS
