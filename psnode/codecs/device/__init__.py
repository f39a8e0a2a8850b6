"""Codecs whose arrays lie on a CUDA device, run by kernels made of their formulas (docs/gpu.md)."""
