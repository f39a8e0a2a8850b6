"""Sketches: short arrays, filled by hashing, that summarise arrays many times as long."""
