"""Generation of a Python module with Numba kernels from a program."""
