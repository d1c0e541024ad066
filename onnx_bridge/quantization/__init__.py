"""Quantization of ONNX models and PyTorch modules, by AMD Quark or ONNX Runtime's quantizer."""
