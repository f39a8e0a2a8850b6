"""Coding of a plan's segments on the CUDA device that holds their values (docs/gpu.md)."""
