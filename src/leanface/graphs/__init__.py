"""Helpers that write ONNX graphs from arrays of weights."""
