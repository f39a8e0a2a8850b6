"""Simulation of a whole job in virtual time: the real rules of rounds and membership, with prices from a profile."""
