"""Codecs for arrays on a CUDA device (docs/gpu.md).

Their kernels are generated from formulas, but spectral ATOMO uses those of torch.
"""
