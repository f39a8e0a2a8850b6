"""Ranks that are processes of an MPI job."""
