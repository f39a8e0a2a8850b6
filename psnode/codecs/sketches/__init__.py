"""Sketches: arrays much shorter than those they summarise, filled by hashing."""
