"""The named pipelines, as specifications (`passes.rewriting.spec` defines their syntax)."""

_QUANTIZATION_TO_QDQ = "decompose-quark,qoperator-to-qdq,fold-qdq,fold-constants"
_QDQ_TO_INT8 = (
    "cancel-qdq,unblock-scales,explicit-zero-point,center-matmul-integer,requantize-weights,int4-to-int8,widen-scales,"
    "widen-products,uint8-to-int8,keep-inner-scales,lift-dequantize,saturate-before-quantize"
)

QUANTIZED_ONLY = frozenset(("check-quantization," + _QUANTIZATION_TO_QDQ + "," + _QDQ_TO_INT8).split(",")) - {
    "fold-constants"
}
"""Passes that find nothing in a model without quantized operators (`passes.graphs.quantization.is_quantized`)."""

PIPELINES = {
    "none": "",
    # Changes no operator: it removes only structure that is irrelevant to the computation.
    "minimal": "inline-functions,remove-dead,infer-shapes",
    # First, every form of quantization becomes QuantizeLinear and DequantizeLinear. Then follow the passes that decide
    # whether these become 8-bit kernels: dtypes, zero points, axes of scales, rearranged integers. 4-bit weights are
    # converted before scales are widened, which applies to 8-bit integers only: a kernel takes scales of one dtype.
    # Saturation is last, since ranges depend on all of that. None of these passes changes a float model.
    "quantized": "check-quantization,inline-functions,unshadow-names,fold-constants,"
    f"{_QUANTIZATION_TO_QDQ},infer-shapes,{_QDQ_TO_INT8},remove-dead,infer-shapes",
    # Functions first, since inference and folding do not look into them; then every value gets a unique name, so that
    # nothing that moves between graphs is shadowed. Constants are folded again after the quantization passes that leave
    # some to fold. Nodes that are redundant or can be merged or fused are found once shapes are known, and before the
    # 8-bit passes, which insert Clip between them. Last, legalize probes the runtime, if there is one.
    "default": "check-quantization,inline-functions,unshadow-names,fold-constants,dissolve-sequences,"
    f"{_QUANTIZATION_TO_QDQ},infer-shapes,remove-identity,lift-constant-nodes,fuse-gemm,share-constants,"
    "eliminate-common-subexpressions,merge-reshapes,merge-transposes,merge-slices,fold-batch-norm,fold-pad,"
    f"fuse-gelu,fuse-layer-norm,{_QDQ_TO_INT8},remove-dead,infer-shapes,legalize",
}
"""Named pipelines, as specifications."""
