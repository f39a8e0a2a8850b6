"""Checkpoints on rank 0. A thread writes them during training; they are published in order and judged by later losses."""
