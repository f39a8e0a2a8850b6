"""Checkpoints on rank 0: begun, filled by a thread beside the training, published in order, judged by later losses."""
