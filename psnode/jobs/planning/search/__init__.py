"""Search over plans: which tensors travel together, and with which codec."""
