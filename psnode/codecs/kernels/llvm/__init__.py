"""The LLVM instructions that the package uses and that Numba does not generate from loops, each with its equivalent in NumPy."""
