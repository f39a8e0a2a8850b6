"""Generation of CUDA kernels from a program. The kernels use the macros and functions of the headers in this directory."""
