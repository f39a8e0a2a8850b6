"""`psnode bench codecs --compare rows`: kernels that are made of a codec's formula beside those by hand, in turn, on one core.

GB/s of float32 on N(0,1) in encode, encode with the error, decode and decode_add, by processor time, and generated / by hand.
Both write the same payload, and check what they read. At .95 and above the formula could take the place of the kernels by hand;
the table says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from psnode.bench.hardware import hardware, last_level_cache
from psnode.bench.inputs import gaussian
from psnode.bench.rotation import APART, Rotation, beyond_cache
from psnode.bench.saving import save
from psnode.bench.timing import best_in_turn
from psnode.codecs import available, get_codec
from psnode.codecs.rng import Key
from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    from psnode.codecs.rows.formula import Formula

KEY = Key.derive(1, "rows")
ENOUGH = 0.95
ACTIONS = ("encode", "error", "decode", "decode_add")
_REPEATS = 7
_EMPTY = np.empty(0, np.float32)


def run(specs: Sequence[str], size: int, seconds: float, copies: int) -> dict[str, Any]:
    """Measure `specs`, by default all codecs that have a formula; `copies`: bytes of the arrays that are taken in turn.

    A row has for each of ACTIONS the GB/s `hand` and `generated` and their `ratio`. ConfigurationError without a formula.
    """
    chosen = list(specs) or [name for name in available() if _formula(name) is not None]
    values = gaussian(size).flat
    arrays = Rotation(values, copies), Rotation(values, copies, APART)
    return {**hardware(), "size": size, "repeats": _REPEATS, "rows": [_row(spec, *arrays, seconds) for spec in chosen]}


def _formula(spec: str) -> Formula | None:
    """The formula of a codec that has kernels by hand as well."""
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
    """Pairs of calls to measure, by hand and generated, for each action. AssertionError unless both write the same bytes."""
    from psnode.codecs.rows.coder import SumCoder
    from psnode.codecs.rows.compiled import compiled
    from psnode.codecs.rows.formula import program_of
    from psnode.codecs.rows.numba_text import text_of

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


def markdown(result: dict[str, Any]) -> str:
    """The result as a page for docs/results."""
    heads = " | ".join(f"{action}, by hand | generated | ratio" for action in ACTIONS)
    lines = [f"| codec | {heads} | all >= {ENOUGH} |", "|---|" + "---:|" * (3 * len(ACTIONS)) + "---|"]
    for row in result["rows"]:
        cells = [f"{row[a]['hand']:.2f} | {row[a]['generated']:.2f} | {row[a]['ratio']:.2f}" for a in ACTIONS]
        lines.append(f"| {row['spec']} | {' | '.join(cells)} | {'yes' if row['enough'] else 'no'} |")
    head = f"{result['date']}, {result['cpu']}, {result['cores']} cores. {result['size']:,} values of N(0,1), GB/s of float32; "
    return "\n".join([head + f"the best of {result['repeats']}, in turn.", "", *lines]) + "\n"


def main(specs: Sequence[str], size: int, seconds: float, copies: int | None, json_file: Path | None) -> int:
    """Measure, print the table, write it as JSON; the exit code. `copies`: MiB, None: by the cache."""
    nbytes = beyond_cache(last_level_cache()) if copies is None else copies << 20
    result = run(specs, size, seconds, nbytes)
    print(markdown(result))
    save(result, json_file)
    return 0
