"""Copies of the weights and optimizer state of a version, made for a checkpoint during training, and the memory for them."""
