"""All LLVM text of the package: instructions that Numba does not make of loops, each with its equivalent in NumPy."""
