"""``python -m onnx_bridge`` is the command ``onnx-bridge``."""

from onnx_bridge.cli.main import main

main()
