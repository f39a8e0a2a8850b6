"""Loops over arrays, compiled: one pass over memory each, and the same bytes on every machine."""
