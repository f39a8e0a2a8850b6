"""Sketches: short arrays, filled by hashing, that summarise much longer arrays."""
