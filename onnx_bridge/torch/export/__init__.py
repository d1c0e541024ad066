"""From PyTorch to ONNX. Only this folder and what builds on it import torch, and only when they are called."""
