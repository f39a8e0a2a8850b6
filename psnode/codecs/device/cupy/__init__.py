"""CUDA kernels that CuPy compiles and launches."""
