"""Copies of weights, optimizer state and residuals, made for a checkpoint during training, and the memory for them."""
