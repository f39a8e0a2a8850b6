"""Codecs: float32 arrays to few bytes and back.

>>> codec = get_codec("qsgd:levels=15,bucket=512")
>>> payload = codec.encode(x, rng=np.random.default_rng(7))
>>> y = codec.decode(payload)
"""

from psnode.codecs.base import Codec
from psnode.codecs.payload import Payload
from psnode.codecs.registry import available, get_codec, register

__all__ = ["Codec", "Payload", "available", "get_codec", "register"]
