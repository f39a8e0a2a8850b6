"""Tensors of a model, the segments in which they are coded, and the groups that travel together."""
