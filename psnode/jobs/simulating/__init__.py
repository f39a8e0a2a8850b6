"""Simulation of a whole job in virtual time.

Rounds and membership follow the rules of a real job. The durations of work come from a profile.
"""
