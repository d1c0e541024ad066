"""Parity: agreement with ONNX Runtime on the CPU with all graph optimizations off; fault localization and reduction."""
