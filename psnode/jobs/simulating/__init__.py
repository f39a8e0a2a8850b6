"""Simulation of a whole job in virtual time, with the real rules for rounds and membership, and with prices from a profile."""
