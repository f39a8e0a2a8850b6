"""Tasks: models and data, and the passes over them."""
