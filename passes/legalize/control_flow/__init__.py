"""Rules for If, Loop, Scan, sequences, and operators that ONNX defines by function bodies."""
