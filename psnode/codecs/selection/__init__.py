"""Sparsifiers: the selection of the coordinates to send, and the compact coding of their indices."""
