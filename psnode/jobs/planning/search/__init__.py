"""Search for plans: which tensors travel together in a group, and with which codec."""
