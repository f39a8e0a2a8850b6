"""Rounds, reduction and downlink of the groups of which this rank is a root."""
