"""Tasks: models and data sets, and functions on tensors, devices and optimizers that training needs."""
