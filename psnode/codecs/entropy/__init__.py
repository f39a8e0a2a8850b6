"""Lossless stages: the symbols of a quantiser in little more than their entropy.

Each is a subclass of psnode.codecs.stages.Lossless in a module of its own, and a row in psnode.codecs.table.LOSSLESS.
"""
