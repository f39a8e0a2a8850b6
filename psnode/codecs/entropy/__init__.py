"""Lossless stages, which compress the symbols of a quantiser to little more than their entropy.

Each stage is a subclass of psnode.codecs.stages.Lossless in its own module, with a row in psnode.codecs.table.LOSSLESS.
"""
