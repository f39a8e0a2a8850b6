"""`python -m studies.rows`: kernels generated from a codec's formula compared with handwritten ones, in turn, on one core.

For encode, encode with the error, decode and decode_add, the table has the GB/s of float32 on N(0,1) by processor time, and the
ratio generated / handwritten. Both kernels write the same payload, and check a payload before they read it. The table also
states whether all ratios are .95 or more, so that the formula could replace the handwritten kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from psnode.bench.hardware import last_level_cache
from psnode.bench.inputs import gaussian
from psnode.bench.yardsticks.rotation import APART, Rotation, beyond_cache
from psnode.bench.yardsticks.timing import best_in_turn
from psnode.codecs import available, get_codec
from psnode.codecs.rng import Key
from psnode.config.declaration import option
from psnode.errors import ConfigurationError
from studies.harness import Column, Found, Study, codecs, main

if TYPE_CHECKING:
    from psnode.codecs.rows.formula import Formula

KEY = Key.derive(1, "rows")
ENOUGH = 0.95
ACTIONS = ("encode", "error", "decode", "decode_add")
_REPEATS = 7
_EMPTY = np.empty(0, np.float32)


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.rows`."""

    codec: tuple[str, ...] = option((), "Measure this one; repeat; default: all with both.", repeated=True, metavar="SPEC")
    size: int = option(2**24, "Values of N(0,1).", minimum=1024)
    seconds: float = option(0.5, "Of each figure.", minimum=0)
    copies: int | None = option(None, "MiB of copies that are gone round; default: 4 last-level caches.", minimum=0)


def measure(options: Options) -> Found:
    """Return a row for each codec.

    By action it has `hand` and `generated` in GB/s, and their `ratio`. Raises ConfigurationError.
    """
    chosen = codecs(options.codec) or [name for name in available() if _formula(name) is not None]
    copies = beyond_cache(last_level_cache()) if options.copies is None else options.copies << 20
    values = gaussian(options.size).flat
    arrays = Rotation(values, copies), Rotation(values, copies, APART)
    return Found([_row(spec, *arrays, options.seconds) for spec in chosen], {"repeats": _REPEATS})


def _formula(spec: str) -> Formula | None:
    """Return the formula of a codec that also has handwritten kernels; None if it lacks a formula or these kernels."""
    from psnode.codecs.rows.codec import Generated
    from psnode.codecs.rows.known import formula_of

    codec = get_codec(spec)
    return None if isinstance(codec, Generated) else formula_of(codec)


def _row(spec: str, inputs: Rotation, targets: Rotation, seconds: float) -> dict[str, Any]:
    pairs = _pairs(spec, inputs, targets)
    size = inputs.take().size
    row: dict[str, Any] = {"spec": spec}
    for action in ACTIONS:
        by_hand, generated = pairs[action]
        best = best_in_turn({"hand": by_hand, "generated": generated}, _REPEATS, seconds / _REPEATS)
        row[action] = {name: 4 * size / took for name, took in best.items()} | {"ratio": best["hand"] / best["generated"]}
    return row | {"enough": all(row[action]["ratio"] >= ENOUGH for action in ACTIONS)}


def _pairs(spec: str, inputs: Rotation, targets: Rotation) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Return by action two calls to measure: one of the handwritten and one of the generated kernels.

    Raises AssertionError if the two kernels write different bytes.
    """
    from psnode.codecs.rows.coder import SumCoder
    from psnode.codecs.rows.compiled import compiled
    from psnode.codecs.rows.formula import program_of
    from psnode.codecs.rows.numba.text import text_of

    codec, formula = get_codec(spec), _formula(spec)
    if formula is None:
        raise ConfigurationError(f"{spec} has no formula beside kernels by hand: psnode codecs --json lists those with rows")
    program, x = program_of(formula), inputs.take()
    coder, key = SumCoder(program, compiled(text_of(program))), np.array(KEY.words, np.uint64)
    room, body = np.zeros(codec.max_nbytes(x.shape), np.uint8), np.zeros(program.nbytes(x.size), np.uint8)
    payload, one, quarter = codec.encode(x, KEY), np.float32(1), np.float32(0.25)
    coder.encode(x, key, body, _EMPTY)
    if body[: program.length(body, x.size)].tobytes() != payload.body.tobytes():
        raise AssertionError(f"{spec}: the formula writes other bytes than the kernels by hand")

    def read(weight: np.float32, adding: bool) -> None:
        coder.check(payload.body, x.size)
        coder.decode(payload.body, targets.take(), weight, adding)

    return {
        "encode": (
            lambda: codec.encode(inputs.take(), KEY, out=room),
            lambda: coder.encode(inputs.take(), key, body, _EMPTY),
        ),
        "error": (
            lambda: codec.encode(inputs.take(), KEY, error=targets.take(), out=room),
            lambda: coder.encode(inputs.take(), key, body, targets.take()),
        ),
        "decode": (
            lambda: codec.decode(payload, targets.take()),
            lambda: read(one, False),
        ),
        "decode_add": (
            lambda: codec.decode_add(payload, targets.take(), 0.25),
            lambda: read(quarter, True),
        ),
    }


def _of(action: str) -> list[Column]:
    titles = {"hand": f"{action}, by hand", "generated": "generated", "ratio": "ratio"}
    return [Column(title, f"{{{action}[{name}]:.2f}}") for name, title in titles.items()]


COLUMNS = (
    Column("codec", "{spec}", left=True),
    *(column for action in ACTIONS for column in _of(action)),
    Column(f"all >= {ENOUGH}", lambda row: "yes" if row["enough"] else "no", left=True),
)
STUDY = Study(
    Options,
    measure,
    COLUMNS,
    head=lambda result: f"{result['size']:,} values of N(0,1), GB/s of float32; the best of {result['repeats']}, in turn.",
)


if __name__ == "__main__":
    sys.exit(main(STUDY))
