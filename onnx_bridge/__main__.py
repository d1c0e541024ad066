"""``python -m onnx_bridge`` is the command ``onnx-bridge``."""

from onnx_bridge.cli import main

main()
