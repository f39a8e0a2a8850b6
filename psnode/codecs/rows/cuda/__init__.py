"""From a program to the text of CUDA kernels, in the words of the headers beside these modules."""
