"""The named pipelines, as specifications (`passes.core.spec` defines their syntax)."""

_QUANTIZATION_TO_QDQ = "decompose-quark,qoperator-to-qdq,fold-qdq,fold-constants"
_QDQ_TO_INT8 = (
    "cancel-qdq,unblock-scales,explicit-zero-point,center-matmul-integer,requantize-weights,int4-to-int8,widen-scales,"
    "widen-products,uint8-to-int8,keep-inner-scales,lift-dequantize,saturate-before-quantize"
)

PIPELINES = {
    "none": "",
    # What changes no operator: only structure that says nothing about the computation goes.
    "minimal": "inline-functions,remove-dead,infer-shapes",
    # Every form of quantization becomes QuantizeLinear and DequantizeLinear first. What decides whether these become
    # kernels of 8 bits comes then: dtypes and zero points, which axes scales belong to, where integers are rearranged.
    # Weights of 4 bits go before scales, of which only those of 8 bits are widened: a kernel takes scales of one dtype.
    # Saturation is last, since what is in range of what depends on all that. Each does nothing to a model in float.
    "quantized": "check-quantization,inline-functions,unshadow-names,fold-constants,"
    f"{_QUANTIZATION_TO_QDQ},infer-shapes,{_QDQ_TO_INT8},remove-dead,infer-shapes",
    # Functions first, since inference and folding do not look into them; then every value gets a name of its own, so
    # that nothing that moves between graphs is caught by another of its name. What quantization leaves to be folded
    # comes before the second folding of constants, which goes on from there. Nodes that do nothing, repeat, or can be
    # merged or fused are found once shapes are known, before quantization is settled, which puts Clip between them.
    # The runtime is asked about what is left of that, if there is one.
    "default": "check-quantization,inline-functions,unshadow-names,fold-constants,inline-constant-if,"
    f"dissolve-sequences,{_QUANTIZATION_TO_QDQ},infer-shapes,remove-identity,lift-constant-nodes,share-constants,"
    "eliminate-common-subexpressions,merge-reshapes,merge-transposes,fold-batch-norm,fold-pad,fuse-gelu,"
    f"fuse-layer-norm,{_QDQ_TO_INT8},remove-dead,infer-shapes,legalize",
}
"""Named pipelines, as specifications."""
