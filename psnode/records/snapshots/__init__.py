"""Copies of a version that a checkpoint needs, taken beside the training, and their memory."""
