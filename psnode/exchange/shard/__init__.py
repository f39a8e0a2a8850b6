"""Rounds, reduction and downlink of the groups of which a rank is the root."""
