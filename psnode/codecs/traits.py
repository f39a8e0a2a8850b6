"""Traits: the properties of a codec that other packages of psnode must know to use it correctly."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """The properties of a codec with its current parameters.

    unbiased          E decode(encode(x)) = x for every x
    lossless          decode(encode(x)) = x, bit for bit
    linear            `merge` adds payloads without decoding them, provided that they were encoded under one key
    decodes_linearly  a merged payload decodes to the sum of its decoded parts, up to rounding; linear codecs only
    shaped            the code depends on the shape of x as well as on its values
    one_scale         all values of x share one scale or set of levels: tensors of unlike magnitudes are better coded separately
    sparse            decode_add changes only the coordinates in `support`
    adaptive          on the arrays that the codec is meant for, payloads are usually far smaller than `max_nbytes`
    votes             every decoded value is a vote, 1 or -1, and the receiver takes the majority
    newest            the code depends on the gradient being added to a residual as well as on the sum of the two
    refit             the number of training steps from one `fit` to the next; 1: `fit` is not used
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
