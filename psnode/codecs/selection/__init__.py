"""Sparsifiers: selection of the coordinates to send, and compact coding of their indices."""
