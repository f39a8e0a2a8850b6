"""Rounds, reduction and downlink of the groups that a rank is the root of."""
