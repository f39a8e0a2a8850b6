"""Compiled loops over arrays. Each makes one pass over memory and gives the same bytes on every machine."""
