"""Making quantized models, with AMD Quark or ONNX Runtime's quantizer: the verb ``quantize``, and ``export.quark``."""
