"""Segments of a plan that are coded where a CUDA device has them (docs/gpu.md)."""
