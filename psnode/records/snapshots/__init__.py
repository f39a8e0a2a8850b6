"""Copies of a version that a checkpoint needs, which are made during training, and the memory for these copies."""
