"""Profiles that take the figures of a finished run in place of those of the host on which they were measured."""
