"""Codecs for arrays on a CUDA device. Their kernels are generated from the codecs' formulas (docs/gpu.md)."""
