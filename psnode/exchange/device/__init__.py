"""Coding on a CUDA device, by kernels made of a codec's formula (docs/gpu.md)."""
