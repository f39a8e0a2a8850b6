"""Threefry 4x32-13: four words from a counter and a key of four words each, by additions, rotations and exclusive ors.

It is the cipher Threefish with words of 32 bits and 13 rounds, without the tweak. Round r = 0, 1, ... mixes two pairs of words,
(0, 1) and (2, 3) if r is even, (0, 3) and (2, 1) if it is odd: x <- x + y, y <- (y rotated left) ^ x. Before round 0 and after
every fourth one the key is added to the words, one place further each time, and the number of the addition to the last word.

Written as instructions of 32 bits: Numba widens the arithmetic of uint32, which would halve the lanes of a vectorised loop.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. 12 rounds pass BigCrush there; 13 is
the one for which Random123, its reference implementation, publishes known answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

Four = tuple[np.uint32, np.uint32, np.uint32, np.uint32]

_ROUNDS = 13
_ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
_PARITY = 0x1BD11BDA  # the fifth word of the key is this ^ the other four
_I32 = ir.IntType(32)
_ROTATE = ir.FunctionType(_I32, [_I32] * 3)


def _add_key(builder: Any, x: list[Any], key: list[Any], number: int) -> None:
    for i in range(4):
        x[i] = builder.add(x[i], key[(number + i) % 5])
    x[3] = builder.add(x[3], ir.Constant(_I32, number))


def _mix(builder: Any, x: list[Any], r: int) -> None:
    rotate = builder.module.declare_intrinsic("llvm.fshl", [_I32], _ROTATE)
    pairs = ((0, 3), (2, 1)) if r % 2 else ((0, 1), (2, 3))
    for (i, j), distance in zip(pairs, _ROTATIONS[r % 8], strict=True):
        x[i] = builder.add(x[i], x[j])
        x[j] = builder.xor(builder.call(rotate, [x[j], x[j], ir.Constant(_I32, distance)]), x[i])


def _encrypt(typing: Any, counter: Any, key: Any) -> Any:
    """The four words of `counter` under `key`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, words = ([builder.extract_value(four, i) for i in range(4)] for four in arguments)
        parity = ir.Constant(_I32, _PARITY)
        for word in words:
            parity = builder.xor(parity, word)
        words.append(parity)
        _add_key(builder, x, words, 0)
        for r in range(_ROUNDS):
            _mix(builder, x, r)
            if r % 4 == 3:
                _add_key(builder, x, words, r // 4 + 1)
        return context.make_tuple(builder, signature.return_type, x)

    four = types.UniTuple(types.uint32, 4)  # type: ignore[no-untyped-call]
    return four(four, four), generate


# For use inside kernels.
encrypt = cast(Callable[[Four, Four], Four], intrinsic(_encrypt))
