"""Tasks: models and data, and the computation of losses and metrics for training."""
