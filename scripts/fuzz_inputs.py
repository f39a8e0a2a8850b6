"""Inputs of scripts/fuzz.py: valid frames and payloads, and the changes made to them.

The first byte of an input, modulo 4, states the kind of the remaining bytes. PAYLOAD: a payload. FRAME: a frame whose length
and checksum are corrected before it is read. RAW: a frame that is read as it is. GROUP: the two payloads of a gradient frame,
after two bytes that state where the second payload begins.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import torch

from psnode.codecs import available, get_codec
from psnode.codecs.rng import Key
from psnode.protocol import messages, wire
from psnode.records.tensorfile import dump

JOB = 0x5EED
SHAPES = [(20, 33), (40,), (3,), (9, 4, 3, 3)]
FORMS = [
    "qsgd:levels=1", "qsgd:levels=2,bucket=7,norm=max", "qsgd:levels=255,bucket=100000", "qsgd+zstd", "qsgd:levels=300+zstd",
    "bf16+zstd", "svd+qsgd", "svd:rank=1+fp16+zstd", "topk+qsgd:levels=7", "topk+qsgd+zstd", "randk+bf16", "qsgd+ans",
    "qsgd:levels=1+rice", "lss:bits=3,buckets=0.1+ans", "topk:ratio=0.1+lss+ans", "sketchml:bins=32,rows=0+ans",
    "topk:ratio=0.1+sketchml+ans", "fourier:budget=0.3,block=256",
]  # fmt: skip
PAYLOAD, FRAME, RAW, GROUP = range(4)
INTERESTING = [0, 1, 2, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7F800000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


def forms() -> list[str]:
    """Return the specs whose payloads are seeds: all codecs, some with further parameters, chains, and all contractive forms."""
    plain = [*available(), *FORMS]
    return [*plain, *sorted({repr(get_codec(spec).contractive()) for spec in plain} - {repr(get_codec(spec)) for spec in plain})]


def seeds(specs: list[str]) -> Iterator[bytes]:
    """Yield valid inputs: payloads of the codecs in several shapes, frames of every kind, gradients of two payloads."""
    made = []
    for spec in specs:
        for shape in SHAPES:
            x = np.asarray(np.random.default_rng(len(made)).standard_normal(shape), np.float32)
            made.append(get_codec(spec).encode(x, Key.derive(3)).to_bytes())
            yield bytes([PAYLOAD]) + made[-1]
    if len(specs) == 1:
        return
    for index in range(0, len(made) - 4, 4):
        first, second = made[index + 1], made[index + 5]
        yield bytes([GROUP]) + len(first).to_bytes(2, "little") + first + second
    for kind, body in _control().items():
        frame = wire.pack(kind, body, sender=1, job=JOB, group=3, step=5, version=4)
        yield bytes([FRAME]) + frame.tobytes()
        yield bytes([RAW]) + frame.tobytes()


def _control() -> dict[int, bytes]:
    kind = wire.Kind
    found: dict[int, bytes] = dict.fromkeys(kind, b"SIGTERM")
    found[kind.HELLO] = messages.Hello("host", 7, "1", "").to_bytes()
    found[kind.CONFIG] = messages.Setup({"lr": 0.1, "seed": 1}, {"name": "qsgd"}, "runs/x", "mark").to_bytes()
    tensors, backward = [["a", [3, 4]], ["b", []]], [["b", 0.5], ["a", 1.5]]
    found[kind.READY] = messages.Ready(tensors, backward, 100, True, host="a", cores=2).to_bytes()
    found[kind.PLAN] = messages.Start({"tensors": []}, JOB, 3, 10, 5, None, False).to_bytes()
    found[kind.RESHARD] = messages.Reshard([1, 3], 5, 2, -1, 10).to_bytes()
    found[kind.REPORT] = messages.Report(0.5, 8, {"top1": 3.0}, 0.1, 0.1, 0.1, None, 12345).to_bytes()
    found[kind.FAILED] = messages.Failure("out of memory", 1).to_bytes()
    found[kind.STATE] = dump({"buffer/mean": torch.ones(3), "feedback/residual/weight": torch.zeros(5)})
    found[kind.TRACE] = b'[{"name":"load","ph":"X","pid":1,"tid":"main","ts":1.0,"dur":2.0,"args":{}}]'
    return found


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with one to four random changes.

    A change sets a byte, a bit, a field or a shape; or cuts, inserts, repeats or nests bytes.
    """
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        size = len(changed)
        at = rng.randrange(1, size) if size > 1 else 1
        match rng.choice((0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 5, 6, 6, 7, 8)):
            case 0 if at < size:
                changed[at] = rng.randrange(256)
            case 1 if at < size:
                changed[at] ^= 1 << rng.randrange(8)
            case 2:
                width = rng.choice((1, 2, 4, 8))
                at -= (at - 1) % width
                value = rng.choice(INTERESTING) if rng.random() < 0.7 else rng.getrandbits(8 * width)
                changed[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
            case 3:
                del changed[at : at + rng.randint(1, 9)]
            case 4:
                changed[at:at] = rng.randbytes(rng.randint(1, 9))
            case 5:
                changed[at:at] = changed[at : at + 16]
            case 6 if size > 9:  # in a payload's stages, dimensions and first fields
                changed[rng.randrange(1, min(size, 24))] = rng.choice(
                    (0, 1, 2, 3, 4, 5, 8, 20, 33, 64, 65, 66, 96, rng.randrange(256))
                )
            case 7:
                del changed[at:]
            case 8:
                changed[at:at] = rng.choice((b"[" * 50, b'{"a":' * 3000, b"NaN", b"1e999", b"-1", b"null", b'"', b"\xff"))
    return bytes(changed)
