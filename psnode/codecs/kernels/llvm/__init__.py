"""The LLVM instructions that kernels use directly, each with its equivalent in NumPy."""
