"""Traits: facts about a codec that the rest of psnode needs to use it rightly."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """The properties of a codec at its parameters.

    unbiased          E decode(encode(x)) = x for every x
    lossless          decode(encode(x)) = x, bit for bit
    linear            payloads that were encoded under one key can be summed undecoded, by `merge`
    decodes_linearly  a merged payload decodes to the sum of its decoded parts, but for rounding; linear codecs only
    shaped            the result depends on the shape of x and not on its values in order alone
    one_scale         all of x shares a scale or levels, so that tensors of unlike magnitudes are better coded one by one
    sparse            decode_add touches only the coordinates in `support`
    adaptive          payloads are far smaller on the arrays meant for the codec than `max_nbytes`, which says little about them
    votes             a decoded value is a vote, 1 or -1, of which the majority counts
    newest            looks at the gradient being added to a residual beside the sum, so that the sum alone is coded otherwise
    refit             for how many steps of training a result of `fit` serves; 1: every array is coded by itself
    """

    unbiased: bool = False
    lossless: bool = False
    linear: bool = False
    decodes_linearly: bool = False
    shaped: bool = False
    one_scale: bool = False
    sparse: bool = False
    adaptive: bool = False
    votes: bool = False
    newest: bool = False
    refit: int = 1
