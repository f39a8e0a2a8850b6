"""The ordered list of the steps of successive cancellation for one level of a code. Subtrees that need no steps are omitted.

Node (s, n) of the tree covers the n bits from bit s on. Its LLRs are rows n..2n-1, and the sums of its bits are bits[s:s+n].
Three kinds of subtrees are processed in one step each: subtrees without a free bit, without a frozen bit, or with a single free
bit at their end (a repetition). This changes no probability. In a flat subtree, every bit is nearly a fair coin given the bits
before it, and its prior is not computed.

Source: Alamdar-Yazdi, Kschischang, "A simplified successive-cancellation decoder for polar codes", IEEE Comm. Letters 2011.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Steps = npt.NDArray[np.int64]

F_POST, F_PRIOR, G_POST, G_PRIOR, JOIN = range(5)
FROZEN_FLAT, FROZEN, FREE_FLAT, FREE, REPEAT_FLAT, REPEAT = range(5, 11)
_POSTERIOR_ONLY = (F_POST, G_POST)


class Schedule(NamedTuple):
    """The steps of a level, and the number of rows that they use.

    `encode` and `decode` have shape (k, 3): kind, n and s of each step. `raw` and `coded` are the numbers of rows of raw and of
    coded bits, and `drawn` is the number of random words. `flat` is True if the whole level is flat.
    """

    encode: Steps
    decode: Steps
    raw: int
    coded: int
    drawn: int
    flat: bool


def schedule(frozen: Bools, flat: Bools) -> Schedule:
    """Return the schedule of a level, given the masks of its `frozen` and `flat` bits."""
    size = frozen.size
    choices = np.concatenate([[0], np.cumsum(~frozen)])
    bends = np.concatenate([[0], np.cumsum(~flat)])
    steps: list[tuple[int, int, int]] = []
    raw = coded = drawn = 0
    todo = [(0, size, False)]
    while todo:
        s, n, is_join = todo.pop()
        if is_join:
            steps.append((JOIN, n, s))
            continue
        if n < 0:  # n < 0: the g step of a right child, before the child itself
            steps.extend(_down(choices, bends, s, -n, right=True))
            continue
        free = int(choices[s + n] - choices[s])
        bent = int(bends[s + n] > bends[s])
        if free in (0, n) or (free == 1 and not frozen[s + n - 1]):
            first = FROZEN_FLAT if free == 0 else FREE_FLAT if free == n else REPEAT_FLAT
            steps.append((first + bent, n, s))
            drawn += n if free < n else 0
            raw += free if not bent else 0
            coded += free if bent else 0
            continue
        half = n // 2
        steps.extend(_down(choices, bends, s, n, right=False))
        todo += [(s, n, True), (s + half, half, False), (s, -n, False), (s, half, False)]
    encode = np.array(steps, np.int64).reshape(-1, 3)
    return Schedule(encode, encode[~np.isin(encode[:, 0], _POSTERIOR_ONLY)].copy(), raw, coded, drawn, bool(flat.all()))


def _down(
    choices: npt.NDArray[np.int64], bends: npt.NDArray[np.int64], s: int, n: int, right: bool
) -> list[tuple[int, int, int]]:
    """Return the steps from node (s, n) to one of its children. They compute the LLRs that this child needs."""
    half = n // 2
    first = s + half if right else s
    steps = []
    if choices[first + half] > choices[first]:
        steps.append((G_POST if right else F_POST, n, s))
    if bends[first + half] > bends[first]:
        steps.append((G_PRIOR if right else F_PRIOR, n, s))
    return steps
