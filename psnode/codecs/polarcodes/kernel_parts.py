"""Parts of the polar code's kernels, which compile in parallel: each part runs without the kernels of the other parts.

Compiling the kernels takes some thirty seconds of processor time. The reading part reads words that no writer has made, so that
it does not need the kernels of a writer.
"""

from __future__ import annotations

import contextlib

import numpy as np

from psnode.codecs.arrays import Floats, readonly
from psnode.codecs.kernels.finite import add_scaled
from psnode.codecs.polarcodes import body, energy_groups, outliers, stream
from psnode.codecs.polarcodes.superblocks import superblocks
from psnode.errors import PayloadError

_SIZE, _RATE = 1 << 17, 2.0  # the classes of much smaller arrays are coded in another way
_SMALL = 4096
_KEY = readonly(np.zeros(2, np.uint64))


def _values(size: int) -> Floats:
    """Return test values with varying scale and with outliers."""
    values = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    values *= np.geomspace(1, 1e-4, size, dtype=np.float32)
    values[::2048] *= 32
    return readonly(values)


def classes() -> None:
    """Run the kernels that sort groups of values by their energy, and write and read their classes."""
    values = _values(_SIZE)
    arranged = energy_groups.arrange(values, float(np.square(values).mean()), _RATE)
    assert arranged is not None
    assert energy_groups.arrange(np.ones(_SIZE, np.float32), 1.0, _RATE) is None
    memory = np.zeros(_SIZE, np.uint8)
    end = body.write_classes(arranged.classes, memory)
    found, _ = body.read_classes(readonly(memory[:end]), _SIZE)
    energy_groups.restore(arranged.values, found, np.empty(_SIZE, np.float32))


def corrections() -> None:
    """Run the kernels that write, read and add the corrections of outliers."""
    values, found, memory = _values(_SIZE), np.zeros(_SIZE, np.float32), np.zeros(_SIZE, np.uint8)
    end = outliers.write(values, found, 1e-2, memory)
    places, errors, _ = outliers.read(readonly(memory[:end]), _SIZE)
    outliers.add(places, errors, found)
    add_scaled(found, np.zeros_like(found), np.float32(-1))


def writing() -> None:
    """Run the kernels that write a stream."""
    blocks, decoded = list(superblocks(_SMALL, energy_groups.LONGEST, _RATE)), np.zeros(_SMALL, np.float32)
    body.code(_values(_SMALL), blocks, False, _KEY, decoded, capped=True)


def reading() -> None:
    """Run the kernels that read a stream, on a stream of zeros."""
    blocks = list(superblocks(_SMALL, energy_groups.LONGEST, _RATE))
    found = stream.extent(blocks, [True] * len(blocks))
    scales = np.ones(sum(block.scales for block in blocks), np.float32)
    words = 2 * stream.allowed_words(found)
    memory = np.concatenate([scales.view(np.uint8), np.zeros(4 * -(-found.raw // 32) + words, np.uint8)])
    with contextlib.suppress(PayloadError):
        body.read(readonly(memory), blocks, False, _KEY, np.empty(_SMALL, np.float32))
