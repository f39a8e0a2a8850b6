"""Lossless stages: the symbols of a quantiser in little more than their entropy."""
