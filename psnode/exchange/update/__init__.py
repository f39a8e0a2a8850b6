"""Weights of some groups of a plan, and the optimizers that update these weights."""
