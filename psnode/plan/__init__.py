"""Tensors, the segments that they are coded in, and the groups that travel together."""
