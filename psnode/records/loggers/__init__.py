"""Loggers of a run beside its own files: TensorBoard, Weights & Biases, MLflow, Trackio, and others' own."""
