"""All LLVM instructions of the package that Numba does not generate from loops, each with its equivalent in NumPy."""
