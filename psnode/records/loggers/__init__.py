"""Loggers of a run in addition to its own files: TensorBoard, Weights & Biases, MLflow, Trackio, and external ones."""
