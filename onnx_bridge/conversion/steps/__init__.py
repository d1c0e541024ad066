"""The six steps of a conversion, called in order by `onnx_bridge.conversion.convert`."""
