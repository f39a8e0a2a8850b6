"""Sparsifiers: which coordinates are sent, and their indices in few bytes."""
