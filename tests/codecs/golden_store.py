"""Stored payloads of codecs that have their own reader. REWRITE_GOLDEN=1 rewrites them, as in test__golden."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from tests.codecs.test__golden import FOLDER, REWRITE, fixed_input


def check_golden(name: str, spec: str, read: Callable[[bytes], np.ndarray], same_bytes: bool = True) -> None:
    """Check that the codec writes the stored payload (if `same_bytes`), and that the codec and `read` decode it to the same
    bits.
    """
    path, codec, x = FOLDER / f"{name}.bin", get_codec(spec), fixed_input()
    payload = codec.encode(x, Key.derive(1, "golden"))
    if REWRITE:
        path.write_bytes(payload.to_bytes())
    stored = Payload.from_bytes(path.read_bytes())
    assert not same_bytes or payload == stored
    decoded = codec.decode(stored)
    np.testing.assert_array_equal(decoded.view(np.uint32), read(stored.to_bytes()).reshape(x.shape).view(np.uint32))
