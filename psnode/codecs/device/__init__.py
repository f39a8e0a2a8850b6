"""Codecs for arrays on a CUDA device, run by kernels generated from their formulas (docs/gpu.md)."""
