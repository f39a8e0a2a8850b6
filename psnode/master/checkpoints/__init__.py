"""Checkpoints on rank 0. A thread writes them during training; checkpoints are published in order and judged by later losses."""
