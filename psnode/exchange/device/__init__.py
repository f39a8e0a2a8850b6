"""Coding of a plan's segments on the CUDA device that has their values (docs/gpu.md)."""
