"""Codecs, which encode float32 arrays into few bytes and decode these bytes.

>>> import numpy as np
>>> x = np.linspace(-1, 1, 4096, dtype=np.float32)
>>> codec = get_codec("qsgd:levels=15,bucket=512")
>>> payload = codec.encode(x, rng=np.random.default_rng(7))
>>> x.nbytes, payload.nbytes
(16384, 2612)
>>> y = codec.decode(payload)
>>> step = np.linalg.norm(x[:512]) / 15
>>> bool(np.abs(y - x)[:512].max() < step)
True
"""

from psnode.codecs.base import Codec
from psnode.codecs.payload import Payload
from psnode.codecs.registry import available, get_codec, register

__all__ = ["Codec", "Payload", "available", "get_codec", "register"]
