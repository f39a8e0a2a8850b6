"""CUDA kernels compiled and launched by CuPy."""
