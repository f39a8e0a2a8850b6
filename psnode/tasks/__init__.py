"""Tasks: models, data, and the computations that train with them."""
