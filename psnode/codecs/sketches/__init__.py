"""Sketches: arrays much shorter than what they summarise, filled by hashing."""
