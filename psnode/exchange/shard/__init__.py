"""Rounds, reduction and downlink of the groups that have this rank as their root."""
