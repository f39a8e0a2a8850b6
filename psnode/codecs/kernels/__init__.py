"""Compiled loops over arrays, which give the same bytes on every machine. Most make one pass over memory."""
