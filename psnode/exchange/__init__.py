"""Data plane: gradients on the way to the master, and weights on the way to the workers."""
